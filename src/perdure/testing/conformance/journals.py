"""Test how a backend records the last events of instances and completes them, in one commit."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import HistoryConflictError, InstanceNotFoundError, LeaseLostError, LimitError, StorageError
from perdure.model.records import HistoryEvent, Lease, TimerSubscription, WorkflowInstance
from perdure.model.states import WorkflowStatus as S
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased


def event(lease: Lease, n: object = 1, data: bytes | None = b"1") -> tuple[HistoryEvent, Lease]:
    return HistoryEvent(lease.instance_id, f"s:{n}", "ActivityCompleted", data), lease


async def steps(storage: Storage, instance_id: str) -> list[str]:
    return [found.activity_id for found in (await storage.get_history_paginated(instance_id))[0]]


async def statuses(storage: Storage, leases: list[Lease]) -> list[S | None]:
    found = await storage.get_instances([lease.instance_id for lease in leases])
    return [None if it is None else it.status for it in found]


def kinds(answers: list[int | StorageError | None]) -> list[type]:
    return [type(answer) for answer in answers]


async def test_instances_are_completed_after_their_last_events(storage: Storage) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(4)]
    await storage.register_timer_subscription(TimerSubscription("i-1", "t"), after=timedelta(seconds=1))
    events = [event(leases[3]), event(leases[1], 1), event(leases[0]), event(leases[1], 2)]
    answers = await storage.append_and_complete(events, [(leases[2], b"2"), (leases[1], b'"\xc3\xa9"')])
    assert kinds(answers) == [int] * 4 + [type(None)] * 2
    assert answers[1] < answers[3]  # type: ignore[operator]
    found = await storage.get_instances([f"i-{n}" for n in range(4)])
    assert [it and it.status for it in found] == [S.RUNNING, S.COMPLETED, S.COMPLETED, S.RUNNING]
    assert [it and it.output_data for it in found] == [None, b'"\xc3\xa9"', b"2", None]
    assert [it and it.current_activity_id for it in found] == ["s:1", "s:2", None, "s:1"]
    assert [it and it.lock_token for it in found] == [1, 2, 2, 1]
    assert [await steps(storage, f"i-{n}") for n in range(4)] == [["s:1"], ["s:1", "s:2"], [], ["s:1"]]
    assert [row.id for row in (await storage.get_history_paginated("i-1"))[0]] == [answers[1], answers[3]]
    assert await storage.get_waits(["i-1"]) == []


@pytest.mark.parametrize(
    "text", ['"a \\\\ \\" / \\n \\u0000 \\ud83d\\ude00"', '"\U0001f600 \u00e9 \u2028 \ufffe"', "{}", "1e400"]
)
async def test_batches_store_texts_unchanged(storage: Storage, text: str) -> None:
    """A storage may pass the texts of a batch in a form of its own, such as an array in JSON."""
    data, ids = text.encode(), [f"i-\U0001f600-{n}" for n in range(2)]
    created = [WorkflowInstance(id, "workflow", data, source_hash="h", owner_service="me") for id in ids]
    leases = [lease for lease in await storage.create_instances(created, worker_id="w") if isinstance(lease, Lease)]
    assert [lease.instance_id for lease in leases] == ids
    events = [event(lease, "\u00e9\U0001f600", data) for lease in leases]
    await storage.append_histories(events[:1])
    await storage.append_and_complete(events[1:], [(lease, data) for lease in leases])
    found = [it for it in await storage.get_instances(ids) if it is not None]
    assert [(it.input_data, it.output_data) for it in found] == [(data, data)] * 2
    assert [it.current_activity_id for it in found] == ["s:\u00e9\U0001f600"] * 2


@pytest.mark.parametrize("place", ["first", "last"])
async def test_instance_with_a_refused_event_is_not_completed(storage: Storage, place: str) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(3)]
    await storage.append_history(event(leases[1], "old")[0], lease=leases[1])
    wrong, right = event(leases[1], "old", b"2"), event(leases[1], "new")
    own = [wrong, right] if place == "first" else [right, wrong]
    completions = [(lease, b"9") for lease in leases]
    answers = await storage.append_and_complete([event(leases[0]), *own, event(leases[2])], completions)
    refused = [HistoryConflictError, int] if place == "first" else [int, HistoryConflictError]
    assert kinds(answers) == [int, *refused, int, type(None), HistoryConflictError, type(None)]
    assert await statuses(storage, leases) == [S.COMPLETED, S.RUNNING, S.COMPLETED]
    assert await steps(storage, "i-1") == ["s:old", "s:new"]
    assert await storage.append_history(event(leases[1], 3)[0], lease=leases[1])  # its lease is still current


async def test_events_that_are_recorded_already_do_not_prevent_the_completion(storage: Storage) -> None:
    lease, other = await leased(storage, "i-1"), await leased(storage, "i-2")
    first = await storage.append_history(event(lease)[0], lease=lease)
    answers = await storage.append_and_complete([event(other), event(lease), event(lease, 2)], [(lease, b"1")])
    assert kinds(answers) == [int, int, int, type(None)]
    assert answers[1] == first
    assert await statuses(storage, [lease, other]) == [S.COMPLETED, S.RUNNING]
    assert await steps(storage, "i-1") == ["s:1", "s:2"]


async def test_lost_lease_refuses_events_and_completion(storage: Storage, peer: Storage, shift: Shift) -> None:
    leases = [await leased(storage, f"i-{n}", timeout_sec=10) for n in range(3)]
    absent = Lease("absent", "w", 1, datetime.now(UTC))
    shift(peer, 11)
    assert await peer.try_acquire_lock("i-1", "other", 30)
    completions = [(lease, b"1") for lease in (*leases, absent)]
    answers = await storage.append_and_complete([event(lease) for lease in (*leases, absent)], completions)
    assert kinds(answers) == [
        *(int, LeaseLostError, int, InstanceNotFoundError),
        *(type(None), LeaseLostError, type(None), InstanceNotFoundError),
    ]
    assert await statuses(storage, leases) == [S.COMPLETED, S.RUNNING, S.COMPLETED]
    assert await steps(storage, "i-1") == []
    again = await storage.append_and_complete([event(leases[0])], [(leases[0], b"1")])
    assert kinds(again) == [LeaseLostError, LeaseLostError]


async def test_invalid_items_are_refused_alone(storage: Storage) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(3)]
    answers = await storage.append_and_complete(
        [event(leases[0], "x" * 300), event(leases[1]), event(leases[2])],
        [(leases[0], b"0"), (leases[1], b"\xff"), (leases[2], b"2"), (leases[2], b"3")],
    )
    assert kinds(answers) == [LimitError, int, int, LimitError, LimitError, type(None), LeaseLostError]
    assert await statuses(storage, leases) == [S.RUNNING, S.RUNNING, S.COMPLETED]
    assert await storage.append_and_complete([], []) == []
    assert kinds(await storage.append_and_complete([event(leases[1], 2)], [])) == [int]


async def test_many_and_large_events_and_completions_are_stored(storage: Storage) -> None:
    created = await storage.create_instances([WorkflowInstance(f"i-{n}", "wf") for n in range(600)], worker_id="w")
    leases = [lease for lease in created if isinstance(lease, Lease)]
    large = b'"' + b"x" * 1_500_000 + b'"'  # two of them need another statement
    sizes = [large if n in (3, 300, 301) else b"%d" % n for n in range(600)]
    events = [event(lease, 1, size) for lease, size in zip(leases, sizes, strict=True)]
    events.append(event(leases[5], 1, b"another"))
    answers = await storage.append_and_complete(events, list(zip(leases, sizes, strict=True)))
    assert kinds(answers)[600:607] == [HistoryConflictError, *[type(None)] * 5, HistoryConflictError]
    found = await storage.get_instances([lease.instance_id for lease in leases])
    assert [it and it.output_data for it in found] == [*sizes[:5], None, *sizes[6:]]


async def test_append_and_complete_is_part_of_an_open_transaction(storage: Storage) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(3)]
    await storage.release_lock("i-1", leases[1].worker_id)
    for commit in (False, True):
        await storage.begin_transaction()
        answers = await storage.append_and_complete([event(lease) for lease in leases], [(leases[0], b"1")])
        assert kinds(answers) == [int, LeaseLostError, int, type(None)]
        await (storage.commit_transaction() if commit else storage.rollback_transaction())
        expected = [S.COMPLETED, S.RUNNING, S.RUNNING] if commit else [S.RUNNING] * 3
        assert await statuses(storage, leases) == expected
        assert await steps(storage, "i-2") == (["s:1"] if commit else [])
