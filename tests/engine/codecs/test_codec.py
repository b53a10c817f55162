"""Runs whose values are encrypted, compressed or offloaded."""

import asyncio
import json
import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import (
    App,
    Client,
    OutboxEvent,
    Relay,
    RunHandle,
    SyncClient,
    WorkflowCancelledError,
    WorkflowFailedError,
    WorkflowStatus,
)
from perdure.codecs import Compressed, Encoded, Encrypted, FileBlobs, Offloaded, Unreadable, new_key
from perdure.codecs.pipeline import Pipeline
from perdure.errors import CodecError, ConfigurationError, LimitError, RunExistsError, TerminalError
from perdure.model.envelopes import MARK
from perdure.storage.encoding import encoding
from perdure.testing import check_upgrade, crash_everywhere, export_histories, export_history, history_of, replay
from tests.engine.codecs.secrets import (
    MARKER,
    declined,
    dump,
    everything,
    impatient,
    recurring,
    tried,
    undone,
    waiting,
)
from tests.engine.waiting import move_clock, row_of, stuck_runs, until
from tests.engine.waiting import waiting as until_waiting
from tests.support.databases import DATABASES
from tests.support.storages import Database

EVERYWHERE = pytest.mark.parametrize("shared", [*DATABASES, "reference"], indirect=True)
KEY, NEW_KEY = new_key(), new_key()
CODEC = [Compressed(above=500), Encrypted({"k1": KEY})]
ROTATED = Encrypted({"k2": NEW_KEY, "k1": KEY})
CARD = f"{MARKER} {'9' * 600}"  # long enough to be compressed
RECEIPT = f"receipt {CARD}"


@pytest.fixture(autouse=True)
def forget() -> None:
    undone.clear()
    tried.clear()


BACK_OFF = timedelta(minutes=1)  # longer than the back-off of a stuck run


async def _stuck(app: App, run: RunHandle[object]) -> str:
    async def is_stuck() -> bool:
        return [each.id for each in await stuck_runs(app)] == [run.id]

    await until(is_stuck)
    info = await run.info()
    assert info.stuck is not None
    return info.stuck.reason


# Everything that is stored.


@EVERYWHERE
async def test_every_value_is_encrypted_and_returned_as_it_was(shared: Database) -> None:
    sent: list[OutboxEvent] = []

    async def publish(event: OutboxEvent) -> None:
        sent.append(event)
        if len(sent) == 1:
            raise RuntimeError(f"no broker takes {event.event_data!r}")  # it is stored

    async with App(shared.url, codec=CODEC, publisher=publish) as app:
        run = await everything.options(id="all").start(CARD)
        await until_waiting(app, "all")
        await app.send_event("codecs.paid", {"card": "another"})
        await app.send_event("codecs.paid", {"card": CARD}, subject=CARD, id="once")
        await app.send_event("codecs.paid", {"card": CARD}, subject=CARD, id="once")  # an equal event of the outbox
        await app.publish("codecs.notes", {"note": CARD}, metadata={"by": CARD})
        ended = [RECEIPT, CARD, {"card": CARD}, CARD, {"note": CARD}, {"by": CARD}, {"child of": CARD}]
        assert await run.result(60) == ended
        with pytest.raises(LimitError, match="already used in the outbox"):
            await app.send_event("codecs.paid", {"card": "other"}, id="once")

        info = await run.info()
        assert (info.input, info.result, info.state) == ({"card": CARD}, ended, {"card": CARD})
        steps = {step.name: step for step in await run.steps()}
        assert steps["pay"].result == RECEIPT
        assert steps["pay"].input == {"card": CARD}
        assert steps["wait_event"].result == {"card": CARD}

        failed = await declined.options(id="failed").start(CARD)
        with pytest.raises(WorkflowFailedError) as error:
            await failed.result(60)
        assert repr(error.value.__cause__) == repr(TerminalError(f"{CARD} declined"))
        assert undone == [(CARD, RECEIPT)]
        stopped = await waiting.options(id="stopped").start(CARD)
        await until_waiting(app, "stopped")
        await stopped.cancel(f"because of {CARD}")
        with pytest.raises(WorkflowCancelledError, match=MARKER):
            await stopped.result(60)
        assert (await stopped.info()).error is not None
        await until(lambda: len({event.event_id for event in sent}) >= 2)
        assert {json.loads(event.event_data or b"")["card"] for event in sent} == {"another", CARD}

        stored = await dump(shared)
        assert b"aes256gcm:k1" in stored
        assert MARKER.encode() not in stored
        assert MARKER not in repr(app)


async def test_relay_publishes_what_it_can_decode(shared: Database) -> None:
    sent: list[OutboxEvent] = []

    async def publish(event: OutboxEvent) -> None:
        sent.append(event)

    async with Client(shared.url, codec=CODEC, outbox=True) as client:
        await client.send_event("codecs.paid", {"card": CARD})
    async with Relay(shared.url, publisher=publish, codec=CODEC):
        await until(lambda: bool(sent))
    assert json.loads(sent[0].event_data or b"") == {"card": CARD}


async def test_generations_and_retries_keep_their_values(shared: Database) -> None:
    async with App(shared.url, codec=CODEC) as app:
        run = await recurring.options(id="again").start(CARD, 2)
        assert await run.result(60) == RECEIPT
        assert (await app.info("again~1")).input == {"card": CARD, "left": 2}
        history = await history_of("again~1")
        assert history.rows[0].data == {"card": CARD}

        failed = await declined.options(id="failed").start(CARD)
        with pytest.raises(WorkflowFailedError):
            await failed.result(60)
        retried = await app.retry("failed")
        with pytest.raises(WorkflowFailedError):
            await retried.result(60)
        assert (await retried.info()).input == {"card": CARD}
        assert MARKER.encode() not in await dump(shared)


async def test_same_start_is_recognised_and_a_different_one_is_refused(shared: Database) -> None:
    async with App(shared.url, codec=CODEC):
        first = await recurring.options(id="same").start(CARD, 0)
        assert await (await recurring.options(id="same").start(CARD, 0)).result(60) == await first.result(60)
        with pytest.raises(RunExistsError, match="different input"):
            await recurring.options(id="same").start("other", 0)


# Keys.


@EVERYWHERE
async def test_keys_are_replaced_while_runs_wait(shared: Database) -> None:
    async with App(shared.url, codec=Encrypted({"k1": KEY})) as app:
        await waiting.options(id="w-1").start(CARD)
        await until_waiting(app, "w-1")
    async with App(shared.url, codec=ROTATED) as app:
        await app.send_event("codecs.paid", {"card": CARD})
        assert await app.get("w-1").result(60) == [RECEIPT, {"card": CARD}]
        stored = await dump(shared)
        assert b"aes256gcm:k1" in stored
        assert b"aes256gcm:k2" in stored


@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        (None, "no codec for it"),
        (Encrypted({"k2": NEW_KEY}), "no key 'k1', only 'k2'"),
        (Encrypted({"k1": NEW_KEY}), "key 'k1' of this process does not decrypt it"),
        (Compressed(), "no codec 'aes256gcm'"),
    ],
)
async def test_worker_without_the_key_leaves_the_run_to_others(
    shared: Database, codec: Encrypted | Compressed | None, reason: str
) -> None:
    async with Client(shared.url, codec=Encrypted({"k1": KEY})):
        run = await recurring.options(id="r-1").start(CARD, 0)
    async with App(shared.url, codec=codec) as app:
        found = await _stuck(app, app.get(run.id))
        assert found.startswith("CodecError: the input of run 'r-1' is encrypted with key 'k1'")
        assert reason in found
        assert (await app.info(run.id)).status is WorkflowStatus.RUNNING
    async with App(shared.url, codec=ROTATED) as app:
        await move_clock(app, BACK_OFF)
        assert await app.get(run.id).result(60) == RECEIPT


async def test_run_with_max_tries_does_not_fail_for_want_of_a_key(shared: Database) -> None:
    async with Client(shared.url, codec=CODEC):
        run = await impatient.options(id="r-1").start(CARD)
    async with App(shared.url) as app:
        assert "encrypted with key 'k1'" in await _stuck(app, app.get(run.id))
    async with App(shared.url, codec=CODEC) as app:
        await move_clock(app, BACK_OFF)
        assert await app.get(run.id).result(60) == CARD


async def test_worker_without_the_codec_does_not_continue_a_run(shared: Database) -> None:
    """It began without a codec, so its input is plain, but a step is encrypted."""
    async with Client(shared.url):
        await waiting.options(id="w-1").start(CARD)
    async with App(shared.url, codec=CODEC) as app:
        await until_waiting(app, "w-1")
    async with App(shared.url) as app:
        await app.send_event("codecs.paid", {"card": CARD})
        assert "row '1:pay" in await _stuck(app, app.get("w-1"))
    async with App(shared.url, codec=CODEC) as app:
        await move_clock(app, BACK_OFF)
        assert await app.get("w-1").result(60) == [RECEIPT, {"card": CARD}]


async def test_changed_value_makes_the_run_stuck(shared: Database) -> None:
    async with App(shared.url, codec=CODEC) as app:
        await waiting.options(id="w-1").start(CARD)
        await waiting.options(id="w-2").start(f"{MARKER}-2")
        await until_waiting(app, "w-1", "w-2")
        one, other = await _raw(shared, "w-1"), await _raw(shared, "w-2")
        assert one != other
    storage = await shared.storage()
    if shared.backend == "reference":
        storage.world.tables.workflow_instances["w-1"]["input_data"] = other  # type: ignore[attr-defined]
    else:
        await storage.db().execute(f"UPDATE {_table(shared)} SET input_data = '{other}' WHERE instance_id = 'w-1'")
    async with App(shared.url, codec=CODEC) as app:
        await app.send_event("codecs.paid", {"card": CARD})
        assert "changed or moved in the database" in await _stuck(app, app.get("w-1"))


async def _raw(database: Database, id: str) -> str:
    row = await (await database.storage()).get_instance(id)
    assert row is not None
    return row.input_data.decode()


def _table(database: Database) -> str:
    return "perdure.workflow_instances" if database.backend == "postgresql" else "workflow_instances"


# Databases with plain and encoded rows, and events between them.


@EVERYWHERE
async def test_codec_can_be_introduced_while_runs_wait(shared: Database) -> None:
    async with App(shared.url) as app:
        await waiting.options(id="w-1").start(CARD)
        await waiting.options(id="w-2").start("other")
        await until_waiting(app, "w-1", "w-2")
    async with App(shared.url, codec=CODEC) as app:
        await app.send_event("codecs.paid", {"card": CARD})  # encrypted, for a wait that is not
        assert await app.get("w-1").result(60) == [RECEIPT, {"card": CARD}]
        await waiting.options(id="w-3").start("third")
        await until_waiting(app, "w-3")
        async with Client(shared.url) as client:
            await client.send_event("codecs.paid", {"card": "third"})  # plain, for a wait that is not
        assert await app.get("w-3").result(60) == ["receipt third", {"card": "third"}]
        assert (await app.info("w-1")).input == {"card": CARD}


async def test_event_that_one_worker_cannot_decode_is_delivered_by_another(
    shared: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(shared.url) as app:
        await waiting.options(id="w-1").start("plain")
        await until_waiting(app, "w-1")
        elsewhere = encoding(await shared.storage(), Pipeline(CODEC))  # in another process, which is no worker
        for card in ("unknown", "plain"):
            await elsewhere.publish_to_channel("codecs.paid", json.dumps({"card": card}).encode())
        app._wake()
        if shared.backend != "reference":  # which computes no keys
            await until(lambda: "cannot be matched with waits by this process" in caplog.text)
        assert (await row_of(app, "w-1")).status is WorkflowStatus.WAITING_FOR_MESSAGE
    async with App(shared.url, codec=CODEC) as app:
        assert await app.get("w-1").result(60) == ["receipt plain", {"card": "plain"}]


@pytest.mark.parametrize("field", ["event_data", "event_data_binary"])
async def test_relay_without_the_codec_publishes_no_event_that_it_cannot_decode(shared: Database, field: str) -> None:
    published: list[str] = []

    async def publish(event: OutboxEvent) -> None:
        published.append(event.event_id)

    async with Client(shared.url, codec=CODEC) as client:
        await client._storage.add_outbox_event(replace(OutboxEvent("hidden", "t", "s"), **{field: b'{"card": 1}'}))
    async with Client(shared.url) as client, Relay(shared.url, publisher=publish):
        await until(lambda: _was_tried(client, "hidden"))
    assert not published


async def _was_tried(client: Client, event_id: str) -> bool:
    events = await client._storage.list_outbox_events()
    return any(each.event_id == event_id and (each.last_error or each.published_at) for each in events)


async def test_client_without_the_codec_shows_what_it_cannot_decode(shared: Database) -> None:
    async with App(shared.url, codec=CODEC) as app:
        run = await everything.options(id="all").start(CARD)
        await until_waiting(app, "all")
        await app.send_event("codecs.paid", {"card": CARD})
        await app.publish("codecs.notes", {"note": CARD})
        await run.result(60)
        failed = await declined.options(id="failed").start(CARD)
        with pytest.raises(WorkflowFailedError):
            await failed.result(60)
        stopped = await waiting.options(id="stopped").start(CARD)
        await until_waiting(app, "stopped")
        await stopped.cancel("a reason")
        with pytest.raises(WorkflowCancelledError):
            await stopped.result(60)
    hidden = Unreadable("compressed, encrypted with key 'k1'")
    async with Client(shared.url) as client:
        listed = {run.id: run async for run in client.runs()}
        assert listed["all"].input == {"*": hidden}
        assert listed["all"].result == hidden
        assert str(hidden) == "<compressed, encrypted with key 'k1'>"
        error = listed["failed"].error
        assert error is not None
        assert (error.type, error.message) == ("perdure.codecs.Unreadable", str(hidden))
        reason = listed["stopped"].error
        assert reason is not None
        assert reason.message == "<encrypted with key 'k1'>"
        info = await client.info("all")
        assert info.state == hidden
        assert await client.state("all") == hidden
        steps = {step.name: step for step in await client.steps("all")}
        assert steps["pay"].result == hidden
        assert steps["pay"].input == {"*": hidden}
        assert steps["wait_event"].result == hidden
        assert [entry async for entry in client.history("all")]
        assert [step.name for step in await client.steps("failed")]
        with pytest.raises(CodecError, match="the result of run 'all'"):
            await client.get("all").result(60)
        with pytest.raises(WorkflowFailedError) as failure:
            await client.get("failed").result(60)
        assert isinstance(failure.value.__cause__, CodecError)
        with pytest.raises(CodecError, match="cannot be retried"):
            await client.retry("failed")
        with pytest.raises(CodecError, match="run 'all' already exists"):
            await everything.options(id="all").start(CARD)
        with pytest.raises(CodecError, match="the input of run 'all'"):
            await history_of("all")


async def test_filter_on_encoded_inputs_is_refused(shared: Database) -> None:
    async with App(shared.url, codec=CODEC) as app:
        await recurring.options(id="r-1").start(CARD, 0)
        query = app.runs(workflow=recurring, where={"card": CARD})
        with pytest.raises(CodecError, match=r"filter by workflow, status and start time, and compare run\.input"):
            await query.count()
        with pytest.raises(CodecError, match="cannot be filtered by where="):
            assert [run async for run in query]
        assert [run.id async for run in app.runs(workflow=recurring) if run.input["card"] == CARD] == ["r-1"]


# Transactions of the caller.


async def test_start_in_a_transaction_of_the_caller_is_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    async with App(f"sqlite:///{path}", codec=CODEC) as app:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE orders (id TEXT)")
            connection.execute("INSERT INTO orders VALUES ('o-1')")
            recurring.options(id="o-1", in_transaction=connection).start_sync(CARD, 0)
            recurring.options(id="o-1", in_transaction=connection).start_sync(CARD, 0)  # the same
            with pytest.raises(RunExistsError, match="different input"):
                recurring.options(id="o-1", in_transaction=connection).start_sync("other", 0)
            connection.commit()
        assert await app.get("o-1").result(60) == RECEIPT
    assert all(MARKER.encode() not in each.read_bytes() for each in tmp_path.iterdir())


async def test_blocking_client_encrypts_and_decrypts(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"

    def block() -> None:
        with SyncClient(f"sqlite:///{path}", codec=CODEC) as client:
            run = client.start(recurring.options(id="o-1"), CARD, 0)
            assert run.result(60) == RECEIPT
            assert run.info().input == {"card": CARD, "left": 0}
            assert set(client.codecs_in_use()) == {"zlib", "aes256gcm:k1"}
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE orders (id TEXT)")
                connection.execute("INSERT INTO orders VALUES ('o-2')")
                recurring.options(id="o-2", in_transaction=connection).start_sync(CARD, 0)
                connection.commit()
            assert client.get("o-2").result(60) == RECEIPT

    async with App(f"sqlite:///{path}", codec=CODEC):
        await asyncio.to_thread(block)
    assert all(MARKER.encode() not in each.read_bytes() for each in tmp_path.iterdir())


# Offloading, and codecs of users.


async def test_large_values_are_offloaded_and_small_ones_are_not(shared: Database, tmp_path: Path) -> None:
    blobs, large = FileBlobs(tmp_path), f"{MARKER}{'x' * 5000}"
    async with App(shared.url, codec=Offloaded(blobs, above=3000)) as app:
        await waiting.options(id="w-1").start(large)
        await until_waiting(app, "w-1")
        await app.send_event("codecs.paid", {"card": large})  # stays in the database, where it is matched
        assert await app.get("w-1").result(60) == [f"receipt {large}", {"card": large}]
        assert len(list(blobs.list())) >= 3  # the input, the receipt, the result
        storage = await shared.storage()
        row = await storage.get_instance("w-1")
        assert row is not None
        assert row.input_data.startswith(MARK)
        assert len(row.input_data) < 300


async def test_blobs_of_deleted_runs_are_deleted_and_keys_in_use_are_listed(database: Database, tmp_path: Path) -> None:
    if database.backend == "reference":
        async with Client(database.url, codec=CODEC) as client:
            with pytest.raises(ConfigurationError, match="cannot be searched"):
                await client.codecs_in_use()
        return
    blobs, large = FileBlobs(tmp_path), "x" * 5000
    async with App(database.url, codec=[Encrypted({"k1": KEY}), Offloaded(blobs, above=3000)]) as app:
        for id in ("kept", "deleted"):
            assert await (await recurring.options(id=id).start(large, 1)).result(60) == f"receipt {large}"
        await app.publish("codecs.notes", 1, metadata={"a": 1})
        used = await app.codecs_in_use()
        assert used["blob"] >= 8
        assert used["aes256gcm:k1"] >= used["blob"] + 1
        blobs.put("ab" * 32, b"without a row")
        assert await app.delete_unused_blobs() == 0  # all are too young
        with pytest.raises(ValueError, match="at least an hour"):
            await app.delete_unused_blobs(60)
        for path in tmp_path.rglob("*"):
            os.utime(path, (0, 0))
        assert await app.delete_unused_blobs() == 3  # without a row, and of compensations that recur() has removed
        left = len(list(blobs.list()))
        await (await database.storage()).delete_ended(["deleted", "deleted~1"])
        assert await app.delete_unused_blobs() == left // 2
        assert await app.get("kept").result(60) == f"receipt {large}"
        assert (await app.info("kept~1")).input == {"card": large, "left": 1}
        assert (await history_of("kept~1")).rows[0].data == {"card": large}
    async with Client(database.url, codec=CODEC) as client:
        with pytest.raises(ConfigurationError, match="no codec Offloaded"):
            await client.delete_unused_blobs()


async def test_codecs_in_use_are_counted_by_values(tmp_path: Path) -> None:
    async with Client(f"sqlite:///{tmp_path}/messages.db", codec=Encrypted({"k1": KEY})) as client:
        for number in range(3):
            await client.publish("codecs.notes", number)
        assert await client.codecs_in_use() == {"aes256gcm:k1": 3}


class Flaky:
    """A codec whose service is sometimes down."""

    name = "flaky"
    blocking = True
    down = False

    def encode(self, data: bytes, place: str) -> Encoded:
        if self.down:
            raise OSError("the service is down")
        return Encoded(data[::-1], "n")

    def decode(self, encoded: Encoded, place: str) -> bytes:
        if self.down:
            raise OSError("the service is down")
        return encoded.data[::-1]


@pytest.mark.parametrize("note", ["key[3]", 'a "key"', "back\\slash, and more"])
async def test_codecs_in_use_have_any_note_and_reasons_of_cancellations(tmp_path: Path, note: str) -> None:
    class Noted(Flaky):
        name = "noted"

        def encode(self, data: bytes, place: str) -> Encoded:
            return Encoded(data[::-1], note)

    async with App(f"sqlite:///{tmp_path}/notes.db", codec=Noted()) as app:
        run = await waiting.options(id="w-1").start(CARD)
        await until_waiting(app, "w-1")
        used = await app.codecs_in_use()
        await run.cancel(f"a reason with {note}")
        with pytest.raises(WorkflowCancelledError):
            await run.result(60)
        assert await app.codecs_in_use() == {f"noted:{note}": used[f"noted:{note}"] + 1}


async def test_runs_continue_when_the_service_of_a_codec_answers_again(shared: Database) -> None:
    codec = Flaky()
    async with App(shared.url, codec=codec) as app:
        await waiting.options(id="w-1").start("a")
        await until_waiting(app, "w-1")
        codec.down = True
        with pytest.raises(CodecError, match="the service is down"):
            await recurring.start("b", 0)
        codec.down = False
        await app.send_event("codecs.paid", {"card": "a"})
        assert await app.get("w-1").result(60) == ["receipt a", {"card": "a"}]


# Tests of users.


async def test_crash_anywhere_changes_nothing() -> None:
    async def scenario(app: App | Client) -> object:
        run = await waiting.options(id="w-1").start(CARD)
        await app.send_event("codecs.paid", {"card": CARD}, to="w-1", id="e-1")
        other = await declined.options(id="d-1").start(CARD)
        with pytest.raises(WorkflowFailedError):
            await other.result()
        return await run.result()

    report = await crash_everywhere(scenario, codec=CODEC, setup=forget_all, limit=25)
    assert len(report.points) == 25


def forget_all() -> None:
    undone.clear()
    tried.clear()


async def test_exported_history_is_plain_and_can_be_replayed(shared: Database, tmp_path: Path) -> None:
    async with App(shared.url, codec=CODEC):
        run = await recurring.options(id="r-1").start(CARD, 0)
        await run.result(60)
        history = await export_history(run, tmp_path / "plain.json")
        replay(recurring, history)
        redacted = await export_history(run, tmp_path / "redacted.json", redact=_mask)
        replay(recurring, redacted)
        assert MARKER in (tmp_path / "plain.json").read_text()
        assert MARKER not in (tmp_path / "redacted.json").read_text()
    if shared.backend == "sqlite":
        found = await history_of("r-1", database=shared.url, codec=CODEC)
        assert found.input == json.loads((tmp_path / "plain.json").read_text())["input"]


async def test_upgrade_check_needs_the_codec_of_the_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    async with App(url, codec=CODEC) as app:
        await waiting.options(id="w-1").start(CARD)
        await until_waiting(app, "w-1")
    assert (await check_upgrade(url, workflows=[waiting], codec=CODEC)).problems == ()
    (problem,) = (await check_upgrade(url, workflows=[waiting])).problems
    assert "CodecError: the input of run 'w-1' is compressed, encrypted with key 'k1'" in str(problem)
    (path,) = await export_histories(url, tmp_path, codec=CODEC)
    assert MARKER in path.read_text()


def _mask(place: str, value: str | int | float | bool | None) -> str | int | float | bool | None:
    return value.replace(MARKER, "xxxx") if isinstance(value, str) else value


async def test_waits_of_the_caller_are_short_with_a_blocking_codec(shared: Database) -> None:
    """The event loop continues while a codec blocks."""

    class Slow(Flaky):
        name = "slow"

        def encode(self, data: bytes, place: str) -> Encoded:
            ticks.wait()
            return Encoded(data)

        def decode(self, encoded: Encoded, place: str) -> bytes:
            return encoded.data

    ticks = threading.Event()
    async with App(shared.url, codec=Slow()) as app:
        starting = asyncio.create_task(recurring.options(id="r-1").start("a", 0))
        await asyncio.sleep(0)
        await until(lambda: not starting.done())
        assert (await app.health()).database
        ticks.set()
        assert await (await starting).result(timedelta(seconds=60)) == "receipt a"
