"""Test how a backend archives finished generations."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import InstanceNotFoundError, InvalidTransitionError, LeaseLostError, LimitError
from perdure.model.records import ChannelMode, HistoryEvent, Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased, new

BINARY = b"\x00\xff"


async def record(storage: Storage, instance_id: str, *steps: str, lease: Lease | None = None) -> None:
    for step in steps:
        event = HistoryEvent(instance_id, step, "ActivityCompleted", f'"{step}"'.encode())
        await storage.append_history(event, lease=lease)


async def archived(storage: Storage, instance_id: str) -> list[str]:
    return [event.activity_id for event in await storage.get_archived_history(instance_id)]


@pytest.mark.pitfall(3)
async def test_archiving_keeps_event_ids_and_times(storage: Storage, shift: Shift) -> None:
    await new(storage, "i-1")
    await record(storage, "i-1", "b", "a")
    binary = HistoryEvent("i-1", "c", "ChannelMessageReceived", event_data_binary=BINARY, data_type="binary")
    await storage.append_history(binary)
    events, _ = await storage.get_history_paginated("i-1")
    shift(storage, 100)
    await storage.archive_history("i-1")
    assert await storage.get_history_count("i-1") == 0
    moved = await storage.get_archived_history("i-1")
    assert [
        HistoryEvent(
            event.instance_id,
            event.activity_id,
            event.event_type,
            event.event_data,
            event.event_data_binary,
            event.data_type,
            event.original_id or 0,
            event.original_created_at,
        )
        for event in moved
    ] == events
    assert all(event.archived_at > (event.original_created_at or event.archived_at) for event in moved)


async def test_archiving_again_adds_only_new_events(storage: Storage) -> None:
    await new(storage, "i-1")
    await storage.archive_history("i-1")
    await record(storage, "i-1", "a", "b")
    await storage.archive_history("i-1")
    await record(storage, "i-1", "a")
    await storage.archive_history("i-1")
    await storage.archive_history("i-1")
    assert await archived(storage, "i-1") == ["a", "b", "a"]
    assert len(await storage.get_archived_history("i-1", limit=2)) == 2
    assert await archived(storage, "nobody") == []


async def test_archiving_an_unknown_instance_is_refused(storage: Storage) -> None:
    for call in (storage.archive_history("nobody"), storage.cleanup_instance_subscriptions("nobody")):
        with pytest.raises(InstanceNotFoundError):
            await call


@pytest.mark.pitfall(1)
async def test_lost_lease_cannot_archive_or_clean_up(storage: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    await record(storage, "i-1", "a", lease=lease)
    await storage.join_group("i-1", "g")
    shift(storage, 11)
    assert await storage.try_acquire_lock("i-1", "w2", 10) is not None
    for call in (
        storage.archive_history("i-1", lease=lease),
        storage.cleanup_instance_subscriptions("i-1", lease=lease),
        storage.recur_instance("i-1", b"2", lease=lease),
    ):
        with pytest.raises(LeaseLostError):
            await call
    assert await storage.get_history_count("i-1") == 1
    assert await archived(storage, "i-1") == []
    assert await storage.get_group_members("g") == ["i-1"]
    assert await storage.get_instance("i-1~1") is None


@pytest.mark.pitfall(5)
async def test_message_whose_claim_is_cleaned_up_reaches_the_next_instance(storage: Storage) -> None:
    for name in ("i-1", "i-2"):
        await new(storage, name)
        await storage.subscribe_to_channel(name, "jobs", ChannelMode.COMPETING)
    message_id = await storage.publish_to_channel("jobs", b"1")
    assert await storage.claim_channel_message(message_id, "i-1")
    lease = await storage.try_acquire_lock("i-2", "w1", 10)
    assert lease is not None
    await storage.register_channel_receive_and_release_lock("i-2", "jobs", "w1", "receive:1", lease=lease)
    assert await storage.deliver_pending() == []
    await storage.cleanup_instance_subscriptions("i-1")
    (delivered,) = await storage.deliver_pending()
    assert (delivered.instance_id, delivered.message_id) == ("i-2", message_id)


async def start(storage: Storage, given: bytes = b'{"n": 1}', **fields: Any) -> Lease:
    instance = WorkflowInstance("i-1", "wf", given, source_hash="h", owner_service="svc", **fields)
    lease = await storage.create_instance(instance, worker_id="w1", timeout_sec=10)
    assert lease is not None
    return lease


@pytest.mark.pitfall(20)
async def test_recur_ends_one_generation_and_starts_the_next(storage: Storage, shift: Shift) -> None:
    lease = await start(storage, headers=b'{"tenant": "a"}')
    await record(storage, "i-1", "a", "b", lease=lease)
    before = await storage.get_instance("i-1")
    assert before is not None
    shift(storage, 5)
    live = await storage.recur_instance("i-1", b'{"n":  2}', lease=lease)
    assert live == await storage.get_instance("i-1")
    assert (live.input_data, live.status, live.continued_from) == (b'{"n":  2}', WorkflowStatus.RUNNING, "i-1~1")
    assert (live.current_activity_id, live.locked_by, live.lock_token) == (None, "w1", lease.token)
    assert before.started_at is not None
    assert live.started_at is not None
    assert live.started_at > before.started_at
    assert await storage.get_history_count("i-1") == 0

    done = await storage.get_instance("i-1~1")
    assert done is not None
    assert (done.status, done.input_data, done.started_at) == (
        WorkflowStatus.RECURRED,
        b'{"n": 1}',
        before.started_at,
    )
    assert (done.workflow_name, done.source_hash, done.owner_service, done.framework) == ("wf", "h", "svc", "perdure")
    assert (done.locked_by, done.continued_from) == (None, None)
    assert live.headers == done.headers == b'{"tenant": "a"}'
    assert await archived(storage, "i-1~1") == ["a", "b"]
    assert await archived(storage, "i-1") == []


@pytest.mark.pitfall(20)
async def test_lease_stays_valid_over_many_generations(storage: Storage) -> None:
    lease = await start(storage)
    for n in (1, 2, 3):
        await record(storage, "i-1", "step:1", lease=lease)
        live = await storage.recur_instance("i-1", str(n).encode(), lease=lease)
        assert live.continued_from == f"i-1~{n}"
    chain = [await storage.get_instance(f"i-1~{n}") for n in (1, 2, 3)]
    assert [instance and instance.continued_from for instance in chain] == [None, "i-1~1", "i-1~2"]
    assert [instance and instance.input_data for instance in chain] == [b'{"n": 1}', b"1", b"2"]
    for n in (1, 2, 3):
        assert await archived(storage, f"i-1~{n}") == ["step:1"]
    await storage.complete_and_release(lease, b"1")
    with pytest.raises(LeaseLostError):
        await storage.recur_instance("i-1", b"4", lease=lease)


@pytest.mark.parametrize("status", ["waiting_for_timer", "compensating"])
async def test_only_a_running_instance_recurs(storage: Storage, status: str) -> None:
    lease = await start(storage)
    await record(storage, "i-1", "a", lease=lease)
    await storage.update_instance_status("i-1", WorkflowStatus(status), lease=lease)
    with pytest.raises(InvalidTransitionError):
        await storage.recur_instance("i-1", b"2", lease=lease)
    assert await storage.get_history_count("i-1") == 1
    assert await storage.get_instance("i-1~1") is None


async def test_recur_is_atomic(storage: Storage) -> None:
    lease = await start(storage)
    await record(storage, "i-1", "a", lease=lease)
    before = await storage.get_instance("i-1")
    with pytest.raises(KeyError):
        async with storage.transaction():
            await storage.recur_instance("i-1", b"2", lease=lease)
            raise KeyError
    assert await storage.get_instance("i-1") == before
    assert await storage.get_instance("i-1~1") is None
    assert await storage.get_history_count("i-1") == 1
    for given in (b"\xff", b"1" * (8 * 1024 * 1024 + 1), None):
        with pytest.raises(LimitError):
            await storage.recur_instance("i-1", given, lease=lease)  # type: ignore[arg-type]


async def test_concurrent_recurs_each_make_a_generation(storage: Storage, peer: Storage) -> None:
    lease = await start(storage)
    await asyncio.gather(*(side.recur_instance("i-1", b"2", lease=lease) for side in [storage, peer] * 3))
    live = await storage.get_instance("i-1")
    assert live is not None
    assert live.continued_from == "i-1~6"


async def test_recur_skips_a_generation_id_that_is_taken(storage: Storage) -> None:
    """Retention unlinks the generations it deletes, and an id may look like a generation's."""
    lease = await start(storage)
    await new(storage, "i-1~1")
    assert (await storage.recur_instance("i-1", b"2", lease=lease)).continued_from == "i-1~2"


@pytest.mark.pitfall(44)
async def test_finished_generations_are_deleted_with_their_archive(storage: Storage, shift: Shift) -> None:
    lease = await start(storage)
    await record(storage, "i-1", "a", lease=lease)
    await storage.recur_instance("i-1", b"2", lease=lease)
    shift(storage, 100)
    await storage.recur_instance("i-1", b"3", lease=lease)
    assert await storage.delete_instances(timedelta(seconds=50)) == 1
    assert await archived(storage, "i-1~1") == []
    second, live = await storage.get_instance("i-1~2"), await storage.get_instance("i-1")
    assert second is not None
    assert live is not None
    assert (second.continued_from, live.continued_from) == (None, "i-1~2")


async def test_first_generation_keeps_its_continued_from(storage: Storage) -> None:
    await new(storage, "other")
    lease = await start(storage, continued_from="other")
    await storage.recur_instance("i-1", b"2", lease=lease)
    done = await storage.get_instance("i-1~1")
    assert done is not None
    assert done.continued_from == "other"


async def test_instance_with_the_longest_id_can_recur(storage: Storage) -> None:
    name = "i" * 200
    lease = await leased(storage, name)
    assert (await storage.recur_instance(name, b"2", lease=lease)).continued_from == f"{name}~1"
