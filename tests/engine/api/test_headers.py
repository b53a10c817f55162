"""Headers: texts that are given at the start and travel with a run to everything that it starts and sends."""

import asyncio
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    App,
    Client,
    Event,
    OutsideWorkflowError,
    Retry,
    WorkflowFailedError,
    activity,
    activity_info,
    join_group,
    publish,
    receive,
    recur,
    run_headers,
    send_event,
    send_to,
    send_to_group,
    subscribe,
    wait_event,
    workflow,
)
from perdure.errors import LimitError
from perdure.model import headers as rules
from perdure.testing import History, TestApp, export_history, history_of, replay
from tests.engine.waiting import row_of, until, waiting
from tests.support.storages import Database

ACME = {"tenant": "acme", "region": "südwest"}

ONCE = Retry(attempts=1)
Seen = dict[str, str]


@activity
async def seen_by_activity() -> Seen:
    return dict(activity_info().headers)


@activity
def seen_in_thread() -> Seen:
    return dict(run_headers())


@activity
async def start_from_activity(id: str) -> None:
    await headers_seen.options(id=id).start()


@workflow
async def headers_seen() -> list[Seen]:
    return [dict(run_headers()), await seen_by_activity(), await seen_in_thread()]


@workflow
async def headers_family(id: str) -> list[Any]:
    child = await headers_seen()
    started = await headers_seen.options(id=f"{id}-started", headers={"region": "west", "extra": "1"}).start()
    await start_from_activity(f"{id}-by-activity")
    return [child, started.id]


@workflow
async def headers_recurring(left: int) -> Seen:
    if left:
        recur(left - 1)
    return dict(run_headers())


@activity(retry=ONCE)
async def refuse_headers() -> None:
    raise ValueError("refused")


@workflow
async def headers_failing() -> None:
    await refuse_headers()


@workflow
async def headers_receiver() -> list[Seen]:
    await subscribe("headers-news")
    await subscribe("headers-own", "direct")
    await join_group("headers-group")
    event = await wait_event("headers-event")
    messages = [await receive(channel) for channel in ("headers-news", "headers-own", "headers-own")]
    assert messages[0].metadata == {"n": 1}
    return [dict(event.headers), *(dict(each.headers) for each in messages)]


@activity
async def send_from_activity() -> None:
    await publish("headers-news", "b", metadata={"n": 1})


@workflow
async def headers_sender(to: str) -> None:
    await send_event("headers-event", {"a": 1}, id="only-once")
    await send_from_activity()
    await send_to(to, "headers-own", "c")
    await send_to_group("headers-group", "headers-own", "d")


async def test_headers_reach_the_body_its_activities_and_the_info_of_the_run(database: Database) -> None:
    async with App(database.url) as app:
        run = await headers_seen.options(headers=ACME).start()
        assert await run.result() == [ACME, ACME, ACME]
        assert (await run.info()).headers == ACME
        assert [each.headers async for each in app.runs(workflow="headers_seen")] == [ACME]
        plain = await headers_seen.start()
        assert await plain.result() == [{}, {}, {}]
        assert (await plain.info()).headers == {}
        assert (await row_of(plain)).headers is None


async def test_children_and_runs_started_in_a_run_inherit_its_headers(database: Database) -> None:
    async with App(database.url) as app:
        run = await headers_family.options(id="family", headers=ACME).start("family")
        child, started = await run.result()
        assert child == [ACME, ACME, ACME]
        mixed = {"tenant": "acme", "region": "west", "extra": "1"}
        assert await app.get(started).result() == [mixed, mixed, mixed]
        assert await app.get("family-by-activity").result() == [ACME, ACME, ACME]


async def test_headers_survive_recur_and_retry(database: Database) -> None:
    async with App(database.url) as app:
        run = await headers_recurring.options(id="again", headers=ACME).start(2)
        assert await run.result() == ACME
        assert (await app.get("again~1").info()).headers == ACME
        failing = await headers_failing.options(id="broken", headers=ACME).start()
        with pytest.raises(WorkflowFailedError):
            await failing.result()
        retried = await app.retry("broken")
        assert (await retried.info()).headers == ACME


async def test_headers_survive_a_change_of_worker(shared: Database) -> None:
    async with Client(shared.url):
        run = await headers_receiver.options(id="elsewhere", headers=ACME).start()
        assert (await row_of(run)).headers is not None
    async with App(shared.url) as first:
        await waiting(first, "elsewhere")
    async with App(shared.url) as second:
        sender = await headers_sender.options(headers={"tenant": "sender"}).start("elsewhere")
        await sender.result()
        assert await second.get("elsewhere").result() == [{"tenant": "sender"}] * 4


async def test_run_that_an_event_starts_has_the_headers_of_the_event() -> None:
    @workflow(on_event="headers-started")
    async def headers_by_event(event: Event[int]) -> list[Seen]:
        return [dict(run_headers()), dict(event.headers)]

    @workflow
    async def headers_starting() -> None:
        await send_event("headers-started", 1, id="first")

    async with TestApp() as app:
        await headers_starting.options(headers=ACME).start()
        await until(lambda: _has_ended(app, "headers_by_event"))
        (run,) = [run async for run in app.runs(workflow="headers_by_event")]
        assert run.result == [ACME, ACME]
        await app.send_event("headers-started", 2, id="second")
        await until(lambda: _has_ended(app, "headers_by_event", 2))
        results = [run.result async for run in app.runs(workflow="headers_by_event")]
        assert [{}, {}] in results


async def _has_ended(app: Client, workflow: str, count: int = 1) -> bool:
    return await app.runs(workflow=workflow, status="completed").count() == count


async def test_messages_without_headers_are_stored_as_before(database: Database) -> None:
    async with App(database.url) as app:
        run = await headers_receiver.options(id="plain").start()
        await waiting(app, "plain")
        await app.send_event("headers-event", {})
        await app.publish("headers-news", 1, metadata={"n": 1})
        await app.send_to("plain", "headers-own", 1)
        await app.send_to("plain", "headers-own", 2)
        assert await run.result() == [{}, {}, {}, {}]
        rows = [row.data for row in (await history_of(run)).rows if isinstance(row.data, dict)]
        assert [row["metadata"] for row in rows if "n" in (row.get("metadata") or {})] == [{"n": 1}]
        assert "perdure_headers" not in str(rows)


def test_start_in_a_transaction_of_the_caller_stores_headers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"

    async def main() -> Mapping[str, str]:
        async with Client(url) as client:
            connection = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            headers_seen.options(id="in", in_transaction=connection, headers=ACME).start_sync()
            connection.execute("COMMIT")
            connection.close()
            return (await client.get("in").info()).headers

    assert asyncio.run(main()) == ACME


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ([("tenant", "a")], TypeError, "must be a dict"),
        ({"tenant": 1}, TypeError, "must be a text, not int"),
        ({1: "tenant"}, LimitError, "must be a str"),
        ({"": "a"}, LimitError, "1 to 100 characters"),
        ({"a": "x" * 8193}, LimitError, "the limit is 8192"),
        ({"a": "line\nbreak"}, LimitError, "not printable"),
        ({f"h{n}": "" for n in range(33)}, LimitError, "33 headers, the limit is 32"),
        ({f"h{n}": "x" * 8000 for n in range(3)}, LimitError, "the limit is 16384"),
    ],
)
def test_headers_that_cannot_travel_are_refused_at_once(given: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        headers_seen.options(headers=given)


def test_headers_of_no_run_are_an_error() -> None:
    with pytest.raises(OutsideWorkflowError, match="run_headers"):
        run_headers()


async def test_inherited_and_own_headers_together_are_limited() -> None:
    @activity(retry=ONCE)
    async def start_with_many() -> None:
        await headers_seen.options(headers={f"own{n}": "" for n in range(20)}).start()

    @workflow
    async def headers_too_many() -> None:
        await start_with_many()

    async with TestApp():
        run = await headers_too_many.options(headers={f"h{n}": "" for n in range(20)}).start()
        with pytest.raises(WorkflowFailedError, match="40 headers"):
            await run.result()


async def test_stored_headers_that_are_not_json_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert rules.decode(b"{") == {}
    assert "not JSON" in caplog.text
    assert rules.decode(b"[1]") == {}
    assert rules.decode(b'{"a": "b", "c": 1}') == {"a": "b"}


async def test_recorded_history_keeps_the_headers_for_its_replay(tmp_path: Path) -> None:
    async with TestApp():
        run = await headers_recurring.options(headers=ACME).start(0)
        await run.result()
        await export_history(run, tmp_path / "run.json")
        await export_history(run, tmp_path / "hidden.json", redact=_without_headers)
    history = History.load(tmp_path / "run.json")
    assert history.headers == ACME
    assert replay(headers_recurring, history).result == ACME
    assert History.load(tmp_path / "hidden.json").headers == {"tenant": "x", "region": "x"}


def _without_headers(where: str, value: object) -> Any:
    return "x" if where.startswith("headers.") else value


CLIENTS: list[Client] = []


@activity
async def send_by_a_client() -> None:
    await CLIENTS[0].send_event("headers-by-a-client", 1)


@workflow
async def headers_sender_with_a_client() -> None:
    await send_by_a_client()


@workflow
async def headers_of_the_event() -> Seen:
    return dict((await wait_event("headers-by-a-client")).headers)


async def test_event_that_an_activity_sends_by_a_client_has_the_headers_of_its_run(database: Database) -> None:
    async with App(database.url) as app:
        CLIENTS[:] = [app]
        run = await headers_of_the_event.options(id="event-receiver").start()
        await waiting(app, run.id)
        await headers_sender_with_a_client.options(headers=ACME).start()
        assert await run.result(20) == ACME
