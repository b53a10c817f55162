"""Test how a backend creates, changes, cancels, finds and deletes instances."""

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import (
    InstanceExistsError,
    InstanceNotFoundError,
    InvalidTransitionError,
    LeaseLostError,
    LimitError,
    StorageError,
    WorkflowNotCancellableError,
)
from perdure.model.records import HistoryEvent, Lease, TimerSubscription, WorkflowInstance
from perdure.model.states import TERMINAL, WAITING, WorkflowStatus, sources_of
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased, new

S = WorkflowStatus
MOVABLE = [S.RUNNING, *sorted(WAITING), S.COMPENSATING]


async def test_all_fields_are_read_back_as_given(storage: Storage) -> None:
    started = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    await new(storage, "parent")
    given = WorkflowInstance(
        "i-1",
        "wf",
        b'{"n": [1, 2], "text": "\xc3\xa9\xf0\x9f\x90\x99"}',
        "perdure",
        S.WAITING_FOR_EVENT,
        b"null",
        "step:1",
        "abc123",
        "billing",
        "parent",
        "worker",
        started,
        42,
        started + timedelta(seconds=9),
        7,
        started,
        started + timedelta(seconds=1),
        b'{"tenant": "caf\xc3\xa9"}',
    )
    assert await storage.create_instance(given) is None
    assert await storage.get_instance("i-1") == given


async def test_headers_of_a_batch_are_read_back_as_given(storage: Storage) -> None:
    given = [b'{"tenant": "a"}', None, b'{"tenant": "caf\xc3\xa9"}', b"{}"]
    batch = [WorkflowInstance(f"i-{n}", "wf", headers=headers) for n, headers in enumerate(given)]
    leases = await storage.create_instances(batch, worker_id="w1", timeout_sec=10)
    assert all(isinstance(lease, Lease) for lease in leases)
    assert [it and it.headers for it in await storage.get_instances([it.instance_id for it in batch])] == given


@pytest.mark.parametrize("headers", [b'"' + b"x" * 65_536, b"\xff", b"a\0b"])
async def test_headers_that_cannot_be_stored_are_refused(storage: Storage, headers: bytes) -> None:
    with pytest.raises(LimitError, match="headers"):
        await storage.create_instance(WorkflowInstance("i-1", "wf", headers=headers))
    good, bad = await storage.create_instances(
        [WorkflowInstance("i-2", "wf"), WorkflowInstance("i-3", "wf", headers=headers)]
    )
    assert good is None
    assert isinstance(bad, LimitError)


async def test_omitted_times_are_set_by_the_database(storage: Storage) -> None:
    await new(storage, "i-1")
    found = await storage.get_instance("i-1")
    assert found is not None
    assert found.started_at is not None
    assert abs(found.started_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert (found.framework, found.status, found.lock_token) == ("perdure", S.RUNNING, 0)


async def test_absent_instance_is_none(storage: Storage) -> None:
    assert await storage.get_instance("nobody") is None


async def test_instances_are_returned_in_the_order_of_the_given_ids(storage: Storage) -> None:
    for n in range(5):
        await storage.create_instance(WorkflowInstance(f"i-{n}", f"wf-{n}", input_data=b'{"n": %d}' % n))
    await storage.create_instance(WorkflowInstance("I-1", "other"))
    ids = ["i-3", "nobody", "i-1", "I-1", "i-3", "i-1 ", ""]
    found = await storage.get_instances(ids)
    assert [it and it.workflow_name for it in found] == ["wf-3", None, "wf-1", "other", "wf-3", None, None]
    assert found == [await storage.get_instance(instance_id) for instance_id in ids]
    assert await storage.get_instances([]) == []
    async with storage.transaction():
        await storage.update_instance_output("i-3", b"1")
        (changed,) = await storage.get_instances(["i-3"])
        assert changed is not None
        assert changed.status is S.COMPLETED


async def test_at_most_a_thousand_instances_are_read_at_once(storage: Storage) -> None:
    ids = [f"i-{n}" for n in range(1001)]
    await storage.create_instances([WorkflowInstance(instance_id, "wf") for instance_id in ids[:1000]])
    found = await storage.get_instances(ids[:1000])
    assert [it and it.instance_id for it in found] == ids[:1000]
    with pytest.raises(LimitError):
        await storage.get_instances(ids)


async def test_instance_id_can_be_created_once(storage: Storage) -> None:
    await new(storage, "i-1", input_data=b'{"first": true}')
    with pytest.raises(InstanceExistsError):
        await new(storage, "i-1", input_data=b'{"second": true}')
    found = await storage.get_instance("i-1")
    assert found is not None
    assert found.input_data == b'{"first": true}'


@pytest.mark.pitfall(38)
async def test_one_of_many_concurrent_creators_wins(storage: Storage, peer: Storage) -> None:
    answers = await asyncio.gather(
        *(new(side, "i-1", source_hash="h") for side in [storage, peer] * 8), return_exceptions=True
    )
    assert sum(answer is None for answer in answers) == 1
    assert all(answer is None or isinstance(answer, InstanceExistsError) for answer in answers)


@pytest.mark.pitfall(48)
async def test_instance_can_be_created_with_a_lease(storage: Storage, peer: Storage) -> None:
    lease = await storage.create_instance(WorkflowInstance("i-1", "wf"), worker_id="w1", timeout_sec=30)
    assert lease is not None
    assert (lease.instance_id, lease.worker_id, lease.token) == ("i-1", "w1", 1)
    assert await peer.try_acquire_lock("i-1", "w2", 30) is None
    assert await storage.find_resumable_workflows() == []
    await storage.append_history(HistoryEvent("i-1", "s", "ActivityCompleted", b"1"), lease=lease)


@pytest.mark.pitfall(36)
async def test_instance_ids_are_compared_exactly(storage: Storage) -> None:
    for instance_id in ("Pay:1", "pay:1", "pay:1é", "pay:1e\u0301"):
        await new(storage, instance_id)
    for instance_id in ("Pay:1", "pay:1", "pay:1é", "pay:1e\u0301"):
        found = await storage.get_instance(instance_id)
        assert found is not None
        assert found.instance_id == instance_id
    assert await storage.get_instance("PAY:1") is None


@pytest.mark.parametrize("bad", ["", " a", "a ", "a\nb", "a\x00b", "\ud800", "x" * 201])
async def test_a_bad_id_is_refused_and_nothing_stored(storage: Storage, bad: str) -> None:
    with pytest.raises(LimitError):
        await new(storage, bad)
    assert await storage.find_resumable_workflows() == []


async def test_limits_hold_to_the_byte(storage: Storage) -> None:
    fits = b'"' + b"x" * (8 * 1024 * 1024 - 2) + b'"'
    await new(storage, "x" * 200, input_data=fits, workflow_name="n" * 255)
    found = await storage.get_instance("x" * 200)
    assert found is not None
    assert found.input_data == fits
    for broken in ({"input_data": fits + b" "}, {"workflow_name": "n" * 256}, {"input_data": b"\xff"}):
        with pytest.raises(LimitError):
            await new(storage, "i-2", **broken)
    with pytest.raises(LimitError):
        await new(storage, "i-2", framework="go")


STATES: list[S] = [status for status in S if status is not S.RECURRED]


@pytest.mark.parametrize("source", STATES)
async def test_only_listed_state_transitions_are_allowed(storage: Storage, source: S) -> None:
    for target in STATES:
        await storage.create_instance(WorkflowInstance(target.value, "wf", status=source))
        if source in sources_of(target):
            await storage.update_instance_status(target.value, target)
            expected = target
        else:
            with pytest.raises(InvalidTransitionError, match=f"{source.value}.*{target.value}"):
                await storage.update_instance_status(target.value, target)
            expected = source
        found = await storage.get_instance(target.value)
        assert found is not None
        assert found.status == expected


async def test_status_cannot_be_set_to_recurred(storage: Storage) -> None:
    await new(storage, "i-1")
    with pytest.raises(InvalidTransitionError):
        await storage.update_instance_status("i-1", S.RECURRED)


async def test_writes_to_an_unknown_id_raise(storage: Storage) -> None:
    lease = Lease("nobody", "w", 1, datetime.now(UTC))
    with pytest.raises(InstanceNotFoundError):
        await storage.update_instance_status("nobody", S.COMPENSATING)
    with pytest.raises(InstanceNotFoundError):
        await storage.update_instance_status("nobody", S.FAILED, "x")
    with pytest.raises(InstanceNotFoundError):
        await storage.update_instance_activity("nobody", "a")
    with pytest.raises(InstanceNotFoundError):
        await storage.update_instance_output("nobody", b"1")
    with pytest.raises(InstanceNotFoundError):
        await storage.complete_and_release(lease, b"1")
    with pytest.raises(InstanceNotFoundError):
        await storage.append_history(HistoryEvent("nobody", "a", "ActivityCompleted", b"1"))


async def test_a_failure_records_its_message(storage: Storage) -> None:
    await new(storage, "i-1")
    message = "no such card ☠"
    await storage.update_instance_status("i-1", S.FAILED, message)
    (event,), _ = await storage.get_history_paginated("i-1")
    assert (event.event_type, event.activity_id) == ("WorkflowFailed", "workflow_failed")
    payload = json.loads(event.event_data or b"")  # the fields of Edda, whose viewer shows them
    assert payload == {"error": message, "error_message": message, "error_type": "", "stack_trace": ""}


async def test_output_completes_the_instance_and_releases_its_lease(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    await storage.update_instance_output("i-1", b'{"total": 9.50}', lease=lease)
    found = await storage.get_instance("i-1")
    assert found is not None
    assert (found.status, found.output_data) == (S.COMPLETED, b'{"total": 9.50}')
    assert (found.locked_by, found.lock_expires_at, found.lock_token) == (None, None, lease.token + 1)
    with pytest.raises(InvalidTransitionError):
        await storage.update_instance_output("i-1", b"2")
    with pytest.raises(LeaseLostError):
        await storage.update_instance_output("i-1", b"2", lease=lease)


@pytest.mark.pitfall(1)
async def test_stale_lease_cannot_complete_an_instance(storage: Storage, peer: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    shift(peer, 11)
    taken = await peer.try_acquire_lock("i-1", "w2", 10)
    assert taken is not None
    assert taken.token == lease.token + 1
    for refused in (
        storage.complete_and_release(lease, b"1"),
        storage.update_instance_status("i-1", S.FAILED, "late", lease=lease),
        storage.update_instance_activity("i-1", "late", lease=lease),
        storage.cancel_instance("i-1", "late", lease=lease),
    ):
        with pytest.raises(LeaseLostError):
            await refused
    found = await storage.get_instance("i-1")
    assert found is not None
    assert (found.status, found.current_activity_id, found.locked_by) == (S.RUNNING, None, "w2")
    assert await storage.get_history_count("i-1") == 0


async def test_complete_instances_reports_a_result_for_each(storage: Storage) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(3)]
    await storage.release_lock("i-1", leases[1].worker_id)
    answers = await storage.complete_instances(
        [(leases[0], b"0"), (leases[1], b"1"), (leases[2], b"\xff"), (leases[2], b"2")]
    )
    assert [type(answer) for answer in answers] == [type(None), LeaseLostError, LimitError, type(None)]
    statuses = [(await storage.get_instance(f"i-{n}")).status for n in range(3)]  # type: ignore[union-attr]
    assert statuses == [S.COMPLETED, S.RUNNING, S.COMPLETED]


async def test_complete_instances_judges_each_item_by_its_own_row(storage: Storage) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(5)]
    await storage.update_instance_status("i-1", S.WAITING_FOR_TIMER, lease=leases[1])
    await storage.release_lock("i-2", leases[2].worker_id)
    await storage.register_timer_subscription(TimerSubscription("i-4", "t"), after=timedelta(seconds=1))
    absent = Lease("absent", "w", 1, datetime.now(UTC))
    outputs = [b"0", b"1", b"2", b'"\\u0041 \' \\\\"', b'"\xc3\xa9"', b"null"]
    items = list(zip([*leases, absent], outputs, strict=True))
    answers = await storage.complete_instances(items[::-1])  # the answers are in this order, whatever is written first
    assert [type(answer) for answer in answers[::-1]] == [
        *(type(None), InvalidTransitionError, LeaseLostError, type(None), type(None), InstanceNotFoundError)
    ]
    found = await storage.get_instances([f"i-{n}" for n in range(5)])
    assert [it and it.output_data for it in found] == [outputs[0], None, None, *outputs[3:5]]
    assert [it and it.lock_token for it in found] == [2, 1, 1, 2, 2]
    assert await storage.get_waits(["i-4"]) == []
    again = await storage.complete_instances([(lease, b"9") for lease in leases[3:]])
    assert [type(answer) for answer in again] == [LeaseLostError] * 2
    assert await storage.complete_instances([]) == []


async def test_complete_instances_stores_many_and_large_outputs(storage: Storage) -> None:
    ids = [f"i-{n}" for n in range(600)]  # several statements
    leases = await storage.create_instances([WorkflowInstance(id, "wf") for id in ids], worker_id="w")
    large = b'"' + b"x" * 1_500_000 + b'"'  # two of them need another statement, too
    outputs = [large if n in (3, 300, 301) else b"%d" % n for n in range(600)]
    items = [(lease, output) for lease, output in zip(leases, outputs, strict=True) if isinstance(lease, Lease)]
    assert await storage.complete_instances(items) == [None] * 600
    found = await storage.get_instances(ids)
    assert [it and (it.status, it.output_data) for it in found] == [(S.COMPLETED, output) for output in outputs]


async def test_complete_instances_is_part_of_an_open_transaction(storage: Storage) -> None:
    leases = [await leased(storage, f"i-{n}") for n in range(3)]
    await storage.release_lock("i-1", leases[1].worker_id)
    for commit in (False, True):
        await storage.begin_transaction()
        answers = await storage.complete_instances([(lease, b"1") for lease in leases])
        assert [type(answer) for answer in answers] == [type(None), LeaseLostError, type(None)]
        await (storage.commit_transaction() if commit else storage.rollback_transaction())
        found = await storage.get_instances(["i-0", "i-1", "i-2"])
        ends = [S.COMPLETED, S.RUNNING, S.COMPLETED] if commit else [S.RUNNING] * 3
        assert [it and it.status for it in found] == ends


async def test_create_instances_reports_a_result_for_each(storage: Storage) -> None:
    await new(storage, "i-1")
    answers = await storage.create_instances(
        [
            WorkflowInstance("i-0", "wf"),
            WorkflowInstance("i-1", "wf"),
            WorkflowInstance(" ", "wf"),
            WorkflowInstance("i-2", "wf"),
        ],
        worker_id="w",
    )
    assert [type(answer) for answer in answers] == [Lease, InstanceExistsError, LimitError, Lease]
    assert await storage.create_instances([]) == []


@pytest.mark.parametrize("worker_id", [None, "w"])
async def test_create_instances_stores_what_create_instance_stores(storage: Storage, worker_id: str | None) -> None:
    def made(prefix: str) -> list[WorkflowInstance]:
        return [
            WorkflowInstance(
                f"{prefix}-2", "wf", b'{"text": "\xc3\xa9 \\\\ \'"}', source_hash="h", owner_service="own"
            ),
            WorkflowInstance(f"{prefix}-1", "other", b"[]", "perdure", S.WAITING_FOR_TIMER),
            WorkflowInstance(f"{prefix}-3", "wf"),
        ]

    answers = await storage.create_instances(made("many"), worker_id=worker_id, timeout_sec=60)
    alone = [await storage.create_instance(it, worker_id=worker_id, timeout_sec=60) for it in made("one")]
    stored = [await storage.get_instances([it.instance_id for it in made(prefix)]) for prefix in ("many", "one")]
    unlike = ("instance_id", "started_at", "updated_at", "locked_at", "lock_expires_at")
    rows = [[{k: v for k, v in asdict(it).items() if k not in unlike} for it in found if it] for found in stored]
    assert rows[0] == rows[1]
    for answer, lease, it in zip(answers, alone, stored[0], strict=True):
        assert it is not None
        assert it.started_at is not None
        assert abs(it.started_at - datetime.now(UTC)) < timedelta(minutes=1)
        assert (it.locked_at is None) == (worker_id is None)
        if lease is None:
            assert answer is None
            assert it.lock_expires_at is None
        else:
            assert it.lock_expires_at is not None
            assert answer == Lease(it.instance_id, "w", lease.token, it.lock_expires_at)
            assert abs(it.lock_expires_at - lease.expires_at) < timedelta(seconds=30)


async def test_create_instances_uses_the_lease_time_of_each_instance(storage: Storage) -> None:
    for times in ((None, None), (600, 600), (600, None)):
        made = [WorkflowInstance(f"i-{times}-{n}", "wf", lock_timeout_seconds=sec) for n, sec in enumerate(times)]
        answers = await storage.create_instances(made, worker_id="w", timeout_sec=60)
        for answer, sec in zip(answers, times, strict=True):
            assert isinstance(answer, Lease)
            assert abs(answer.expires_at - datetime.now(UTC) - timedelta(seconds=sec or 60)) < timedelta(seconds=30)
        found = await storage.get_instances([it.instance_id for it in made])
        assert [it and it.lock_timeout_seconds for it in found] == list(times)


async def test_create_instances_stores_many_and_large_inputs(storage: Storage) -> None:
    large = b'"' + b"x" * 1_500_000 + b'"'  # two of them need another statement
    made = [WorkflowInstance(f"i-{n}", "wf", large if n in (3, 300, 301) else b"%d" % n) for n in range(600)]
    assert await storage.create_instances(made) == [None] * 600
    found = await storage.get_instances([it.instance_id for it in made])
    assert [it and it.input_data for it in found] == [it.input_data for it in made]
    more = [WorkflowInstance(f"j-{n}", "wf", made[n].input_data) for n in range(600)]
    await new(storage, "j-9")
    answers = await storage.create_instances(more)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, InstanceExistsError)] == [9]
    assert answers.count(None) == 599


async def test_create_instances_is_part_of_an_open_transaction(storage: Storage) -> None:
    await new(storage, "i-1")
    made = [WorkflowInstance(f"i-{n}", f"wf-{n}") for n in range(3)]
    for commit in (False, True):
        await storage.begin_transaction()
        answers = await storage.create_instances(made, worker_id="w")
        assert [type(answer) for answer in answers] == [Lease, InstanceExistsError, Lease]
        await (storage.commit_transaction() if commit else storage.rollback_transaction())
        found = await storage.get_instances(["i-0", "i-1", "i-2"])
        assert [it is not None for it in found] == [commit, True, commit]


@pytest.mark.parametrize("status", MOVABLE)
async def test_cancel_works_in_every_state_that_is_not_final(storage: Storage, status: S) -> None:
    lease = await leased(storage, "i-1")
    await storage.update_instance_status("i-1", status)
    await storage.cancel_instance("i-1", "changed my mind")
    found = await storage.get_instance("i-1")
    assert found is not None
    assert (found.status, found.locked_by, found.lock_token) == (S.CANCELLED, None, lease.token + 1)
    (event,), _ = await storage.get_history_paginated("i-1")
    assert (event.event_type, event.activity_id) == ("WorkflowCancelled", "workflow_cancelled")
    assert json.loads(event.event_data or b"")["reason"] == "changed my mind"
    with pytest.raises(LeaseLostError):
        await storage.complete_and_release(lease, b"1")


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_finished_instance_cannot_be_cancelled(storage: Storage, status: S) -> None:
    await storage.create_instance(WorkflowInstance("i-1", "wf", status=status))
    for compensate in (False, True):
        with pytest.raises(WorkflowNotCancellableError):
            await storage.cancel_instance("i-1", compensate=compensate)
    assert await storage.get_history_count("i-1") == 0
    with pytest.raises(WorkflowNotCancellableError):
        await storage.cancel_instance("nobody")


@pytest.mark.pitfall(13)
async def test_cancel_removes_timers(storage: Storage, shift: Shift) -> None:
    for instance_id, compensate in (("i-1", False), ("i-2", True)):
        await new(storage, instance_id)
        await storage.register_timer_subscription(
            TimerSubscription(instance_id, "t", activity_id="sleep:1"), after=timedelta(seconds=1)
        )
        await storage.cancel_instance(instance_id, compensate=compensate)
    shift(storage, 5)
    assert await storage.find_expired_timers() == []


@pytest.mark.pitfall(45)
async def test_cancel_with_compensation_is_recorded_as_an_event(storage: Storage) -> None:
    lease = await leased(storage, "i-1")
    await storage.cancel_instance("i-1", "first", compensate=True)
    found = await storage.get_instance("i-1")
    assert found is not None
    assert (found.status, found.locked_by) == (S.COMPENSATING, None)
    with pytest.raises(LeaseLostError):
        await storage.append_history(HistoryEvent("i-1", "late", "ActivityCompleted", b"1"), lease=lease)
    mine = await storage.try_acquire_lock("i-1", "w2", 10)
    assert mine is not None
    await storage.cancel_instance("i-1", "second", compensate=True)  # only recorded, and the first reason is kept
    await storage.append_history(HistoryEvent("i-1", "undo", "CompensationExecuted", b"1"), lease=mine)
    await storage.update_instance_status("i-1", S.CANCELLED, lease=mine)
    events, _ = await storage.get_history_paginated("i-1")
    assert [event.activity_id for event in events] == ["workflow_cancelled", "undo"]
    assert b"first" in (events[0].event_data or b"")


async def test_resumable_instances_have_no_valid_lease(storage: Storage, shift: Shift) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for n, status in enumerate([S.RUNNING, S.COMPENSATING, S.WAITING_FOR_TIMER, S.COMPLETED, S.RUNNING]):
        await storage.create_instance(
            WorkflowInstance(f"i-{n}", f"wf-{n % 2}", status=status, started_at=at - timedelta(days=n))
        )
    await storage.try_acquire_lock("i-4", "w", 10)
    assert [found.instance_id for found in await storage.find_resumable_workflows()] == ["i-1", "i-0"]
    assert [found.instance_id for found in await storage.find_resumable_workflows(1)] == ["i-1"]
    shift(storage, 11)
    found = await storage.find_resumable_workflows()
    assert [(row.instance_id, row.workflow_name) for row in found] == [
        ("i-1", "wf-1"),
        ("i-0", "wf-0"),
        ("i-4", "wf-0"),
    ]


async def test_resumable_instance_names_the_worker_whose_lease_expired(storage: Storage, shift: Shift) -> None:
    await storage.create_instance(WorkflowInstance("free", "wf"))
    for instance_id in ("lost", "released", "swept"):
        assert await storage.try_acquire_lock(instance_id, "w1", 10) is None
        await storage.create_instance(WorkflowInstance(instance_id, "wf"), worker_id=f"w-{instance_id}", timeout_sec=5)
    await storage.release_lock("released", "w-released")
    lost = await storage.get_instance("lost")
    assert lost is not None
    shift(storage, 6)
    await storage.refresh_lock("lost", "w-lost", 1)
    assert [info.instance_id for info in await storage.cleanup_stale_locks()] == ["swept"]
    shift(storage, 8)
    for names in (None, ["wf", "absent"]):
        resumable = await storage.find_resumable_workflows(workflow_names=names)
        owners = {it.instance_id: (it.worker_id, it.locked_at) for it in resumable}
        no_owner = (None, None)
        assert owners == {"free": no_owner, "released": no_owner, "swept": no_owner, "lost": ("w-lost", lost.locked_at)}
    assert await storage.try_acquire_lock("lost", "w2", 30)
    assert "lost" not in {it.instance_id for it in await storage.find_resumable_workflows()}


@pytest.mark.pitfall(31)
async def test_instances_of_unknown_workflows_do_not_hide_known_ones(storage: Storage) -> None:
    for n in range(120):
        await new(storage, f"alien-{n}", workflow_name="alien")
    for day, name in enumerate(["b", "a"], 1):
        await new(storage, f"mine-{name}", workflow_name=name, started_at=datetime(2026, 1, day, tzinfo=UTC))
    found = await storage.find_resumable_workflows(5, workflow_names=["a", "b", "never-seen"])
    assert [row.instance_id for row in found] == ["mine-b", "mine-a"]
    assert await storage.find_resumable_workflows(5, workflow_names=[]) == []
    many = [f"name-{n}" for n in range(450)]
    assert len(await storage.find_resumable_workflows(5, workflow_names=[*many, "a"])) == 1


@pytest.mark.parametrize("limit", [-1, 1001, True, 1.5])
async def test_a_page_has_one_to_a_thousand_rows(storage: Storage, limit: int) -> None:
    with pytest.raises(LimitError):
        await storage.find_resumable_workflows(limit)


@pytest.mark.pitfall(44)
async def test_finished_instances_are_deleted_by_age(storage: Storage, shift: Shift) -> None:
    for n in range(3):
        await new(storage, f"i-{n}")
        await storage.append_history(HistoryEvent(f"i-{n}", "s", "ActivityCompleted", b"1"))
    await storage.update_instance_output("i-0", b"1")
    await storage.update_instance_output("i-1", b"1")
    assert await storage.delete_instances(timedelta(hours=1)) == 0
    shift(storage, 3601)
    assert await storage.delete_instances(timedelta(hours=1), limit=1) == 1
    assert await storage.delete_instances(timedelta(hours=1)) == 1
    assert await storage.delete_instances(timedelta(0)) == 0
    assert [await storage.get_history_count(f"i-{n}") for n in range(3)] == [0, 0, 1]
    await new(storage, "i-0")  # the id is free again


async def test_earlier_generations_are_deleted_despite_later_ones(storage: Storage, shift: Shift) -> None:
    await storage.create_instance(WorkflowInstance("i~1", "wf", status=S.RECURRED))
    await storage.create_instance(WorkflowInstance("i~2", "wf", status=S.RECURRED, continued_from="i~1"))
    await new(storage, "i", continued_from="i~2")
    shift(storage, 10)
    assert await storage.delete_instances(timedelta(seconds=5)) == 1
    found = await storage.get_instance("i")
    assert found is not None
    assert found.continued_from == "i~2"  # it determines the generation of a live run
    await storage.update_instance_output("i", b"1")
    shift(storage, 20)
    assert await storage.delete_instances(timedelta(seconds=5)) == 2


async def test_errors_have_codes_and_one_base_class(storage: Storage) -> None:
    with pytest.raises(StorageError) as caught:
        await storage.update_instance_activity("nobody", "a")
    assert caught.value.code == "storage.instance_not_found"


async def test_finished_instances_are_deleted_by_id(storage: Storage) -> None:
    for name in ("done", "live", "i~1"):
        await new(storage, name)
        await storage.append_history(HistoryEvent(name, "s", "ActivityCompleted", b"1"))
    await new(storage, "i", continued_from="i~1")
    await storage.update_instance_output("done", b"1")
    await storage.update_instance_output("i~1", b"1")
    wanted = ["live", "done", "absent", "i~1"]
    assert await storage.delete_ended(wanted) == [False, True, False, False]
    assert [each is not None for each in await storage.get_instances(wanted)] == [True, False, False, True]
    assert [await storage.get_history_count(name) for name in ("done", "live", "i~1")] == [0, 1, 1]
    await storage.update_instance_output("i", b"1")
    assert await storage.delete_ended(["i~1", "i~1"]) == [True, True]
    assert await storage.delete_ended([]) == []


async def test_instance_that_several_live_ones_continue_from_is_kept(storage: Storage, shift: Shift) -> None:
    await new(storage, "old")
    await storage.update_instance_output("old", b"1")
    for name in ("i", "j"):
        await new(storage, name, continued_from="old")
    shift(storage, 10)
    assert await storage.delete_instances(timedelta(seconds=5)) == 0
    assert await storage.delete_ended(["old"]) == [False]


async def test_workflow_names_with_instances_are_listed(storage: Storage) -> None:
    assert await storage.list_workflow_names() == []
    for n, name in enumerate(("b", "a", "B", "b", "é", "a b")):
        await new(storage, f"i-{n}", name)
    assert await storage.list_workflow_names() == ["B", "a", "a b", "b", "é"]
