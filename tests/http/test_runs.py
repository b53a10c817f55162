"""Starting, inspecting, cancelling and retrying runs over HTTP."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from perdure import App, Client, RunHandle, WorkflowFailedError
from perdure.codecs import Encrypted, new_key
from tests.conftest import BackendDatabase
from tests.engine.waiting import until, waiting
from tests.http.conftest import connected
from tests.http.workflows import EXAMPLE, everything, failing, listener, nothing, order, waiter

LINES = [{"sku": "pencil", "price": "0.10", "count": 3}]


async def test_run_is_started_and_its_result_awaited(everywhere: App) -> None:
    async with connected(everywhere) as http:
        body = {"id": "A-1", "input": {"id": "A-1", "lines": LINES}}
        started = await http.post("/v1/workflows/http.order/runs", json=body)
        assert (started.status_code, started.json()) == (202, {"id": "A-1"})
        assert started.headers["location"] == "/v1/runs/A-1"
        result = await http.get("/v1/runs/A-1/result?wait=30")
        assert result.status_code == 200
        assert result.json() == {"id": "A-1", "status": "completed", "ended": True, "result": "0.30"}
        run = (await http.get("/v1/runs/A-1")).json()
        assert run["input"] == {"id": "A-1", "lines": LINES}
        assert run["state"] == {"lines": 1}
        assert run["finished_at"] is not None
        assert (await http.get("/v1/runs/A-1/state")).json() == {"state": {"lines": 1}}
        (step,) = (await http.get("/v1/runs/A-1/steps")).json()["steps"]
        assert (step["name"], step["status"], step["result"]) == ("http.total", "completed", "0.30")


async def test_id_makes_a_start_idempotent(everywhere: App) -> None:
    async with connected(everywhere) as http:

        async def start(**body: Any) -> httpx.Response:
            return await http.post("/v1/workflows/http.order/runs", json={"id": "A-1", **body})

        for _ in range(2):
            assert (await start(input={"id": "A-1", "lines": []})).status_code == 202
        other = await start(input={"id": "A-2", "lines": []})
        assert (other.status_code, other.json()["code"]) == (409, "engine.run_exists")
        again = await start(input={"id": "A-1", "lines": []}, if_exists="error")
        assert (again.status_code, again.json()["code"]) == (409, "engine.run_exists")
        assert await everywhere.runs().count() == 1
        await http.get("/v1/runs/A-1/result?wait=30")


async def test_values_are_encoded_as_they_are_stored(http: httpx.AsyncClient) -> None:
    stored = msgspec.json.decode(everything.signature.bind((EXAMPLE,), {}))
    assert stored["value"]["shape"] == {"$type": "Square", "side": 2.0}
    await http.post("/v1/workflows/http.everything/runs", json={"id": "e", "input": stored})
    assert (await http.get("/v1/runs/e/result?wait=30")).json()["result"] == stored["value"]
    assert (await http.get("/v1/runs/e")).json()["input"] == stored


async def test_options_apply(http: httpx.AsyncClient, app: App) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    for options in ({"at": later.isoformat()}, {"after": 86400}):
        started = await http.post("/v1/workflows/http.nothing/runs", json={**options, "timeout": 172800})
        run = (await http.get(started.headers["location"])).json()
        assert run["status"] == "waiting_for_timer"
        assert run["waiting_for"][0]["kind"] == "start"
        assert run["deadline"] is not None


@pytest.mark.parametrize(
    ("body", "parameter", "words"),
    [
        ({"input": {"id": "A"}}, "input.lines", "needs the parameter 'lines'"),
        ({"input": {"id": 1, "lines": []}}, "input.id", "Expected `str`"),
        ({"input": {"id": "A", "lines": [{"sku": "x"}]}}, "input.lines", "`price`"),
        ({"input": {"id": "A", "lines": [], "hurry": True}}, "input.hurry", "no parameter 'hurry'"),
        ({"input": []}, "input", "Expected `object`"),
        ({"id": "A-1", "inputs": {}}, "inputs", "no field 'inputs' here: it takes input, id, at, after, timeout"),
        ({"input": {"id": "A", "lines": []}, "at": "2026-01-31T12:00:00"}, "at", "timezone"),
        ({"input": {"id": "A", "lines": []}, "after": -1}, "after", ">= 0"),
        ({"input": {"id": "A", "lines": []}, "after": 1e15}, None, "100 years"),
        ({"input": {"id": "A", "lines": []}, "at": "2026-01-31T12:00:00Z", "after": 1}, None, "not both"),
        ({"input": {"id": "A", "lines": []}, "id": "x~1"}, None, "reserved"),
        ({"input": {"id": "A", "lines": []}, "id": "x" * 201}, "id", "<= 200"),
        ({"input": {"id": "A", "lines": []}, "if_exists": "replace"}, "if_exists", "replace"),
    ],
)
async def test_wrong_input_is_refused_and_named(
    http: httpx.AsyncClient, app: App, body: Any, parameter: str | None, words: str
) -> None:
    answer = await http.post("/v1/workflows/http.order/runs", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json().get("parameter") == parameter
    assert words in answer.json()["detail"]
    assert await app.runs().count() == 0


async def test_unknown_runs_and_workflows_are_not_found(http: httpx.AsyncClient) -> None:
    for path in ("", "/result", "/result?wait=1", "/steps", "/state", "/history"):
        answer = await http.get(f"/v1/runs/nobody{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "engine.run_not_found"), path
    for action in ("cancel", "retry"):
        assert (await http.post(f"/v1/runs/nobody/{action}")).status_code == 404
    for id in ("x" * 300, "%00", "%20"):
        assert (await http.get(f"/v1/runs/{id}")).status_code == 404
    answer = await http.post("/v1/workflows/nobody/runs", json={})
    assert (answer.status_code, answer.json()["code"]) == (404, "http.workflow_not_found")


async def test_ids_with_slashes_and_percent_signs_are_exact(http: httpx.AsyncClient) -> None:
    for id in ("a/b", "a%2Fb", "a/result", "ä&?#", "a%252Fb"):
        started = await http.post("/v1/workflows/http.nothing/runs", json={"id": id})
        assert (await http.get(started.headers["location"] + "/result?wait=30")).json()["id"] == id


async def test_runs_are_listed_by_every_filter_and_page_by_page(everywhere: App) -> None:
    async with connected(everywhere) as http:
        before = datetime.now(UTC) - timedelta(hours=1)
        for number in range(5):
            await (await order.options(id=f"o-{number}").start(f"A-{number}", [])).result(30)
        await (await nothing.options(id="n").start()).result(30)
        with pytest.raises(Exception, match="failed"):
            await (await failing.options(id="f").start("no")).result(30)

        async def ids(**query: Any) -> set[str]:
            answer = await http.get("/v1/runs", params=query)
            assert answer.status_code == 200, answer.text
            return {run["id"] for run in answer.json()["runs"]}

        orders = {f"o-{number}" for number in range(5)}
        assert await ids() == orders | {"n", "f"}
        assert await ids(workflow="http.order") == orders
        assert await ids(status="failed") == {"f"}
        assert await ids(workflow="http.order", where='{"id": "A-3"}') == {"o-3"}
        assert await ids(started_after=before.isoformat()) == orders | {"n", "f"}
        assert await ids(started_before=before.isoformat()) == set()
        assert await ids(stuck="true") == set()
        found: list[str] = []
        query: dict[str, Any] = {"workflow": "http.order", "limit": 2}
        while True:
            page = (await http.get("/v1/runs", params=query)).json()
            assert len(page["runs"]) <= 2
            found += [run["id"] for run in page["runs"]]
            if page["next_token"] is None:
                break
            assert re.fullmatch(r"[\w-]+", page["next_token"])  # it can be put into a URL without percent-encoding
            query["token"] = page["next_token"]
        assert sorted(found) == sorted(orders)


async def test_one_status_finds_all_waiting_runs(app: App, http: httpx.AsyncClient) -> None:
    await nothing.options(id="later", after=3600).start()
    await waiter.options(id="for-an-event").start()
    await waiting(app, "for-an-event")
    await (await nothing.start()).result(30)
    answer = await http.get("/v1/runs?status=waiting&limit=1")
    first = answer.json()
    rest = (await http.get(f"/v1/runs?status=waiting&token={first['next_token']}")).json()
    assert {run["id"] for run in [*first["runs"], *rest["runs"]]} == {"later", "for-an-event"}
    (status,) = [
        each["schema"]["enum"]
        for each in (await http.get("/v1/openapi.json")).json()["paths"]["/v1/runs"]["get"]["parameters"]
        if each["name"] == "status"
    ]
    assert "waiting" in status


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("status=lost", "status"),
        ("stuck=yes", "stuck"),
        ("where=1", "where"),
        ("where=%7B%7D%7D", "where"),
        ('where={"a":"b"}', None),
        ('where={"a b":"b"}&status=failed', None),
        ("started_after=yesterday", "started_after"),
        ("started_after=2026-01-01T00:00:00", "started_after"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("token=x", None),
        ("token=eA%3D%3D", None),
        ("token=%C3%A4", None),
        ("token=_w", None),
        ("stuck=true&token=x", None),
        ("statsu=failed", "statsu"),
        ("status=failed&status=completed", "status"),
    ],
)
async def test_wrong_filters_are_refused(http: httpx.AsyncClient, query: str, parameter: str | None) -> None:
    answer = await http.get(f"/v1/runs?{query}")
    assert answer.status_code == 422, answer.text
    assert answer.json().get("parameter") == parameter


async def test_result_says_that_a_run_has_not_ended(http: httpx.AsyncClient, app: App) -> None:
    run = await waiter.start()
    await waiting(app, run.id)
    for query in ("", "?wait=0.05"):
        answer = await http.get(f"/v1/runs/{run.id}/result{query}")
        assert answer.status_code == 202
        assert answer.json() == {"id": run.id, "status": "waiting_for_message", "ended": False}
    for wait in ("61", "-1", "nan", "inf", "soon"):
        assert (await http.get(f"/v1/runs/{run.id}/result?wait={wait}")).status_code == 422
    asking = asyncio.create_task(http.get(f"/v1/runs/{run.id}/result?wait=30"))
    await until(lambda: run.id in app._results._waiting)
    await app.send_event("http.go", 1)
    assert (await asking).json()["result"][0] == 1


async def test_failed_run_can_be_inspected_and_retried(everywhere: App) -> None:
    async with connected(everywhere) as http:
        await http.post("/v1/workflows/http.failing/runs", json={"id": "f", "input": {"reason": "lost"}})
        result = await http.get("/v1/runs/f/result?wait=30")
        assert result.status_code == 200
        assert result.json()["error"] == {"type": "builtins.LookupError", "message": "lost"}
        assert "LookupError: lost" in (await http.get("/v1/runs/f")).json()["error"]["traceback"]
        again = await http.post("/v1/runs/f/retry", json={"from_step": "1:http.breaks"})
        assert (again.status_code, again.json()) == (202, {"id": "f~r1"})
        assert (await http.get("/v1/runs/f~r1/result?wait=30")).json()["status"] == "failed"
        assert (await http.post("/v1/runs/f/retry")).json() == {"id": "f~r2"}
        await http.get("/v1/runs/f~r2/result?wait=30")
        wrong = await http.post("/v1/runs/f/retry", json={"from_step": "9:nothing"})
        assert (wrong.status_code, wrong.json()["code"]) == (409, "engine.run_not_retryable")
        await http.post("/v1/workflows/http.order/runs", json={"id": "o", "input": {"id": "o", "lines": LINES}})
        assert (await http.get("/v1/runs/o/result?wait=30")).json()["status"] == "completed"
        completed = await http.post("/v1/runs/o/retry")
        assert (completed.status_code, completed.json()["code"]) == (409, "engine.run_not_retryable")
        assert "it is completed, and only failed and cancelled runs can" in completed.json()["detail"]
        ended = await http.post("/v1/runs/f/cancel")
        assert (ended.status_code, ended.json()["code"]) == (409, "storage.not_cancellable")


async def test_run_is_cancelled_with_its_reason(everywhere: App) -> None:
    async with connected(everywhere) as http:
        run = await listener.start()
        await waiting(everywhere, run.id)
        assert (await http.post(f"/v1/runs/{run.id}/cancel", json={"reason": "too late"})).status_code == 202
        result = (await http.get(f"/v1/runs/{run.id}/result?wait=30")).json()
        assert (result["status"], result["error"]["message"]) == ("cancelled", "too late")


async def test_unreadable_result_or_state_is_an_error(backend_database: BackendDatabase) -> None:
    async with backend_database("sqlite") as database:
        async with App(database.url, codec=Encrypted({"k1": new_key()})):
            await (await order.options(id="A-1").start("A-1", [])).result(30)
            with pytest.raises(WorkflowFailedError):
                await (await failing.options(id="f").start("no")).result(30)
        async with Client(database.url) as client, connected(client) as http:
            for path in ("result", "result?wait=1", "state"):
                answer = await http.get(f"/v1/runs/A-1/{path}")
                assert (answer.status_code, answer.json()["code"]) == (500, "storage.codec"), path
                assert "cannot encode or decode a value" in answer.json()["detail"]
            stream = await http.get("/v1/runs/A-1/result", headers={"Accept": "text/event-stream"})
            assert stream.text.startswith("event: error\ndata: ")
            assert "storage.codec" in stream.text
            assert (await http.post("/v1/runs/f/retry")).json()["code"] == "storage.codec"
            (failed, run) = (await http.get("/v1/runs")).json()["runs"]
            assert run["result"] == {"how": "encrypted with key 'k1'", "why": ""}
            assert failed["error"]["message"] == "<encrypted with key 'k1'>"


async def test_filter_by_encoded_inputs_is_refused(backend_database: BackendDatabase) -> None:
    async with backend_database("sqlite") as database, App(database.url, codec=Encrypted({"k1": new_key()})) as app:
        async with connected(app) as http:
            answer = await http.get("/v1/runs", params={"workflow": "http.order", "where": '{"id": "A-1"}'})
        assert (answer.status_code, answer.json()["parameter"]) == (422, "where")
        assert "a codec has encoded" in answer.json()["detail"]


async def test_history_is_read_page_by_page(http: httpx.AsyncClient) -> None:
    await http.post("/v1/workflows/http.order/runs", json={"id": "h", "input": {"id": "h", "lines": LINES}})
    await http.get("/v1/runs/h/result?wait=30")
    whole = (await http.get("/v1/runs/h/history")).json()
    assert whole["next_after"] is None
    first = (await http.get("/v1/runs/h/history?limit=1")).json()
    assert first["entries"] == whole["entries"][:1]
    rest = (await http.get(f"/v1/runs/h/history?after={first['next_after']}")).json()
    assert rest["entries"] == whole["entries"][1:]
    for query in ("after=-1", "after=x", "limit=0", "limit=9999999999999999999999"):
        assert (await http.get(f"/v1/runs/h/history?{query}")).status_code == 422


async def test_workflows_are_listed(http: httpx.AsyncClient) -> None:
    found = {each["name"]: each for each in (await http.get("/v1/workflows")).json()["workflows"]}
    assert found["http.shipping"] == {"name": "http.shipping", "cron": None, "on_event": "http.ordered"}


async def test_the_given_app_is_used_although_others_are_open(app: App, tmp_path: Any) -> None:
    async with App(f"sqlite:///{tmp_path}/other.db") as other, connected(other) as http:
        await http.post("/v1/workflows/http.nothing/runs", json={"id": "there"})
        handle: RunHandle[Any] = other.get("there")
        await handle.result(30)
        assert await app.runs().count() == 0
