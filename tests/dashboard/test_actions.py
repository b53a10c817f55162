"""Actions: they need a reason and a form of the dashboard, do what they say, and are recorded."""

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest

from perdure import App, Client, WorkflowCancelledError, WorkflowFailedError
from perdure.dashboard import AuditEntry
from perdure.model.records import OutboxEvent
from tests.conftest import BackendDatabase
from tests.dashboard import shop
from tests.dashboard.conftest import connected, post
from tests.dashboard.test_pages import failed, stuck
from tests.engine.waiting import until, waiting
from tests.support.storages import storage_of


async def test_run_is_cancelled_with_its_reason(app: App, http: httpx.AsyncClient) -> None:
    await shop.approval.options(id="a-1").start("A-1")
    await waiting(app, "a-1")
    assert (await post(http, "/runs/a-1/cancel", reason="out of stock")).headers[
        "location"
    ] == "/runs/a-1?note=cancelled"
    with pytest.raises(WorkflowCancelledError):
        await app.get("a-1").result(60)
    info = await app.get("a-1").info()
    assert info.error is not None
    assert info.error.message == "out of stock (by 127.0.0.1)"
    again = await post(http, "/runs/a-1/cancel", reason="out of stock")
    assert again.status_code == 409


async def test_run_is_retried_from_the_failed_step(app: App, http: httpx.AsyncClient) -> None:
    shop.broken.add("A-1")
    with pytest.raises(WorkflowFailedError):
        await shop.payment.options(id="p-1")("A-1")
    shop.broken.clear()
    assert "Retry from 2:shop.charge" in (await http.get("/runs/p-1")).text
    answer = await post(http, "/runs/p-1/retry", reason="card fixed", step="2:shop.charge")
    assert answer.headers["location"] == "/runs/p-1~r1?note=retried"
    assert await app.get("p-1~r1").result(60) == "receipt for A-1"
    page, document = (await http.get("/runs/p-1")).text, (await http.get("/runs/p-1.json")).json()
    assert document["lineage"]["last_retry"] == {"id": "p-1~r1", "workflow": "shop.payment", "status": "completed"}
    assert 'Last retry: <a class="id" href="/runs/p-1~r1">p-1~r1</a>' in page
    assert "Fix the cause, then retry the run." not in page
    assert "A new run starts with the same input, besides the last retry." in page
    assert (await http.get("/runs/p-1~r1.json")).json()["lineage"]["last_retry"] is None


async def test_compensated_run_is_retried_from_the_start_only(app: App, http: httpx.AsyncClient) -> None:
    id = await failed("A-1")
    shop.broken.clear()
    for query in ("", "?step=2:shop.charge"):
        page = (await http.get(f"/runs/{id}{query}")).text
        assert "Retry from 2:shop.charge" not in page
        reason = "A retry cannot begin with 2:shop.charge: 1:shop.reserve comes before it and was compensated"
        assert page.count(reason) == (2 if query else 1)
    refused = await post(http, f"/runs/{id}/retry", reason="card fixed", step="2:shop.charge")
    assert refused.status_code == 409  # the step before it was compensated
    answer = await post(http, f"/runs/{id}/retry", reason="card fixed")
    assert answer.headers["location"] == f"/runs/{id}~r1?note=retried"
    assert await app.get(f"{id}~r1").result(60) == "receipt for A-1"
    lineage = (await http.get(f"/runs/{id}.json")).json()["lineage"]
    assert [each["id"] for each in lineage["retries"]] == [f"{id}~r1"]


async def test_run_whose_compensation_failed_is_retried_from_the_step_that_was_to_be_undone(
    app: App, http: httpx.AsyncClient
) -> None:
    shop.broken.add("A-1")
    with pytest.raises(WorkflowFailedError):
        await shop.move.options(id="move-1")("A-1")
    shop.broken.clear()
    document, page = (await http.get("/runs/move-1.json")).json(), (await http.get("/runs/move-1")).text
    assert document["why"]["sentence"].endswith(
        "PaymentError: card of order A-1 declined. The compensation of step 2:shop.hire failed: "
        "PaymentError: the rental company does not answer."
    )
    assert document["why"]["advice"] == ("Undo by hand what was not compensated and fix the cause, then retry the run.")
    assert "All steps are executed again, also those that were not compensated." in page
    assert "A retry cannot begin with 3:shop.charge: 2:shop.hire comes before it and was to be compensated" in page
    assert '<input type="hidden" name="step" value="2:shop.hire">' in page
    answer = await post(http, "/runs/move-1/retry", reason="van given back", step="2:shop.hire")
    assert answer.headers["location"] == "/runs/move-1~r1?note=retried"
    assert await app.get("move-1~r1").result(60) == "receipt for A-1"


async def test_retry_is_offered_only_from_a_step_that_the_engine_accepts(app: App, http: httpx.AsyncClient) -> None:
    shop.broken.add("A-1")
    with pytest.raises(WorkflowFailedError):
        await shop.bundle.options(id="bundle-1")("A-1")
    shop.broken.clear()
    document, page = (await http.get("/runs/bundle-1.json")).json(), (await http.get("/runs/bundle-1")).text
    failed_step = document["failed_step"]
    assert f"A retry cannot begin with {failed_step}: 2:child comes before it and started a child" in page
    refused = await post(http, "/runs/bundle-1/retry", reason="card fixed", step=failed_step)
    assert refused.status_code == 409
    assert re.findall(r'<input type="hidden" name="step" value="([^"]*)">', page) == ["2:child"]
    assert (await post(http, "/runs/bundle-1/retry", reason="card fixed", step="2:child")).status_code == 303
    assert await app.get("bundle-1~r1").result(60) == "receipt for A-1"


async def test_missing_event_is_sent(app: App, http: httpx.AsyncClient) -> None:
    await shop.approval.options(id="a-1").start("A-1")
    await waiting(app, "a-1")
    form = {"type": "order.approved", "reason": "sender was down", "data": '{"order": "A-1", "by": "Ada"}'}
    assert (await post(http, "/runs/a-1/send", **form)).status_code == 303
    assert await app.get("a-1").result(60) == "approved by Ada"
    late = await post(http, "/runs/a-1/send", **form)
    assert late.status_code == 409
    assert "has ended: it takes no events" in late.text
    assert (await post(http, "/runs/a-1/send", **form, kind="letter")).status_code == 422
    assert (await post(http, "/runs/a-1/send", **{**form, "data": "{"})).status_code == 422
    assert (await post(http, "/runs/a-1/send", **{**form, "type": ""})).status_code == 422


async def test_message_is_sent_on_a_channel(app: App, http: httpx.AsyncClient) -> None:
    await shop.listener.options(id="l-1").start()
    await waiting(app, "l-1")
    assert '<option value="channel" selected>' in (await http.get("/runs/l-1")).text
    form = {"type": "shop.news", "kind": "channel", "reason": "test", "data": '"hello"'}
    sent = await post(http, "/runs/l-1/send", **form)
    assert "The message is published on its channel." in (await http.get(sent.headers["location"])).text
    assert await app.get("l-1").result(60) == "hello"


async def test_ended_run_is_deleted(app: App, http: httpx.AsyncClient) -> None:
    await shop.order.options(id="o-1")("A-1")
    await shop.approval.options(id="a-1").start("A-1")
    assert (await post(http, "/runs/a-1/delete", reason="test")).status_code == 409
    assert (await post(http, "/runs/o-1/delete", reason="test")).status_code == 303
    assert (await http.get("/runs/o-1")).status_code == 404


async def test_parked_event_is_requeued(app: App, http: httpx.AsyncClient) -> None:
    storage = storage_of(app)
    await storage.add_outbox_event(OutboxEvent("e-1", "order.paid", "shop", b"{}"))
    await storage.mark_outbox_event_failed("e-1", error="no route")
    assert (await post(http, "/outbox/requeue", event="e-1", reason="fixed")).status_code == 303
    assert [each.event_id for each in await storage.list_outbox_events("pending")] == ["e-1"]
    assert (await post(http, "/outbox/requeue", event="e-1", reason="fixed")).status_code == 409


async def test_many_runs_are_changed_after_a_preview(app: App, http: httpx.AsyncClient) -> None:
    for number in range(5):
        await shop.approval.options(id=f"a-{number}").start("A")
    await shop.order.options(id="o-1")("A-1")
    preview = await http.get("/bulk?action=cancel&q=workflow:shop.approval")
    assert "Cancel 5 runs" in preview.text
    form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', preview.text))
    await shop.approval.options(id="later").start("A")
    for _ in range(2):  # as with a double click
        answer = await post(http, "/bulk", **{**form, "count": "4", "reason": "closing"})
        assert answer.headers["location"] == f"/runs/{form['id']}?note=bulk"
    progress = await app.get(form["id"]).result(60)
    assert (progress["found"], progress["done"]) == (4, 4)  # no more than the preview showed
    page = await http.get(answer.headers["location"])
    assert "cancel: 4 of 4, skipped: 0, failed: 0" in page.text
    assert (await app.get("later").info()).error is None
    assert await app.runs(workflow="perdure.bulk").count() == 1
    assert (await http.get("/bulk.json?action=delete&q=workflow:shop.order")).json()["ids"] == ["o-1"]
    assert (await http.get("/bulk?action=cancel&q=")).status_code == 422
    assert (await http.get("/bulk?action=burn&q=state:failed")).status_code == 422
    assert (await post(http, "/bulk", action="burn", q="state:failed", reason="x")).status_code == 422
    assert (await post(http, "/bulk", action="cancel", q="state:failed", reason="x", id="~x")).status_code == 422


async def test_preview_counts_few_stuck_runs(
    app: App, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.dashboard.bulk.STUCK_MAX", 2)
    for number in range(3):
        await stuck(app, f"stuck-{number}")
    preview = (await http.get("/bulk?action=cancel&q=stuck:yes")).text
    assert "Cancel 2+ runs" in preview
    assert "An action changes at most 2 runs. Repeat it for the rest." in preview


async def test_runs_that_failed_for_one_cause_are_retried_together(app: App, http: httpx.AsyncClient) -> None:
    ids = [await failed(f"A-{number}") for number in range(3)]
    shop.broken.clear()
    (group,) = (await http.get("/index.json")).json()["failures"]
    answer = await post(http, "/bulk", action="retry", failure=group["fingerprint"], count="3", reason="fixed")
    assert (await app.get(_action(answer)).result(60))["done"] == 3
    for id in ids:
        assert (await app.get(f"{id}~r1").result(60)).startswith("receipt")


async def test_dashboard_without_workers_executes_its_actions(backend_database: BackendDatabase) -> None:
    async with backend_database("sqlite") as database, Client(database.url) as client:
        await shop.approval.options(id="a-1").start("A")
        async with connected(client) as http:
            answer = await post(http, "/bulk", action="cancel", q="workflow:shop.approval", reason="closing")
            assert (await client.get(_action(answer)).result(60))["done"] == 1
        await until(lambda: "perdure.bulk" not in [task.get_name() for task in asyncio.all_tasks()])
        info = await client.get("a-1").info()
    assert info.error is not None
    assert info.error.message == "closing (by 127.0.0.1)"


async def test_action_on_many_runs_needs_its_permission(app: App) -> None:
    async with connected(app, access=lambda _: {"retry"}) as http:
        assert (await post(http, "/bulk", action="cancel", q="state:running", reason="test")).status_code == 403
        preview = (await http.get("/bulk?action=cancel&q=state:running")).text
        assert "You may not cancel runs" in preview
        assert 'action="/bulk"' not in preview
    assert await app.runs(workflow="perdure.bulk").count() == 0


def _action(answer: httpx.Response) -> str:
    """Return the id of the action that a form has started."""
    return answer.headers["location"].removeprefix("/runs/").removesuffix("?note=bulk")


@pytest.mark.parametrize(
    ("headers", "token", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, None, 303),
        ({}, None, 303),  # an older browser, which sends no such header
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, None, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}, None, 403),
        ({"Origin": "http://evil.example"}, None, 403),
        ({"Sec-Fetch-Site": "same-origin"}, "", 403),
        ({"Sec-Fetch-Site": "same-origin"}, "x" * 43, 403),
    ],
)
async def test_forms_of_other_sites_do_nothing(
    app: App, http: httpx.AsyncClient, headers: Any, token: Any, status: int
) -> None:
    await shop.approval.options(id="a-1").start("A-1")
    await http.get("/")
    form = {"reason": "test", "csrf": http.cookies["perdure_csrf"] if token is None else token}
    assert (await http.post("/runs/a-1/cancel", data=form, headers=headers)).status_code == status
    assert ((await app.get("a-1").info()).error is not None) == (status == 303)


async def test_action_needs_a_reason(app: App, http: httpx.AsyncClient) -> None:
    await shop.approval.options(id="a-1").start("A-1")
    for reason in ("", "  ", "x" * 1001):
        assert (await post(http, "/runs/a-1/cancel", reason=reason)).status_code == 422
    assert (await app.get("a-1").info()).error is None
    assert (await http.get("/runs/a-1/cancel")).status_code in (404, 405)


async def test_actions_are_recorded_before_and_after(app: App, caplog: pytest.LogCaptureFixture) -> None:
    entries: list[AuditEntry] = []

    async def audit(entry: AuditEntry) -> None:
        entries.append(entry)

    await shop.approval.options(id="a-1").start("A-1")
    with caplog.at_level(logging.INFO, "perdure.audit"):
        async with connected(app, audit=audit) as http:
            await post(http, "/runs/a-1/cancel", reason="out of stock")
            await post(http, "/runs/a-1/delete", reason="tidy")
            await post(http, "/runs/nope/cancel", reason="typo")
    told = [(each.action, each.target, each.reason, each.actor) for each in entries]
    assert told[0] == told[1] == ("cancel", "a-1", "out of stock", "127.0.0.1")
    assert [each.outcome for each in entries[:2]] == ["requested", "done"]
    assert entries[-1].outcome.startswith("RunNotFoundError")
    assert "cancel of a-1 by 127.0.0.1: done (reason: out of stock)" in caplog.messages


async def test_action_that_cannot_be_recorded_is_not_carried_out(app: App) -> None:
    def audit(entry: AuditEntry) -> None:
        raise OSError("disk full")

    await shop.approval.options(id="a-1").start("A-1")
    async with connected(app, audit=audit) as http:
        assert (await post(http, "/runs/a-1/cancel", reason="test")).status_code == 500
    assert (await app.get("a-1").info()).error is None
