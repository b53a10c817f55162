"""The commands that read, on every database."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import App, OutboxEvent, WorkflowFailedError
from perdure.codecs import Encrypted
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.storage.stores import shift_clock
from tests.cli.programs import Cli
from tests.cli.shop import counter, order, until_unpaid
from tests.conftest import BackendDatabase
from tests.support.storages import Database, storage_of

RUN_FIELDS = (
    "id workflow status input result error state started_at updated_at finished_at deadline parent children previous "
    "waiting_for worker lease_expires_at attempts stuck"
).split()
STEP_FIELDS = "id name kind status attempts input result error started_at finished_at child".split()


def write_encrypting_app(path: Path, url: str, more: str = "") -> None:
    """Write a module with an App that encrypts, and with more lines."""
    lines = f"from perdure import App\nfrom perdure.codecs import Encrypted\n{more}"
    path.write_text(f"{lines}app = App({url!r}, workflows=[], codec=Encrypted({{'k': bytes(32)}}))\n")


async def fill(database: Database) -> None:
    """Leave a run that waits, with a child, and one that failed."""
    async with App(database.url):
        waiting = await order.options(id="o-1").start("A-1")
        with suppress(WorkflowFailedError):
            await (await order.options(id="o-2").start("A-2", -1)).result(60)
        await until_unpaid(waiting)


async def test_runs_are_listed_shown_explained_and_traced(
    database: Database, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database)
    url = ("--database", database.url)

    found = (await cli("runs", "-o", "json", *url)).json
    assert found["next"] is None
    assert {run["id"]: run["status"] for run in found["runs"]} == {
        "o-1": "waiting_for_message",
        "o-1/2": "completed",
        "o-2": "failed",
    }
    assert list(found["runs"][0]) == RUN_FIELDS

    (failed,) = (await cli("runs", "state:failed", "input.order_id:A-2", "-o", "json", *url)).json["runs"]
    assert failed["error"]["type"] == "perdure.errors.TerminalError"
    assert (await cli("runs", "--workflow", "cli.order", "--count", *url)).out == "2\n"
    assert (await cli("runs", "started:>1h", *url)).err == "no runs match\n"
    assert (await cli("runs", "--status", "waiting", "--fields", "id", "-o", "jsonl", *url)).out == '{"id": "o-1"}\n'

    monkeypatch.setattr("perdure.cli.commands.runs.COUNT_MAX", 1)
    assert (await cli("runs", "--workflow", "cli.order", "--count", *url)).out == "more than 1\n"
    assert (await cli("runs", "--count", "-o", "json", *url)).json == {"count": 1, "is_exact": False}
    assert (await cli("runs", "state:failed", "--count", "-o", "json", *url)).json == {"count": 1, "is_exact": True}

    page = (await cli("runs", "--limit", "2", "-o", "json", *url)).json
    noted = (await cli("runs", "--limit", "2", *url)).err
    assert f"--after '{page['next']}'\n" in noted  # a token has characters that a shell would interpret
    rest = (await cli("runs", "--limit", "2", "--after", page["next"], "-o", "json", *url)).json
    assert [run["id"] for run in page["runs"] + rest["runs"]] == [run["id"] for run in found["runs"]]

    shown = (await cli("show", "o-1", "-o", "json", *url)).json
    assert list(shown) == [*RUN_FIELDS, "steps"]
    assert list(shown["steps"][0]) == STEP_FIELDS
    assert [(step["name"], step["child"]) for step in shown["steps"]] == [
        ("cli.charge", None),
        ("cli.pack", "o-1/2"),
        ("wait_event", None),
    ]
    why = (await cli("why", "o-1", "-o", "json", *url)).json
    assert (why["situation"], why["worker"]) == ("waiting", None)
    assert why["text"] in (await cli("why", "o-1", *url)).out or "cli.paid" in why["text"]

    tree = (await cli("trace", "o-1", "-o", "json", *url)).json
    assert tree["steps"][1]["run"]["id"] == "o-1/2"
    assert tree["steps"][1]["run"]["steps"][0]["name"] == "cli.charge"
    lines = (await cli("trace", "o-1", *url)).out.splitlines()
    assert lines[0].startswith("cli.order o-1 waiting_for_message")
    assert lines[1].startswith("├─ ✓ cli.charge  receipt A-1")
    assert lines[2].startswith("├─ ✓ child cli.pack o-1/2 completed")
    assert lines[3].startswith("│  └─ ✓ cli.charge")
    assert lines[4].startswith("└─ … wait_event [event]  waiting")

    history = [entry["kind"] for entry in (await cli("history", "o-2", "-o", "json", *url)).json["history"]]
    assert history == ["ActivityFailed", "WorkflowFailed"]


async def test_earlier_execution_of_a_run_has_its_history(file: Database, cli: Cli) -> None:
    async with App(file.url):
        await counter.options(id="c-1")(1)
    url = ("-o", "json", "--database", file.url)
    for id, receipt in (("c-1~1", "receipt A-1"), ("c-1", "receipt A-0")):
        (entry,) = (await cli("history", id, *url)).json["history"]
        (step,) = (await cli("show", id, *url)).json["steps"]
        (traced,) = (await cli("trace", id, *url)).json["steps"]
        assert (entry["step"], entry["data"], step["result"]) == ("1:cli.charge", receipt, receipt)
        assert step["id"] == traced["id"] == "1:cli.charge"


async def test_database_is_diagnosed_and_queried_read_only(database: Database, cli: Cli) -> None:
    await fill(database)
    url = ("--database", database.url)
    is_safe = database.backend == "sqlite"  # the servers of the tests lose commits in a power cut, to be fast
    checks = (await cli("doctor", "-o", "json", *url, code=0 if is_safe else 1)).json["checks"]
    found = {check["check"]: check["state"] for check in checks}
    assert {name for name, state in found.items() if state == "problem"} == (set() if is_safe else {"server"})
    assert {"python", "packages", "migrations", "indexes", "clock", "workers", "lag", "timers", "outbox"} <= set(found)
    assert found["indexes"] == "ok"

    rows = await cli("sql", "SELECT instance_id, status FROM workflow_instances ORDER BY 1;", "-o", "jsonl", *url)
    assert rows.out.splitlines()[0] == '{"instance_id": "o-1", "status": "waiting_for_message"}'
    refused = await cli("sql", "SELECT no_such_column FROM workflow_instances", *url, code=1)
    assert refused.err.startswith("perdure: the database refused the statement: ")
    if database.backend == "postgresql":  # whose numbers may be none
        numbers = (await cli("sql", "SELECT 'NaN'::numeric AS a, 'Infinity'::float8 AS b", "-o", "json", *url)).json
        assert numbers["rows"] == [{"a": "NaN", "b": "inf"}]

    top = (await cli("top", "-o", "json", *url)).json
    assert (top["waiting"], top["counts"]["failed"], top["workers_live"]) == (1, 1, 0)
    migrations = (await cli("migrate", "-o", "json", *url)).json["migrations"]
    assert {each["state"] for each in migrations} == {"applied"}
    assert (await cli("workers", *url)).err == "no workers\n"
    assert (await cli("outbox", *url)).err == "no events\n"


@pytest.mark.parametrize(
    "begin",
    ["SELECT 1--1", "SELECT 'a\\'', 1", "SELECT 1 # '\n", "SELECT 1e0"],
    ids=["dashes", "escape", "hash", "number"],
)
async def test_statement_is_read_as_mysql_reads_it(cli: Cli, backend_database: BackendDatabase, begin: str) -> None:
    async with backend_database("mysql") as database:
        await fill(database)
        url = ("--database", database.url)
        delete = "SET SESSION TRANSACTION READ WRITE; COMMIT; DELETE FROM workflow_instances"
        for rest in (f"; {delete} -- '", f"; {delete} # '", "INTO OUTFILE '/tmp/perdure' # '"):
            assert "allowed" in (await cli("sql", f"{begin}{rest}", *url, code=2)).err
        assert (await cli("runs", "--count", *url)).out == "3\n"


async def test_quoted_words_comments_and_comparisons_are_no_writes(database: Database, cli: Cli) -> None:
    text = "SELECT 4 / 2 AS a, 'it''s; DELETE' AS b -- INTO\n WHERE 1 != 2 /* ; UPDATE */"
    found = await cli("sql", text, "-o", "json", "--database", database.url)
    assert found.json["rows"] == [{"a": 2, "b": "it's; DELETE"}]


async def test_doctor_reports_work_that_no_worker_does(database: Database, cli: Cli) -> None:
    async with App(database.url, workflows=[]) as app:
        await order.options(id="o-1").start("A-1")
        storage = storage_of(app)
        shift_clock(storage, timedelta(minutes=-5))  # a run that has been due for five minutes
        await order.options(id="o-2").start("A-1")
        shift_clock(storage, timedelta(0))
        done = await cli("doctor", "-o", "json", "--database", database.url, code=1)
        found = {check["check"]: check for check in done.json["checks"]}
        assert found["lag"]["state"] == "problem"
        assert found["stuck runs"]["state"] == "problem"
        assert found["stuck runs"]["advice"] == "perdure runs --stuck, and perdure why ID"
        why = (await cli("why", "o-2", "-o", "json", "--database", database.url)).json
        assert why["situation"] == "unserved"
        (worker,) = (await cli("workers", "-o", "json", "--database", database.url)).json["workers"]
        assert worker == {**worker, "id": app.worker_id, "is_live": True, "workflows": [], "lease_sec": 15.0}


async def test_doctor_reports_a_missing_index(file: Database, cli: Cli) -> None:
    storage = await file.storage()
    await storage.db().execute("DROP INDEX idx_instances_claimable")
    done = await cli("doctor", "-o", "json", "--database", file.url, code=1)
    (check,) = [check for check in done.json["checks"] if check["check"] == "indexes"]
    assert (check["state"], check["found"]) == ("problem", "missing: idx_instances_claimable")


async def test_history_is_exported_and_redacted(file: Database, cli: Cli, tmp_path: Path) -> None:
    await fill(file)
    await cli("history", "export", "o-2", "plain.json", "--database", file.url)
    await cli("history", "export", "o-2", "redacted.json", "--redact", "--database", file.url)
    await cli("history", "sample", "sampled", "--database", file.url)
    assert "A-2" in (tmp_path / "plain.json").read_text()
    assert "A-2" not in (tmp_path / "redacted.json").read_text()
    assert [path.name for path in (tmp_path / "sampled").iterdir()] == ["cli.order-1.json"]


async def test_text_that_the_code_does_not_take_needs_a_function_that_redacts(
    file: Database, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "cli_dated.py").write_text(
        "from datetime import date\n"
        "from perdure import workflow\n"
        "@workflow(name='cli.dated')\n"
        "async def dated(day: date) -> None: ...\n"
        "def keep(place, value):\n"
        "    return value\n"
    )
    shared = ("--app", "cli_dated", "--database", file.url)
    try:
        await cli("start", "cli.dated", "--id", "d-1", "-i", '{"day": "2026-11-01"}', "--after", "1h", *shared)
        for command in (["export", "d-1", "dated.json"], ["sample", "histories"]):
            refused = await cli("history", *command, "--redact", *shared, code=2)
            assert "name a function that keeps some with --redact-with module:function" in refused.err
            await cli("history", *command, "--redact-with", "cli_dated:keep", *shared)
    finally:
        del WORKFLOWS["cli.dated"]  # no other test may start it


async def test_upgrade_check_replays_the_runs_of_a_module(file: Database, cli: Cli) -> None:
    await fill(file)
    done = await cli("check-upgrade", "tests.cli.shop", "-o", "json", "--database", file.url)
    assert done.json["ok"]
    assert done.json["checked"]["cli.order"] == {"replayed": 1, "live": 1}
    assert (await cli("check-upgrade", "--app", "tests.cli.shop", "-o", "json", "--database", file.url)).out == done.out


async def test_upgrade_check_uses_the_codec_of_the_module(
    file: Database, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_encrypting_app(tmp_path / "cli_encrypted.py", file.url, "from tests.cli.shop import *\n")
    monkeypatch.syspath_prepend(tmp_path)
    await cli("start", "cli.order", "--id", "o-1", "--input", '{"order_id": "A-1"}', "--app", "cli_encrypted")
    for name in ("cli_encrypted", "cli_encrypted:app"):
        assert (await cli("check-upgrade", name, "-o", "json", "--database", file.url)).json["ok"], name


async def test_bench_uses_a_schema_or_database_of_its_own(database: Database, cli: Cli) -> None:
    done = await cli("bench", "--runs", "3", "--steps", "1", "-o", "json", "--database", database.url)
    assert done.json["dialect"] == database.backend
    assert (await cli("runs", "--count", "--database", database.url)).out == "0\n"


async def test_values_are_decoded_and_encoded_as_the_app_does(
    file: Database, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_encrypting_app(tmp_path / "cli_secrets.py", file.url)
    monkeypatch.syspath_prepend(tmp_path)
    data = '{"order_id": "confidential"}'
    app = ("--app", "cli_secrets:app")
    await cli("start", "cli.order", "--id", "o-1", "--input", data, *app)
    assert (await cli("show", "o-1", "-o", "json", *app)).json["input"] == {"order_id": "confidential"}
    plain = await cli("show", "o-1", "-o", "json", "--database", file.url)
    assert "confidential" not in plain.out
    stored = await cli("sql", "SELECT input_data FROM workflow_instances", "--database", file.url)
    assert "confidential" not in stored.out


async def test_error_of_a_parked_event_is_shown_with_the_key_only(file: Database, cli: Cli) -> None:
    async with App(file.url, workflows=[], codec=Encrypted({"k1": bytes(32)})) as app:
        storage = storage_of(app)
        await storage.add_outbox_event(OutboxEvent("e-1", "order.paid", "shop", b'{"card": 4000}'))
        await storage.mark_outbox_event_failed("e-1", error="no route for confidential")
    url = ("--database", file.url)
    hidden = "<encrypted with key 'k1'>"
    (event,) = (await cli("outbox", "list", "-o", "json", *url)).json["events"]
    assert (event["last_error"], event["data"]) == (hidden, hidden)
    assert hidden in (await cli("outbox", "list", *url)).out
    assert (await cli("doctor", "-o", "json", *url, code=1)).json["checks"][-1]["found"].endswith(f" was: {hidden}")
