"""The audit: no action without a row, on every database, and pages that show the rows."""

import re
from datetime import timedelta
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from perdure import App
from perdure.dashboard import AuditEntry
from perdure.errors import DatabaseUnavailableError
from perdure.model.records import OutboxEvent
from perdure.storage.administration import Administration, administration_of
from perdure.storage.audit import Audit
from perdure.storage.stores import shift_clock
from perdure.testing.reference import Reference
from tests.dashboard import shop
from tests.dashboard.conftest import connected, post
from tests.dashboard.test_pages import failed
from tests.engine.waiting import waiting
from tests.support.storages import storage_of


def administration(app: App) -> Administration:
    found = administration_of(storage_of(app))
    assert found is not None
    return found


async def actions(http: httpx.AsyncClient, path: str = "/audit.json") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get(path)).json()["actions"]
    return found


async def test_every_action_leaves_a_row(everywhere: App) -> None:
    async with connected(everywhere) as http:
        storage = storage_of(everywhere)
        id = await failed("A-1")
        shop.broken.clear()
        for name in ("a-1", "a-2", "a-3"):
            await shop.approval.options(id=name).start("A-1")
            await waiting(everywhere, name)
        await storage.add_outbox_event(OutboxEvent("e-1", "order.paid", "shop", b"{}"))
        await storage.mark_outbox_event_failed("e-1", error="no route")
        await post(
            http, "/runs/a-1/send", type="order.approved", data='{"order": "A-1", "by": "Ada"}', reason="send it"
        )
        await everywhere.get("a-1").result(60)  # else the action on all waiting runs may find it
        await post(http, f"/runs/{id}/retry", reason="card fixed")
        await post(http, f"/runs/{id}/delete", reason="tidy")
        await post(http, "/runs/a-2/cancel", reason="out of stock")
        await post(http, "/outbox/requeue", event="e-1", reason="route added")
        form = {"action": "cancel", "q": "workflow:shop.approval state:waiting", "count": "5", "reason": "closing"}
        await post(http, "/bulk", id="bulk-1", **form)
        assert (await everywhere.get("bulk-1").result(60))["done"] == 1
        await post(http, "/views", name="failed orders", q="state:failed")
        found = [(each["action"], each["target"], each["query"], each["reason"]) for each in await actions(http)]
        assert found == [
            ("views", "failed orders", "", "saved in the list of runs"),
            ("cancel", "bulk-1", "workflow:shop.approval state:waiting", "closing"),
            ("requeue", "e-1", "", "route added"),
            ("cancel", "a-2", "", "out of stock"),
            ("delete", id, "", "tidy"),
            ("retry", id, "", "card fixed"),
            ("send", "a-1", "", "send it"),
        ]
        outcomes = [each["outcome"] for each in await actions(http)]
        assert outcomes[1] == "started bulk-1"
        assert outcomes[2:] == ["done", "done", "done", f"started {id}~r1", "sent order.approved"]
        assert {each["actor"] for each in await actions(http)} == {"127.0.0.1"}
        assert [each["action"] for each in await actions(http, f"/audit.json?run={id}")] == ["delete", "retry"]
        for related in ("a-3", "bulk-1"):
            assert [each["reason"] for each in await actions(http, f"/audit.json?run={related}")] == ["closing"]
        assert [each["reason"] for each in await actions(http, "/audit.json?run=a-2")] == ["out of stock"]
        page = (await http.get("/runs/a-2")).text
        assert "Actions of people" in page
        assert "out of stock" in page
        assert (await http.get("/runs/a-2.json")).json()["actions"][0]["reason"] == "out of stock"


async def test_row_is_stored_before_the_action_and_has_its_outcome_afterwards(app: App) -> None:
    seen: list[str] = []

    async def audit(entry: AuditEntry) -> None:
        seen.extend(each.outcome for each in await administration(app).audit.latest())

    await shop.approval.options(id="a-1").start("A-1")
    async with connected(app, audit=audit) as http:
        await post(http, "/runs/a-1/cancel", reason="test")
        (row,) = await actions(http)
    assert seen == ["requested", "done"]
    assert not row["is_open"]
    assert row["outcome"] == "done"


async def test_action_without_a_row_is_not_carried_out(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def add(*_: Any, **__: Any) -> int:
        raise DatabaseUnavailableError("no connection")

    await shop.approval.options(id="a-1").start("A-1")
    monkeypatch.setattr(Audit, "add", add)
    async with connected(app) as http:
        for path, form in (
            ("/runs/a-1/cancel", {}),
            ("/runs/a-1/send", {"type": "order.approved"}),
            ("/bulk", {"action": "cancel", "q": "workflow:shop.approval"}),
            ("/views", {"name": "x", "q": "state:failed"}),
        ):
            assert (await post(http, path, reason="test", **form)).status_code == 503, path
        assert (await http.get("/runs.json")).json()["views"] == []
    assert (await app.get("a-1").info()).error is None


async def test_outcome_that_could_not_be_stored_leaves_the_row_open(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def finish(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailableError("no connection")

    await shop.approval.options(id="a-1").start("A-1")
    monkeypatch.setattr(Audit, "finish", finish)
    async with connected(app) as http:
        assert (await post(http, "/runs/a-1/cancel", reason="test")).status_code == 503
        (row,) = await actions(http)
        assert (row["is_open"], row["outcome"]) == (True, "requested")
        assert "requested" in (await http.get("/audit")).text
    assert (await app.get("a-1").info()).error is not None


async def test_refused_and_failed_actions_are_told_apart(app: App) -> None:
    async def access(request: Request) -> Any:
        request.state.identity = request.headers.get("x-user", "")
        return {"reader": "read", "helper": {"cancel"}}[request.headers["x-user"]]

    await shop.approval.options(id="a-1").start("A-1")
    async with connected(app, access=access) as http:
        http.headers["x-user"] = "reader"
        assert (await post(http, "/runs/a-1/cancel", reason="test")).status_code == 403
        assert await actions(http) == []
        http.headers["x-user"] = "helper"
        assert (await post(http, "/runs/nope/cancel", reason="typo")).status_code == 404
        (row,) = await actions(http)
        assert row["outcome"].startswith("RunNotFoundError")
        assert row["actor"] == "helper (127.0.0.1)"


async def test_audit_is_paged_by_keys_and_old_rows_are_removed(app: App) -> None:
    audit = administration(app).audit
    for number in range(60):
        await audit.add("Ada", "cancel", f"reason {number}", target=f"r-{number}")
    async with connected(app, audit_retention=timedelta(days=1)) as http:
        first = await http.get("/audit")
        (following,) = re.findall(r'href="(/audit\?before=\d+)"', first.text)
        second = await http.get(following)
        seen = re.findall(r"<td class=\"why\">reason (\d+)</td>", first.text + second.text)
        assert seen == [str(number) for number in reversed(range(60))]
        assert (await http.get("/audit?before=x")).status_code == 422
        shift_clock(storage_of(app), timedelta(days=2))
        await post(http, "/views", name="x", q="state:failed")
        assert [each["action"] for each in await actions(http)] == ["views"]


async def test_markup_and_control_characters_in_the_audit_stay_text(app: App) -> None:
    def access(request: Request) -> Any:
        request.state.identity = "<b>Ada</b>\n\x07" + "x" * 300
        return "all"

    await shop.approval.options(id="a-1").start("A-1")
    async with connected(app, access=access) as http:
        answer = await post(http, "/runs/a-1/cancel", reason="<script>alert(1)</script>")
        assert answer.status_code == 303
        page = (await http.get("/audit")).text
        assert "<script>alert" not in page
        assert "&lt;b&gt;Ada&lt;/b&gt;" in page
        assert len((await actions(http))[0]["actor"]) <= 255


async def test_storage_of_another_author_needs_a_function_that_records() -> None:
    entries: list[AuditEntry] = []
    async with App(Reference()) as app:
        await shop.approval.options(id="a-1").start("A-1")
        async with connected(app) as http:
            assert (await http.get("/")).status_code == 200
            assert (await http.get("/workers")).status_code == 200
            assert (await http.get("/channels")).status_code == 200
            assert (await http.get("/audit")).status_code == 501
            assert (await post(http, "/runs/a-1/cancel", reason="test")).status_code == 501
        assert (await app.get("a-1").info()).error is None
        async with connected(app, audit=entries.append) as http:
            assert (await post(http, "/runs/a-1/cancel", reason="test")).status_code == 303
    assert [each.outcome for each in entries] == ["requested", "done"]
