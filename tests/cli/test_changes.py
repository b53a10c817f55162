"""The commands that change runs."""

from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest

from perdure import App, Client, OutboxEvent, WorkflowCancelledError, WorkflowFailedError, WorkflowStatus
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.inspection import list_events
from perdure.storage.stores import shift_clock
from tests.cli.programs import Cli
from tests.cli.shop import listener, order, until_unpaid
from tests.engine.waiting import status_of, until
from tests.support.storages import Database, storage_of

SHOP = ("--app", "tests.cli.shop")


async def test_run_is_started_by_name_and_released_by_an_event(database: Database, cli: Cli) -> None:
    url = ("--database", database.url)
    async with App(database.url) as app:
        data = '{"order_id": "A-1", "amount": 2}'
        assert (await cli("start", "cli.order", "--id", "o-1", "-i", data, *SHOP, *url)).out == "o-1\n"
        assert (await cli("start", "cli.order", "--id", "o-1", "-i", data, *SHOP, *url)).out == "o-1\n"
        await until_unpaid(app.get("o-1"))
        await cli("send", "cli.paid", '{"order_id": "A-1"}', *url)
        assert await app.get("o-1").result(60) == "receipt A-1"
        waiting = await listener.options(id="l-1").start()
        await status_of(waiting, WorkflowStatus.WAITING_FOR_MESSAGE)
        await cli("publish", "cli.news", "[1]", *url)
        assert await waiting.result(60) == [1]
        done = await cli("start", "cli.pack", "-i", '{"order_id": "A-1"}', "--wait", "-o", "json", *url)
        assert done.json["result"] == 3
        failed = await cli("start", "cli.order", "-i", '{"order_id": "A", "amount": -1}', "--wait", *url, code=1)
        assert ("failed" in failed.err, failed.out) == (True, "")
        failing = ("start", "cli.order", "-i", '{"order_id": "A", "amount": -1}', "--wait", "-o", "json")
        failed = await cli(*failing, *url, code=1)
        assert (failed.problem["code"], failed.json["status"]) == ("engine.workflow_failed", "failed")


async def test_values_come_from_the_standard_input(file: Database, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    url = ("--database", file.url)

    async def with_input(text: str, *arguments: str) -> str:
        monkeypatch.setattr("sys.stdin", StringIO(text))
        return (await cli(*arguments, *url)).out

    async with App(file.url) as app:
        await with_input('{"order_id": "A-1", "amount": 2}', "start", "cli.order", "--input", "-", "--id", "o-1", *SHOP)
        await until_unpaid(app.get("o-1"))
        await with_input('{"order_id": "A-1"}', "send", "cli.paid", "-", "--to", "o-1")
        assert await app.get("o-1").result(60) == "receipt A-1"
        waiting = await listener.options(id="l-1").start()
        await status_of(waiting, WorkflowStatus.WAITING_FOR_MESSAGE)
        await with_input("[1]", "publish", "cli.news", "-")
        assert await waiting.result(60) == [1]
    assert await with_input("SELECT 1 AS a", "sql", "-", "-o", "jsonl") == '{"a": 1}\n'


async def test_unknown_workflow_is_answered_with_the_names_of_the_user_only(file: Database, cli: Cli) -> None:
    url = ("--database", file.url)
    async with App(file.url, workflows=[order]):
        await order.options(id="order-1", after=3600).start("A-1")
    await cli("cancel", "--filter", "workflow:cli.order", "--reason", "test", "--yes", *url)  # a run of `perdure.bulk`
    assert "perdure.bulk" in (await cli("sql", "SELECT DISTINCT workflow_name FROM workflow_instances", *url)).out
    assert (await cli("start", "nope", *url, code=3)).err.endswith("known are: cli.order\n")


async def test_start_without_the_code_is_checked_by_the_worker(file: Database, cli: Cli) -> None:
    url = ("--database", file.url)
    known = WORKFLOWS.pop("cli.order")  # as in a process that does not import the module
    try:
        unknown = await cli("start", "cli.order", *url, code=3)
        assert "workflow 'cli.order' is unknown" in unknown.err
        async with App(file.url, workflows=[order]):
            started = await cli("start", "cli.order", "-i", '{"order_id": "A-1"}', "--after", "1h", *url)
    finally:
        WORKFLOWS["cli.order"] = known
    async with Client(file.url) as client:
        info = await client.info(started.out.strip())
    assert (info.workflow, info.status, dict(info.input)) == (
        "cli.order",
        WorkflowStatus.WAITING_FOR_TIMER,
        {"order_id": "A-1"},
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-i", "{}"], "needs an argument 'order_id'"),
        (["-i", '{"order_id": 3}'], "argument 'order_id'"),
        (["-i", '{"order_id": "A", "colour": 1}'], "has no parameter 'colour'"),
        (["-i", "[1]"], "must be a JSON object"),
        (["-i", "{order_id}"], "is no JSON"),
        (["-i", "@missing.json"], "missing.json cannot be read"),
        (["-i", '{"order_id": "A"}', "--after", "soon"], "--after must be a duration"),
        (["-i", '{"order_id": "A"}', "--at", "soon"], "--at must be a time"),
        (["-i", '{"order_id": "A"}', "--at", "2030-01-01", "--after", "1h"], "--at and --after exclude each other"),
        (["-i", '{"order_id": "A"}', "--id", "~x"], "~x"),
        (["-i", '{"order_id": "A"}', "--if-exists", "maybe"], "--if-exists must be"),
    ],
)
async def test_wrong_start_says_what_is_wrong(file: Database, cli: Cli, arguments: list[str], message: str) -> None:
    done = await cli("start", "cli.order", *arguments, *SHOP, "--database", file.url, code=2)
    assert message in done.err
    assert done.err.count("\n") == 1


async def test_runs_are_cancelled_and_retried_by_id(file: Database, cli: Cli) -> None:
    url = ("--database", file.url)
    async with App(file.url) as app:
        runs = [await order.options(id=f"o-{n}").start(f"A-{n}") for n in range(3)]
        await cli("cancel", "o-0", "--reason", "fraud", *url)
        with pytest.raises(WorkflowCancelledError, match="fraud"):
            await runs[0].result(60)
        assert (await cli("retry", "o-0", *url)).out == "o-0~r1\n"
        assert "has not ended" in (await cli("cancel", "o-0", *url, code=1)).err
        several = await cli("cancel", "o-1", "nope", "o-2", "-o", "json", *url, code=3)
        assert [(each["id"], each["error"] is None) for each in several.json["runs"]] == [
            ("o-1", True),
            ("nope", False),
            ("o-2", True),
        ]
        again = await app.get("o-0~r1").info()
        assert again.input == {"order_id": "A-0"}
        failed = await order.options(id="f").start("A", -1)
        with pytest.raises(WorkflowFailedError):
            await failed.result(60)
        assert (await cli("retry", "f", "--from-step", "1:cli.charge", *url)).out == "f~r1\n"
        assert "has no step" in (await cli("retry", "f", "--from-step", "9:x", *url, code=1)).err


async def test_runs_are_changed_by_filter_after_a_dry_run(file: Database, cli: Cli) -> None:
    url = ("--database", file.url)
    async with App(file.url, workflows=[]) as app:
        for number in range(3):
            await order.options(id=f"o-{number}").start(f"A-{number}")
        await listener.options(id="l").start()
        bulk = ("cancel", "--filter", "workflow:cli.order")
        assert (await cli(*bulk, "--dry-run", *url)).out == "would cancel: 3, skipped: 0, failed: 0\n"
        refused = await cli(*bulk, *url, code=2)
        assert "cancel 3 runs: add --yes" in refused.err
        done = await cli(*bulk, "--yes", "-o", "json", *url)
        expected = {"action": "cancel", "done": 3, "skipped": 0, "failed": {}, "failed_count": 0, "dry_run": False}
        assert done.json == {**expected, "run": done.json["run"]}
        shown = await cli("show", done.json["run"], "-o", "json", *url)
        assert shown.json["state"] == {**shown.json["state"], "action": "cancel", "found": 3, "done": 3}
        assert await app.runs(workflow="cli.listener", status="running").count() == 1
        assert (await cli("retry", "--filter", "state:failed", *url)).out == "no runs to retry match the filter\n"
        await cli("cancel", "--filter", "", "--yes", *url, code=2)
        await cli("cancel", *url, code=2)
        await cli("cancel", "o-1", "--dry-run", *url, code=2)
        await cli("retry", "--filter", "state:cancelled", "--from-step", "x", *url, code=2)


async def test_worker_of_an_action_does_not_warn_of_workflows_that_it_is_not_meant_to_serve(
    file: Database, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(file.url) as client:
        shift_clock(storage_of(client), timedelta(minutes=-5))
        await listener.options(id="l").start()
        await order.options(id="o-1").start("A-1")
    done = await cli("cancel", "--filter", "workflow:cli.order", "--yes", "--database", file.url)
    assert done.out == "cancel: 1, skipped: 0, failed: 0\n"
    assert "no worker has taken" not in caplog.text


async def test_runs_that_cannot_be_changed_are_listed(
    file: Database, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.errors import StorageError

    async with App(file.url, workflows=[]):
        await order.options(id="o-1").start("A-1")

        async def refuse(self: Client, instance_id: str, reason: str = "") -> None:
            raise StorageError("the disk is full")

        monkeypatch.setattr(Client, "cancel", refuse)
        done = await cli("cancel", "--filter", "state:running", "--yes", "--database", file.url, code=1)
    assert done.out == "cancel: 0, skipped: 0, failed: 1\n  o-1: StorageError: the disk is full\n"


async def test_old_data_is_deleted_after_a_dry_run(file: Database, cli: Cli) -> None:
    url = ("--database", file.url)
    async with App(file.url):
        with pytest.raises(WorkflowFailedError):
            await (await order.options(id="o-1").start("A", -1)).result(60)
    counted = await cli("cleanup", "--finished", "0.000001s", "--dry-run", "-o", "json", *url)
    assert counted.json == {"finished": 1, "messages": 0, "outbox": 0, "dry_run": True}
    assert (await cli("cleanup", "--finished", "0.000001s", *url)).out.startswith("deleted 1 runs")
    await cli("show", "o-1", *url, code=3)
    assert "say what to delete" in (await cli("cleanup", *url, code=2)).err
    assert "above 0" in (await cli("cleanup", "--finished", "0s", *url, code=2)).err


async def test_cleanup_recognises_duplicates_for_as_long_as_it_is_told(file: Database, cli: Cli) -> None:
    url = ("--database", file.url)
    short = ("cleanup", "--messages", "0.000001s", *url)

    async def stored() -> int:
        """Send the event, and return how many messages there are."""
        async with Client(file.url) as client:
            await client.send_event("paid", 1, source="bank", id="e-1")
            return len(await client._storage.get_pending_channel_messages("paid"))

    assert await stored() == 1
    assert (await cli(*short)).out.startswith("deleted 0 runs, 1 messages")
    assert await stored() == 0
    await cli(*short, "--message-ids", "0.000001s")
    assert await stored() == 1
    assert (
        "--message-ids needs --messages"
        in (await cli("cleanup", "--finished", "1d", "--message-ids", "1d", *url, code=2)).err
    )
    assert "above 0" in (await cli(*short, "--message-ids", "0s", code=2)).err


async def test_parked_events_are_listed_and_published_again(file: Database, cli: Cli) -> None:
    url = ("--database", file.url)
    accepts = False
    published: list[str] = []

    async def publisher(event: OutboxEvent) -> None:
        if not accepts:
            raise ValueError("the broker refuses")
        published.append(event.event_id)

    async with App(file.url, publisher=publisher) as app:
        await app.send_event("cli.done", {"n": 1}, id="e-1")
        storage = await file.storage()
        await until(lambda: _has_error(app))
        await storage.mark_outbox_event_failed("e-1", error="the broker refuses")
        (event,) = (await cli("outbox", "list", "--status", "invalid", "-o", "json", *url)).json["events"]
        assert event == {**event, "id": "e-1", "type": "cli.done", "data": {"n": 1}, "last_error": "the broker refuses"}
        assert (await cli("doctor", "-o", "json", *url, code=1)).json["checks"][-1]["state"] == "problem"
        accepts = True
        await cli("outbox", "retry", "--all", *url)
        await until(lambda: "e-1" in published)
    await cli("outbox", "retry", "nope", *url, code=3)
    await cli("outbox", "retry", *url, code=2)


async def test_all_parked_events_are_published_again_however_many(
    file: Database, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.cli.commands.outbox.PAGE", 2)
    storage = await file.storage()
    async with Client(file.url, outbox=True) as client:
        for number in range(5):
            await client.send_event("cli.done", {"n": number}, id=f"e-{number}")
            await storage.mark_outbox_event_failed(f"e-{number}", error="the broker refuses")
    done = await cli("outbox", "retry", "--all", "-o", "json", "--database", file.url)
    assert done.json["events"] == [{"id": f"e-{number}", "is_requeued": True} for number in range(5)]


async def _has_error(app: App) -> bool:
    return any(event.last_error for event in await list_events(app))


async def test_schedules_of_the_app_are_listed(file: Database, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cli_nightly.py").write_text(
        "from perdure import workflow\n"
        "@workflow(name='cli.nightly', cron='0 3 * * *', zone='Europe/Berlin')\n"
        "async def nightly() -> None: ...\n"
    )
    try:
        done = await cli("schedules", "--app", "cli_nightly", "-o", "json", "--database", file.url)
    finally:
        del WORKFLOWS["cli.nightly"]  # no other test may start it
    (schedule,) = done.json["schedules"]
    assert schedule == {
        **schedule,
        "workflow": "cli.nightly",
        "cron": "0 3 * * *",
        "zone": "Europe/Berlin",
        "last_run": None,
        "last_status": None,
    }
    assert schedule["last_at"] < schedule["next_at"]
    assert "part of the code" in (await cli("schedules", "--database", file.url, code=2)).err
