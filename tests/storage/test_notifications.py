"""Notifications of PostgreSQL about instances: when they are sent, and what they cost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from perdure.database.backends.base import Silent
from perdure.model.records import HistoryEvent, TimerWait, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.stores import SQLStorage, open_storage
from perdure.testing.conformance.tools import leased, new
from tests.conftest import BackendDatabase
from tests.storage.test_wakeups import WakeUpCollector
from tests.support.storages import Database, shift

RESUMABLE = "workflow_resumable"
Act = Callable[[SQLStorage], Awaitable[object]]


@pytest.fixture
async def database(backend_database: BackendDatabase) -> AsyncIterator[Database]:
    async with backend_database("postgresql") as database:
        yield database


async def notifications_of(storage: SQLStorage, peer: SQLStorage, act: Act) -> list[Mapping[str, object]]:
    """The payloads about instances that an act of the peer announces, each with its own commit."""
    notifier: Any = peer._backend.notifier
    collector = WakeUpCollector(storage)
    try:
        await collector.until("scan")
        notifier._latest.clear()  # otherwise it may be sent later, together with others
        await act(peer)
        await peer._backend.notify("workflow_outbox_pending", "{}")  # type: ignore[attr-defined]
        await collector.until("workflow_outbox_pending")
        return [hint.payload for hint in collector.hints if hint.kind == RESUMABLE]
    finally:
        await collector.close()


def about(reason: str, name: str | None = None, instance_id: str = "i-1") -> dict[str, object]:
    named = {} if name is None else {"workflow_name": name, "wf_name": name}
    return {"instance_id": instance_id, "wf_id": instance_id, "reason": reason, **named}


async def test_creating_an_instance_notifies(storage: SQLStorage, peer: SQLStorage) -> None:
    assert await notifications_of(storage, peer, lambda on: new(on, "i-1")) == [about("created", "wf")]


async def test_longest_names_fit_into_a_notification(storage: SQLStorage, peer: SQLStorage) -> None:
    instance_id, name = "\N{OCTOPUS}" * 200, "\N{CRAB}" * 255
    payloads = await notifications_of(storage, peer, lambda on: new(on, instance_id, name))
    assert payloads == [about("created", name, instance_id)]


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda on: leased(on, "i-1"), id="leased"),
        pytest.param(lambda on: new(on, "i-1", status=WorkflowStatus.WAITING_FOR_EVENT), id="waiting"),
        pytest.param(lambda on: on.create_instances([WorkflowInstance("i-1", "wf")], worker_id="w1"), id="all leased"),
        pytest.param(lambda on: on.release_lock("nobody", "w1"), id="not released"),
        pytest.param(lambda on: on.fire_timers([("nobody", "t")]), id="nothing fired"),
        pytest.param(lambda on: on.acquire_locks(["i-1", "i-2"], "w1", 30), id="acquired"),
    ],
)
async def test_change_without_new_work_does_not_notify(storage: SQLStorage, peer: SQLStorage, act: Act) -> None:
    assert await notifications_of(storage, peer, act) == []


async def test_batch_notifies_once(storage: SQLStorage, peer: SQLStorage) -> None:
    many = [WorkflowInstance(f"i-{n}", "wf") for n in (1, 1, 2, 3)]
    payloads = await notifications_of(storage, peer, lambda on: on.create_instances(many))
    assert payloads == [{**about("created"), "count": 3}]  # of several no workflow is named: they may differ
    leases = [lease for lease in await storage.acquire_locks(["i-2", "i-3"], "w1", 30) if lease]
    payloads = await notifications_of(
        storage, peer, lambda on: on.complete_instances([(lease, b"1") for lease in leases])
    )
    assert payloads == [{**about("completed", instance_id="i-2"), "count": 2}]


async def test_firing_many_timers_notifies_once(storage: SQLStorage, peer: SQLStorage) -> None:
    for n in range(3):
        lease = await leased(storage, f"i-{n}")
        await storage.suspend(lease, [TimerWait("t", "t:1", after=timedelta(seconds=5))])
    shift(peer, 6)
    payloads = await notifications_of(storage, peer, lambda on: on.fire_timers([(f"i-{n}", "t") for n in range(3)]))
    assert payloads == [{"instance_id": "i-0", "wf_id": "i-0", "count": 3}]


async def test_end_of_a_lease_or_an_instance_notifies(storage: SQLStorage, peer: SQLStorage) -> None:
    lease = await leased(storage, "i-1")
    acts: list[tuple[Act, dict[str, object]]] = [
        (lambda on: on.recur_instance("i-1", b"2", lease=lease), about("recurred", "wf")),
        (lambda on: on.release_lock("i-1", "w1", lease=lease), about("released")),
        (lambda on: on.cancel_instance("i-1", compensate=True), about("cancelled")),
        (lambda on: on.update_instance_status("i-1", WorkflowStatus.FAILED, "broken"), about("failed")),
    ]
    for act, payload in acts:
        assert await notifications_of(storage, peer, act) == [payload]
    other = await leased(storage, "i-2")
    payloads = await notifications_of(storage, peer, lambda on: on.complete_and_release(other, b"1"))
    assert payloads == [about("completed", instance_id="i-2")]


async def test_notification_is_sent_only_at_the_commit(storage: SQLStorage, peer: SQLStorage) -> None:
    async def undone(on: SQLStorage) -> None:
        await on.begin_transaction()
        await new(on, "i-1")
        await on.rollback_transaction()

    async def done(on: SQLStorage) -> None:
        async with on.transaction():
            await new(on, "i-1")

    assert await notifications_of(storage, peer, undone) == []
    assert await notifications_of(storage, peer, done) == [about("created", "wf")]


async def test_second_notification_within_a_burst_needs_no_transaction(
    storage: SQLStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement, one round trip; the statement sends the notification, too."""
    backend: Any = storage._backend
    sent = list[tuple[str, str]]()

    async def send(kind: str, payload: str) -> None:
        sent.append((kind, payload))

    async def refuse(*_: object) -> None:
        raise AssertionError("a transaction was opened")

    monkeypatch.setattr(backend.notifier, "_send", send)
    monkeypatch.setattr(backend, "_transact", refuse)
    backend.notifier._latest[RESUMABLE] = asyncio.get_running_loop().time() + 60
    await new(storage, "i-1")
    lease = await storage.try_acquire_lock("i-1", "w1", 30)
    assert lease is not None
    await storage.release_lock("i-1", "w1", lease=lease)
    (lease,) = await storage.acquire_locks(["i-1"], "w1", 30)
    assert lease is not None
    await storage.complete_and_release(lease, b"1")
    await backend.notifier.close()
    assert [kind for kind, _ in sent] == [RESUMABLE]


async def test_storage_without_notifications_runs_the_plain_operation() -> None:
    async with open_storage("sqlite:///:memory:") as storage:
        assert isinstance(storage._backend.notifier, Silent)
        async with storage.transaction():
            await new(storage, "i-1")
            open_transaction: Any = storage._open.get()
            assert open_transaction.callbacks == [[]]


async def test_end_in_a_batch_with_events_notifies(storage: SQLStorage, peer: SQLStorage) -> None:
    leases = [await leased(storage, f"i-{n}") for n in (1, 2)]
    events = [(HistoryEvent(lease.instance_id, "s:1", "ActivityCompleted", b"1"), lease) for lease in leases]
    payloads = await notifications_of(
        storage, peer, lambda on: on.append_and_complete(events, [(lease, b"1") for lease in leases])
    )
    assert payloads == [{**about("completed"), "count": 2}]
    lease = await leased(storage, "i-3")
    event = HistoryEvent("i-3", "s:1", "ActivityCompleted", b"1")
    assert await notifications_of(storage, peer, lambda on: on.append_and_complete([(event, lease)], [])) == []
