"""Test how a backend records events."""

import asyncio
from dataclasses import replace

import pytest

from perdure.errors import HistoryConflictError, InstanceNotFoundError, LeaseLostError, LimitError, StorageError
from perdure.model.records import HistoryEvent, HistoryEventType, Lease
from perdure.storage.contract import Storage
from perdure.storage.history import HistoryIterator, HistoryIteratorOptions
from perdure.testing.conformance.tools import Shift, leased, new


def event(n: object, data: bytes | None = b"1", instance_id: str = "i-1", **more: object) -> HistoryEvent:
    return HistoryEvent(instance_id, f"s:{n}", "ActivityCompleted", data, **more)  # type: ignore[arg-type]


async def test_events_are_read_back_byte_for_byte_in_order(storage: Storage) -> None:
    await new(storage, "i-1")
    texts = [b'{"a":  1,"a":2 }', b"not json", b"null", b'"\xc3\xa9 \xf0\x9f\x90\x99 %s :x {now} \\ \' \\u0000"', b""]
    binary = bytes(range(256)) * 3
    ids = [await storage.append_history(event(n, text)) for n, text in enumerate(texts)]
    ids.append(await storage.append_history(event("b", None, event_data_binary=binary, data_type="binary")))
    events, more = await storage.get_history_paginated("i-1")
    assert [found.id for found in events] == ids == sorted(ids)
    assert [found.event_data for found in events] == [*texts, None]
    assert (events[-1].event_data_binary, events[-1].data_type, more) == (binary, "binary", False)
    assert await storage.get_history_count("i-1") == 6


async def test_appending_the_same_event_again_changes_nothing(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    first = await storage.append_history(event(1), lease=lease)
    assert await storage.append_history(event(1), lease=lease) == first
    assert await storage.append_history(event(1)) == first
    assert await storage.get_history_count("i-1") == 1


@pytest.mark.parametrize(
    "other",
    [
        event(1, b"2"),
        event(1, None, event_data_binary=b"1", data_type="binary"),
        HistoryEvent("i-1", "s:1", "ActivityFailed", b"1"),
        event(1, b"1", data_type="binary"),
    ],
)
async def test_a_different_event_of_the_same_step_is_refused(storage: Storage, other: HistoryEvent) -> None:
    await new(storage, "i-1")
    await storage.append_history(event(1))
    with pytest.raises(HistoryConflictError):
        await storage.append_history(other)
    (found,), _ = await storage.get_history_paginated("i-1")
    assert (found.event_type, found.event_data) == ("ActivityCompleted", b"1")


@pytest.mark.pitfall(1)
async def test_stale_worker_cannot_append_history(storage: Storage, peer: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    recorded = await storage.append_history(event(0), lease=lease)
    shift(peer, 11)
    taken = await peer.try_acquire_lock("i-1", "w2", 10)
    for again in (event(0), event(1), event(0, b"2")):  # the fence is checked before the event
        with pytest.raises(LeaseLostError):
            await storage.append_history(again, lease=lease)
    assert await peer.append_history(event(0), lease=taken) == recorded
    assert await peer.append_history(event(1), lease=taken) > recorded
    assert await storage.get_history_count("i-1") == 2


async def test_append_compares_owner_and_fencing_token(storage: Storage) -> None:
    lease = await leased(storage, "i-1", worker_id="w1")
    for forged in (
        Lease("i-1", "w2", lease.token, lease.expires_at),
        Lease("i-1", "w1", lease.token + 1, lease.expires_at),
        Lease("i-1", "w1", lease.token - 1, lease.expires_at),
    ):
        with pytest.raises(LeaseLostError):
            await storage.append_history(event(1), lease=forged)


@pytest.mark.pitfall(36)
async def test_step_ids_are_compared_exactly_and_never_truncated(storage: Storage) -> None:
    await new(storage, "i-1")
    for activity_id in ("Pay:1", "pay:1", "pay:1é", "x" * 255):
        await storage.append_history(HistoryEvent("i-1", activity_id, "ActivityCompleted", b"1"))
    assert await storage.get_history_count("i-1") == 4
    with pytest.raises(LimitError):
        await storage.append_history(HistoryEvent("i-1", "x" * 256, "ActivityCompleted", b"1"))
    with pytest.raises(LimitError):
        await storage.append_history(HistoryEvent("i-1", "x", "E" * 101, b"1"))
    with pytest.raises(InstanceNotFoundError):
        await storage.append_history(event(1, instance_id="nobody"))


async def test_payload_is_limited_to_eight_mebibytes(storage: Storage) -> None:
    await new(storage, "i-1")
    quotes = b'"\\' * (4 * 1024 * 1024)
    zeros = b"\x00" * (8 * 1024 * 1024)
    await storage.append_history(event(1, quotes))
    await storage.append_history(event(2, None, event_data_binary=zeros, data_type="binary"))
    events, _ = await storage.get_history_paginated("i-1")
    assert [events[0].event_data == quotes, events[1].event_data_binary == zeros] == [True, True]
    with pytest.raises(LimitError):
        await storage.append_history(event(3, quotes + b" "))
    with pytest.raises(LimitError):
        await storage.append_history(event(3, None, event_data_binary=zeros + b"0", data_type="binary"))


@pytest.mark.parametrize("data_type", ["", "text", "JSON"])
async def test_unknown_type_of_data_is_refused(storage: Storage, data_type: str) -> None:
    lease = await leased(storage, "i-1")
    with pytest.raises(LimitError, match="data_type"):
        await storage.append_history(event(1, data_type=data_type), lease=lease)
    stored, refused = await storage.append_histories([(event(1), lease), (event(2, data_type=data_type), lease)])
    assert isinstance(refused, LimitError)
    events, _ = await storage.get_history_paginated("i-1")
    assert [found.id for found in events] == [stored]


async def test_history_is_read_page_by_page(storage: Storage) -> None:
    await new(storage, "i-1")
    await new(storage, "other")
    for n in range(5):
        await storage.append_history(event(n))
        await storage.append_history(event(n, instance_id="other"))
    first, more = await storage.get_history_paginated("i-1", 0, 2)
    assert ([found.activity_id for found in first], more) == (["s:0", "s:1"], True)
    rest, more = await storage.get_history_paginated("i-1", first[-1].id, 3)
    assert ([found.activity_id for found in rest], more) == (["s:2", "s:3", "s:4"], False)
    assert await storage.get_history_paginated("i-1", rest[-1].id) == ([], False)
    with pytest.raises(LimitError):
        await storage.get_history_paginated("i-1", 0, 1001)


async def test_history_iterator_reads_in_batches(storage: Storage) -> None:
    await new(storage, "i-1")
    answers = await storage.append_histories([(event(n), None) for n in range(7)])
    iterator = HistoryIterator(storage, "i-1", HistoryIteratorOptions(batch_size=3))
    first = await iterator.next()
    assert first is not None
    assert [first.id, *[found.id for found in await iterator.collect()]] == answers
    assert await iterator.next() is None
    assert iterator.err is None
    assert [found.id async for found in HistoryIterator(storage, "i-1")] == answers
    closed = HistoryIterator(storage, "i-1")
    closed.close()
    assert await closed.next() is None


async def test_history_iterator_stops_at_the_last_page(storage: Storage) -> None:
    await new(storage, "i-1")
    await storage.append_histories([(event(n), None) for n in range(4)])
    asked = []

    class Counting:
        async def get_history_paginated(self, *args: object) -> object:
            asked.append(args)
            return await storage.get_history_paginated(*args)  # type: ignore[arg-type]

    iterator = HistoryIterator(Counting(), "i-1", HistoryIteratorOptions(batch_size=2))  # type: ignore[arg-type]
    assert len(await iterator.collect()) == 4
    assert len(asked) == 2


async def test_history_iterator_keeps_its_error(storage: Storage) -> None:
    class Broken:
        async def get_history_paginated(self, *args: object) -> object:
            raise StorageError("gone")

    iterator = HistoryIterator(Broken(), "i-1")  # type: ignore[arg-type]
    assert await iterator.next() is None
    assert isinstance(iterator.err, StorageError)
    with pytest.raises(StorageError):
        await iterator.collect()


async def test_batch_reports_a_result_for_each_event(storage: Storage) -> None:
    mine, lost = await leased(storage, "i-1"), await leased(storage, "i-2")
    await storage.release_lock("i-2", lost.worker_id)
    first = await storage.append_history(event(0), lease=mine)
    answers = await storage.append_histories(
        [
            (event(0), mine),
            (event(0, b"2"), mine),
            (event(1), mine),
            (event(1, instance_id="i-2"), lost),
            (event(1, instance_id="nobody"), None),
            (event("x" * 300), mine),
            (event(2, b"bytes", event_data_binary=None), mine),
            (event(3, None, event_data_binary=b"\x00\xff", data_type="binary"), mine),
            (event(1), mine),
            (event(1, b"other"), mine),
            (event(4), None),
        ]
    )
    assert answers[0] == first
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds == [
        "int",
        "HistoryConflictError",
        "int",
        "LeaseLostError",
        "InstanceNotFoundError",
        "LimitError",
        "int",
        "int",
        "int",
        "HistoryConflictError",
        "int",
    ]
    assert answers[8] == answers[2]
    events, _ = await storage.get_history_paginated("i-1")
    assert [found.activity_id for found in events] == ["s:0", "s:1", "s:2", "s:3", "s:4"]
    assert [found.id for found in events] == [first, answers[2], answers[6], answers[7], answers[10]]
    assert await storage.get_history_count("i-2") == 0


async def test_concurrent_batches_of_many_runs_append_all_events(storage: Storage, peer: Storage) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(10)]

    async def work(side: Storage, step: int) -> list[int | StorageError]:
        order = leases if step % 2 else leases[::-1]
        return await side.append_histories([(event(step, instance_id=lease.instance_id), lease) for lease in order])

    answers = await asyncio.gather(*(work([storage, peer][step % 2], step) for step in range(12)))
    assert all(isinstance(answer, int) for batch in answers for answer in batch)
    for lease in leases:
        assert await storage.get_history_count(lease.instance_id) == 12


async def test_batch_of_1200_events_is_appended(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    large = b'"' + b"x" * (3 * 1024 * 1024) + b'"'
    events = [event(n, large if n % 200 == 7 else b"") for n in range(1200)]
    answers = await storage.append_histories([(each, lease) for each in events])
    assert answers == sorted(answers, key=lambda answer: answer if isinstance(answer, int) else 0)
    assert all(isinstance(answer, int) for answer in answers)
    assert await storage.get_history_count("i-1") == 1200


async def test_batch_refuses_an_event_of_an_instance_without_a_name(storage: Storage) -> None:
    lease = await leased(storage, "i")
    items = [
        (HistoryEvent(each.instance_id, "s:1", HistoryEventType.ACTIVITY_COMPLETED, b"1"), each)
        for each in (replace(lease, instance_id=""), lease)
    ]
    assert [type(answer) for answer in await storage.append_histories(items)] == [LimitError, int]


async def test_empty_batch_returns_an_empty_list(storage: Storage) -> None:
    assert await storage.append_histories([]) == []


async def test_last_event_of_a_type_is_found(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    await leased(storage, "i-2")
    for n, kind in enumerate(["EventReceived", "ActivityCompleted", "EventReceived", "TimerExpired"]):
        event = HistoryEvent("i-1", f"s:{n}", kind, b'{"n": %d}' % n)
        await storage.append_history(event, lease=lease)
    await storage.append_history(
        HistoryEvent("i-2", "s:9", "EventReceived", event_data_binary=b"\x00", data_type="binary")
    )
    events, _ = await storage.get_history_paginated("i-1")
    assert await storage.get_last_event("i-1", "EventReceived") == events[2]
    assert await storage.get_last_event("i-1", HistoryEventType.TIMER_EXPIRED) == events[3]
    assert await storage.get_last_event("i-1", "eventreceived") is None
    assert await storage.get_last_event("nobody", "EventReceived") is None
    other = await storage.get_last_event("i-2", "EventReceived")
    assert other is not None
    assert other.event_data_binary == b"\x00"
    await storage.archive_history("i-1", lease=lease)
    assert await storage.get_last_event("i-1", "EventReceived") is None
    for instance_id, kind in (("", "x"), ("i-1", ""), ("i-1", "x" * 101)):
        with pytest.raises(LimitError):
            await storage.get_last_event(instance_id, kind)


async def test_events_of_given_activities_are_read_for_many_instances(storage: Storage) -> None:
    for instance_id in ("b", "a", "c"):
        await new(storage, instance_id)
        for activity in ("x", "y", "z"):
            await storage.append_history(HistoryEvent(instance_id, activity, "ActivityCompleted", b'"' + b'r"'))
    found = await storage.get_events(["c", "a", "absent"], ["z", "x", "absent"])
    assert [(event.instance_id, event.activity_id) for event in found] == [
        ("a", "x"),
        ("a", "z"),
        ("c", "x"),
        ("c", "z"),
    ]
    assert found[0].event_data == b'"r"'
    assert await storage.get_events([], ["x"]) == await storage.get_events(["a"], []) == []
