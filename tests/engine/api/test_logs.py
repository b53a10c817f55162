"""Logs: the messages with `logging.basicConfig(level=logging.INFO)`, and the fields in `extra`."""

import asyncio
import logging
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import App, Client, Retry, WorkflowFailedError, WorkflowStatus, activity, wait_event, workflow
from perdure.storage.migrations import versions
from perdure.testing.servers import PostgresServer
from tests.engine.versions import version
from tests.engine.waiting import row_of, status_of, stuck_runs, until, waiting
from tests.support.storages import Database

SOON = timedelta(seconds=60)
SHORT = timedelta(seconds=1)
SECRET = "hunter2"

# Real programs.

PROGRAM = """
import asyncio, logging, sys
from datetime import timedelta
from perdure import App, Retry, WorkflowCancelledError, WorkflowFailedError, activity, sleep, wait_event, workflow

logging.basicConfig(level=logging.INFO)
case, url, secret = sys.argv[1:]


class PaymentError(Exception):
    pass


@activity(retry=Retry(attempts=3, initial=timedelta(milliseconds=10)))
async def charge(card: str) -> str:
    if case in ("failed", "compensated"):
        raise PaymentError("card declined")
    if case == "slow":
        print("charging", flush=True)
        await asyncio.Event().wait()
    return card


@activity
async def reserve() -> int:
    return 1


@reserve.compensation(retry=Retry(attempts=1))
async def release(*, result: int) -> None:
    raise OSError("warehouse closed")


@workflow
async def order(card: str) -> str:
    if case == "compensated":
        await reserve()
    charged = await charge(card)
    if case == "cancelled":
        await wait_event("never")
    return charged


async def main() -> None:
    app = App(url, worker_id="w1", drain_timeout=timedelta(seconds=0.5))
    if case == "slow":
        async with App(url, workflows=[]):
            await order.options(id="order-1").start(secret)
        await app.serve()
        return
    async with app:
        handle = await order.options(id="order-1").start(secret)
        if case == "cancelled":
            await handle.cancel("customer changed their mind")
        try:
            await handle.result()
        except (WorkflowFailedError, WorkflowCancelledError):
            pass


asyncio.run(main())
"""
STARTED = "INFO:perdure.engine:worker w1 started, serving 1 workflow: order"
STOPPED = "INFO:perdure.engine:worker w1 stopped"
_DURATION = re.compile(r"\b[\d.e+-]+ s\b")


def plain(text: str) -> list[str]:
    """The lines of a log, with all durations alike."""
    return _DURATION.sub("N s", text).splitlines()


@asynccontextmanager
async def program(case: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program above, as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, case, url, SECRET, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def output(case: str, url: str) -> list[str]:
    async with program(case, url) as process, asyncio.timeout(60):
        _, stderr = await process.communicate()
        assert process.returncode == 0, stderr.decode()
    assert SECRET not in stderr.decode()
    return plain(stderr.decode())


async def test_completed_run_logs_nothing(shared: Database) -> None:
    assert await output("completed", shared.url) == [STARTED, STOPPED]


@pytest.mark.call("observe")
async def test_failed_run_logs_its_retries_and_its_reason(shared: Database) -> None:
    reason = "PaymentError: card declined"
    assert await output("failed", shared.url) == [
        STARTED,
        f"WARNING:perdure.engine:run order-1 (order) retries charge in N s (attempt 1 of 3 failed): {reason}",
        f"WARNING:perdure.engine:run order-1 (order) retries charge in N s (attempt 2 of 3 failed): {reason}",
        f"ERROR:perdure.engine:run order-1 (order) failed after 3 attempts: {reason}",
        STOPPED,
    ]


async def test_failed_compensation_is_logged_as_an_error(shared: Database) -> None:
    found = await output("compensated", shared.url)
    assert found[3:] == [
        "ERROR:perdure.engine:run order-1 (order) could not compensate step 1:reserve: release failed: OSError: "
        "warehouse closed",
        "ERROR:perdure.engine:run order-1 (order) failed after 3 attempts: PaymentError: card declined",
        STOPPED,
    ]


async def test_cancelled_run_is_logged_at_info(shared: Database) -> None:
    assert await output("cancelled", shared.url) == [
        STARTED,
        "INFO:perdure.engine:run order-1 (order) was cancelled: customer changed their mind",
        STOPPED,
    ]


async def test_migrations_are_logged_when_they_are_applied(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fresh.db"
    all_of_them = versions("sqlite")
    migrated = (
        f"INFO:perdure.storage:applied {len(all_of_them)} migrations to the sqlite database, "
        f"up to version {all_of_them[-1]}"
    )
    assert await output("completed", url) == [migrated, STARTED, STOPPED]
    assert await output("completed", url) == [STARTED, STOPPED]


async def test_worker_that_gets_sigterm_logs_how_it_drains(shared: Database) -> None:
    async with program("slow", shared.url) as process, asyncio.timeout(60):
        assert process.stdout is not None
        assert (await process.stdout.readline()).strip() == b"charging"
        process.send_signal(signal.SIGTERM)
        _, stderr = await process.communicate()
    lines = [line for line in plain(stderr.decode()) if "worker w1" in line]
    assert lines == [
        STARTED,
        "INFO:perdure.engine:worker w1 is draining: 1 run(s) have up to N s to finish",
        "WARNING:perdure.engine:worker w1 hands over 1 run(s) that did not finish within N s",
        STOPPED,
    ]


# In this process.


@dataclass
class Lines:
    """What was logged at INFO or above."""

    caplog: pytest.LogCaptureFixture

    @property
    def records(self) -> list[logging.LogRecord]:
        return [each for each in self.caplog.records if each.name.startswith("perdure")]

    def of(self, text: str) -> Sequence[logging.LogRecord]:
        return [each for each in self.records if text in each.getMessage()]

    def messages(self) -> list[tuple[str, str]]:
        """Levels and messages, without the starts and stops of workers and the migrations of a database in memory."""
        found = [(each.levelname, " ".join(plain(each.getMessage()))) for each in self.records]
        usual = re.compile(r"worker \S+ (started|stopped|is draining)|applied \d+ migrations")
        return [each for each in found if not usual.match(each[1])]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "perdure")
    return Lines(caplog)


gates: dict[str, asyncio.Event] = {}


@activity(retry=Retry(attempts=1))
async def blocked(name: str) -> str:
    await gates.setdefault(name, asyncio.Event()).wait()
    return name


@activity(retry=Retry(attempts=1))
async def fail_with(secret: str) -> None:
    raise ValueError("no")


@pytest.fixture(autouse=True)
def forget() -> None:
    gates.clear()


@workflow(name="logs.order")
async def order(gate: str) -> str:
    return await blocked(gate)


@workflow(name="logs.lenient")
async def lenient() -> str:
    try:
        await fail_with(SECRET)
    except ValueError:
        return "done without it"
    return ""


async def test_failed_step_that_the_workflow_catches_is_not_logged_as_a_warning(
    database: Database, lines: Lines
) -> None:
    async with App(database.url):
        assert await (await lenient.start()).result(SOON) == "done without it"
    assert lines.messages() == []


@workflow(name="logs.broken")
async def broken() -> None:
    raise KeyError("its own mistake")


async def test_fields_of_a_message_are_in_extra(database: Database, lines: Lines) -> None:
    async with App(database.url, worker_id="w1"):
        with pytest.raises(WorkflowFailedError):
            await (await broken.options(id="a").start()).result(SOON)
    assert lines.messages() == [("ERROR", "run a (logs.broken) failed: KeyError: 'its own mistake'")]
    fields = vars(lines.of("failed")[0])
    wanted = {
        "event": "RunFailed",
        "run_id": "a",
        "workflow": "logs.broken",
        "worker": "w1",
        "error_type": "builtins.KeyError",
        "error_message": "'its own mistake'",
        "step": None,
        "attempts": 0,
    }
    assert {name: fields[name] for name in wanted} == wanted


async def one(secret: str) -> str:
    await fail_with_nothing(secret)
    return str((await wait_event("logs.go")).data)


async def two(secret: str) -> str:
    await fail_with_nothing(f"another {secret}")
    return str((await wait_event("logs.go")).data)


@activity
async def fail_with_nothing(secret: str) -> None: ...


async def test_stuck_run_is_logged_as_a_warning_without_arguments(shared: Database, lines: Lines) -> None:
    async with App(shared.url, workflows=[version(one, "logs.changing")]) as app:
        await version(one, "logs.changing").options(id="a").start(SECRET)
        await waiting(app, "a")
        await app.send_event("logs.go", None)
    lines.caplog.clear()
    async with App(shared.url, workflows=[version(two, "logs.changing")], lease=SHORT) as app:
        await until(lambda: bool(lines.messages()))
        (run,) = await stuck_runs(app)
        assert run.stuck is not None
        assert SECRET in run.stuck.reason  # for callers that query it
    assert lines.messages()[0] == (
        "WARNING",
        "run a (logs.changing) is stuck after 1 try without progress, retrying in N s: NonDeterminismError: "
        "run 'a' (logs.changing): the history has 1:fail_with_nothing with different arguments than the code passes "
        "now; deploy compatible code, or guard the change with patched()",
    )
    assert not [each for each in lines.records if SECRET in repr(vars(each))]


@pytest.mark.parametrize(
    ("count", "names"),
    [(5, ": logs.1, logs.2, logs.3, logs.4, logs.5"), (6, ": logs.1, logs.2, logs.3, logs.4, logs.5 …")],
)
async def test_started_worker_names_at_most_five_workflows(
    database: Database, lines: Lines, count: int, names: str
) -> None:
    served = [version(order.function, f"logs.{number + 1}") for number in range(count)]
    async with App(database.url, workflows=served, worker_id="w1"):
        pass
    (started,) = lines.of("started")
    assert started.getMessage() == f"worker w1 started, serving {count} workflows{names}"


async def test_lost_lease_is_logged_as_one_warning(shared: Database, lines: Lines) -> None:
    async with App(shared.url, workflows=[order], lease=SHORT, worker_id="w1") as app, Client(shared.url) as client:
        handle = await order.options(id="a").start("gate")
        await until(lambda: "gate" in gates)
        rival = client._storage
        row = await row_of(client, "a")
        await rival.release_lock("a", row.locked_by or "")
        assert await rival.try_acquire_lock("a", "rival#0", 30) is not None
        await until(lambda: bool(lines.messages()))
        await until(lambda: not app._worker.executor.tasks)
        assert (await handle.info()).status is WorkflowStatus.RUNNING
    assert lines.messages() == [
        (
            "WARNING",
            "worker w1 lost its lease on run a (logs.order) and stops executing it: the lease expired, or another "
            "worker took the run over",
        )
    ]
    assert vars(lines.of("lost its lease")[0])["run_id"] == "a"


async def test_cancelling_an_executing_run_is_not_logged_as_a_lost_lease(shared: Database, lines: Lines) -> None:
    async with App(shared.url, workflows=[order], lease=SHORT):
        handle = await order.options(id="a").start("gate")
        await until(lambda: "gate" in gates)
        await handle.cancel("enough")
        await status_of(handle, WorkflowStatus.CANCELLED)
        await until(lambda: bool(lines.messages()))
    assert lines.messages() == [("INFO", "run a (logs.order) was cancelled: enough")]


async def taken_over(url: str, owners: Mapping[str, str]) -> None:
    """Let a worker complete runs whose leases have expired; `owners` names the owner of each."""
    async with Client(url) as client:
        for id, owner in owners.items():
            await order.options(id=id).start("gate")
            assert await client._storage.try_acquire_lock(id, owner, 0.05) is not None
        gates["gate"] = asyncio.Event()
        gates["gate"].set()

        async def have_expired() -> bool:
            return len(await client._storage.find_resumable_workflows(10)) == len(owners)

        await until(have_expired)
    async with App(url, workflows=[order], worker_id="w2") as app:
        assert await asyncio.gather(*(app.get(id).result(SOON) for id in owners)) == ["gate"] * len(owners)


async def test_takeover_names_both_workers_and_the_runs(shared: Database, lines: Lines) -> None:
    await taken_over(shared.url, dict.fromkeys("ab", "dead:1#0"))
    assert lines.messages() == [
        ("WARNING", "worker w2 takes over 2 run(s) of worker dead:1, whose lease expired: a, b"),
    ]


async def test_worker_does_not_take_over_from_itself(shared: Database, lines: Lines) -> None:
    await taken_over(shared.url, {"a": "w2#0", "b": "dead:1#0"})
    assert lines.messages() == [
        ("WARNING", "worker w2 takes over 1 run(s) of worker dead:1, whose lease expired: b"),
    ]


async def test_takeover_names_at_most_five_runs(shared: Database, lines: Lines) -> None:
    await taken_over(shared.url, {f"r{number}": "dead:1#0" for number in range(6)})
    assert lines.messages() == [
        ("WARNING", "worker w2 takes over 6 run(s) of worker dead:1, whose lease expired: r0, r1, r2, r3, r4 …"),
    ]


async def test_end_of_a_back_off_is_not_logged_as_a_takeover(shared: Database, lines: Lines) -> None:
    async with Client(shared.url) as client:
        await order.options(id="a").start("gate")
        lease = await client._storage.try_acquire_lock("a", "w1#0", 30)
        assert lease is not None
        await client._storage.back_off(lease, 1, "on purpose", 0.05)
    gates["gate"] = asyncio.Event()
    gates["gate"].set()
    async with App(shared.url, workflows=[order], worker_id="w2") as app:
        assert await app.get("a").result(SOON) == "gate"
    assert lines.of("takes over") == []


async def test_database_outage_is_logged_as_one_warning(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.database.backends.server.retries.RETRY_SEC", 1.0)
    with PostgresServer() as server:
        async with App(server.url, workflows=[order], lease=SHORT) as app:
            gates["gate"] = asyncio.Event()
            handles = [await order.options(id=id).start("gate") for id in ("a", "b")]
            await until(lambda: len(app._worker.executor.tasks) == 2)
            lines.caplog.clear()
            server.kill()
            await until(lambda: bool(lines.of("is unavailable")))
            await until(lambda: len(lines.of("lost its lease")) == 2)
            server.start()
            await until(lambda: bool(lines.of("is available again")))
            gates["gate"].set()
            assert [await handle.result(SOON) for handle in handles] == ["gate", "gate"]
    (unavailable,) = lines.of("the database is unavailable, retrying until it answers: ")
    assert unavailable.levelname == "WARNING"
    (again,) = lines.of("the database is available again after ")
    assert again.levelname == "INFO"
    assert [
        each for each in lines.messages() if "the database is" not in each[1] and "lost its lease" not in each[1]
    ] == []


async def test_worker_that_stops_during_an_outage_does_not_log_its_end(lines: Lines) -> None:
    with PostgresServer() as server:
        async with App(server.url, workflows=[order], lease=SHORT, drain_timeout=SHORT):
            server.kill()
            await until(lambda: bool(lines.of("is unavailable")))
    assert [level for level, message in lines.messages() if "the database is" in message] == ["WARNING"]


async def test_terminated_database_sessions_are_not_logged_as_errors(
    postgres_url: str, fresh_postgres_db: str, lines: Lines
) -> None:
    async with App(fresh_postgres_db, workflows=[order]) as app:
        handle = await order.options(id="a").start("gate")
        await until(lambda: "gate" in gates)
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = $1"
        name = await app._storage.db().fetchval("SELECT current_database()")
        await app._storage.db().fetch(kill, name)
        gates["gate"].set()
        assert await handle.result(SOON) == "gate"
    assert not [each for each in lines.messages() if each[0] == "ERROR"]


async def test_crashed_background_task_is_logged_as_an_error(
    database: Database, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with App(database.url, workflows=[order]) as app:

        async def crash() -> Any:
            monkeypatch.undo()
            raise KeyError("no such thing")

        monkeypatch.setattr(app._worker.work_loop, "look", crash)
        app._worker.wake()
        await until(lambda: bool(lines.messages()))
    assert lines.messages() == [
        ("ERROR", "background task 'work loop' crashed (1 in a row), restarting it in N s: KeyError: 'no such thing'")
    ]
    assert lines.of("crashed")[0].exc_info is not None


@activity(retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
async def secretive(password: str) -> str:
    raise ValueError("it did not work")


@workflow(name="logs.secretive")
async def keeps_secrets(password: str) -> str:
    try:
        return await secretive(password)
    except ValueError:
        return password


@pytest.mark.call("observe")
async def test_logs_are_structured_and_contain_no_payload(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "perdure")
    async with App(database.url):
        assert await (await keeps_secrets.start("hunter2")).result(SOON) == "hunter2"
    mine = [record for record in caplog.records if record.name.startswith("perdure")]
    events = {vars(record).get("event") for record in mine}
    assert {"RunStarted", "StepRetrying", "StepFailed", "RunCompleted"} <= events
    assert all({"run_id", "workflow"} <= vars(record).keys() for record in mine if record.message.startswith("run "))
    assert not [record for record in mine if "hunter2" in repr(vars(record))]
