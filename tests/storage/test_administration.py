"""What operators have besides the contract: the audit, saved views, and lists of leases, locks, channels and events."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import NamedTuple

import pytest

from perdure.codecs import Encrypted, new_key
from perdure.codecs.pipeline import Pipeline
from perdure.errors import LimitError
from perdure.model.records import ChannelMode, ChannelWait, OutboxEvent, OutboxStatus, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage import saved_views
from perdure.storage.administration import Administration, administration_of
from perdure.storage.encoded_rows import encoded_tags
from perdure.storage.stores import SQLStorage, shift_clock
from perdure.testing.reference import Reference
from tests.conftest import BackendDatabase
from tests.support.databases import DATABASES


class Operated(NamedTuple):
    """A storage and its administration."""

    storage: SQLStorage
    administration: Administration


@pytest.fixture(params=DATABASES)
async def operated(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[Operated]:
    async with backend_database(request.param) as database:
        storage = await database.storage()
        administration = administration_of(storage)
        assert administration is not None
        yield Operated(storage, administration)


async def test_action_is_recorded_before_its_outcome_and_with_its_runs(operated: Operated) -> None:
    storage, (audit, _, _) = operated
    for id in ("r-1", "r-2"):
        await storage.create_instance(WorkflowInstance(id, "wf"))
    first = await audit.add("Ada", "cancel", "out of stock", target="r-1", runs=["r-1"])
    second = await audit.add("Ada", "retry", "fixed", query="state:failed", runs=["r-2", "r-1", "gone", "r-1"])
    await audit.finish(second, "2 done")
    last, before = await audit.latest()
    assert (last.id, last.query, last.target, last.outcome) == (second, "state:failed", "", "2 done")
    assert (before.id, before.reason, before.target, before.outcome) == (first, "out of stock", "r-1", "requested")
    assert before.at <= last.at
    assert [each.id for each in await audit.latest(1, before=second)] == [first]
    assert [each.id for each in await audit.of_run("r-1")] == [second, first]
    assert [each.id for each in await audit.of_run("r-1", 1, before=second)] == [first]
    assert [each.id for each in await audit.of_run("r-2")] == [second]
    assert await audit.of_run("gone") == []


async def test_records_outlive_their_runs_and_are_removed_by_age(operated: Operated) -> None:
    storage, (audit, _, _) = operated
    await storage.create_instance(WorkflowInstance("r-1", "wf"))
    await audit.add("Ada", "cancel", "x", target="r-1", runs=["r-1"])
    await storage.cancel_instance("r-1")
    assert await storage.delete_ended(["r-1"]) == [True]
    assert len(await audit.of_run("r-1")) == 1
    shift_clock(storage, timedelta(days=2))
    await audit.add("Ada", "cancel", "y", keep=timedelta(days=3))
    assert len(await audit.latest()) == 2
    await audit.add("Ada", "cancel", "z", keep=timedelta(days=1))
    assert [each.reason for each in await audit.latest()] == ["z", "y"]
    assert await audit.of_run("r-1") == []


async def test_record_is_related_to_more_runs_once_each(operated: Operated) -> None:
    storage, (audit, _, _) = operated
    await storage.create_instances([WorkflowInstance(id, "wf") for id in ("r-1", "r-2")])
    record = await audit.add("Ada", "cancel", "x", query="state:running")
    await audit.relate(record, ["r-1", "gone"])
    await audit.relate(record, ["r-2", "r-1", "r-2"])  # as an attempt that is repeated
    await audit.relate(record + 1, ["r-1"])  # a record that was removed meanwhile
    for id, found in (("r-1", [record]), ("r-2", [record]), ("gone", [])):
        assert [each.id for each in await audit.of_run(id)] == found


async def test_long_texts_of_the_audit_are_cut(operated: Operated) -> None:
    audit = operated.administration.audit
    await audit.finish(await audit.add("Ada", "cancel", "x"), "é" * 10_000)
    (record,) = await audit.latest()
    assert (len(record.outcome), record.outcome[-1]) == (4000, "…")


async def test_view_has_a_unique_name(operated: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    views = operated.administration.views
    assert await views.add("late orders", "workflow:order started:>1d", "Ada")
    assert not await views.add("late orders", "state:failed", "Bob")
    assert await views.add("Late orders", "state:failed", "Bob")
    found = await views.list()
    assert [(each.name, each.query, each.created_by) for each in found] == [
        ("Late orders", "state:failed", "Bob"),
        ("late orders", "workflow:order started:>1d", "Ada"),
    ]
    monkeypatch.setattr(saved_views, "VIEWS_MAX", 2)
    with pytest.raises(LimitError, match="maximum"):
        await views.add("third", "", "Ada")
    assert await views.remove("late orders")
    assert not await views.remove("late orders")
    for name in ("", " x", "x" * 101):
        with pytest.raises(LimitError):
            await views.add(name, "", "Ada")


async def test_leases_and_system_locks_are_listed_by_their_ends(operated: Operated) -> None:
    storage, (_, _, surveys) = operated
    for number, seconds in enumerate((90, 30, 60)):
        await storage.create_instance(WorkflowInstance(f"r-{number}", "wf"), worker_id="w#0", timeout_sec=seconds)
    await storage.create_instance(WorkflowInstance("free", "wf"))
    first, *_ = found = await surveys.list_leases(2)
    assert [each.instance_id for each in found] == ["r-1", "r-2"]
    assert (first.locked_by, first.workflow_name, first.status) == ("w#0", "wf", WorkflowStatus.RUNNING)
    place = (found[-1].expires_at, found[-1].instance_id)
    assert [each.instance_id for each in await surveys.list_leases(2, after=place)] == ["r-0"]
    await storage.try_acquire_system_lock("relay", "w", 30)
    await storage.try_acquire_system_lock("cron", "w", 30)
    await storage.release_system_lock("cron", "w")
    (lock,) = await surveys.list_system_locks()
    await storage.try_acquire_system_lock("backfill", "w", 30)
    assert [each.lock_name for each in await surveys.list_system_locks()] == ["backfill", "relay"]
    assert (lock.lock_name, lock.locked_by) == ("relay", "w")


async def test_leases_that_end_together_are_on_one_page_each(operated: Operated) -> None:
    storage, (_, _, surveys) = operated
    ids = [f"r-{number}" for number in range(5)]
    await storage.create_instances([WorkflowInstance(id, "wf") for id in ids], worker_id="w#0", timeout_sec=60)
    seen, place = list[str](), None
    while page := await surveys.list_leases(2, after=place):
        seen += [each.instance_id for each in page]
        place = (page[-1].expires_at, page[-1].instance_id)
    assert seen == ids


async def test_channels_and_groups_are_listed_with_their_use(operated: Operated) -> None:
    storage, (_, _, surveys) = operated
    for id in ("r-1", "r-2"):
        await storage.create_instance(WorkflowInstance(id, "wf"))
        await storage.subscribe_to_channel(id, "news", ChannelMode.BROADCAST)
        await storage.join_group(id, "team")
    await storage.join_group("r-1", "a-team")
    for _ in range(3):
        await storage.publish_to_channel("alarm", b"{}")
    use = {each.channel: (each.messages, each.subscribers) for each in await surveys.list_channels()}
    assert use == {"alarm": (3, 0), "news": (0, 2)}
    assert [each.channel for each in await surveys.list_channels(1, after="alarm")] == ["news"]
    assert [(each.group_name, each.members) for each in await surveys.list_groups()] == [("a-team", 1), ("team", 2)]
    assert [each.group_name for each in await surveys.list_groups(1, after="a-team")] == ["team"]


async def test_runs_that_wait_on_a_channel_are_found(operated: Operated) -> None:
    storage, (_, _, surveys) = operated
    for id in ("r-1", "r-2", "r-3"):
        lease = await storage.create_instance(WorkflowInstance(id, "wf"), worker_id="w")
        assert lease is not None
        await storage.subscribe_to_channel(id, "news", ChannelMode.BROADCAST, lease=lease)
        await storage.suspend(lease, [ChannelWait("news", "r", after=timedelta(hours=1))])
    found = await surveys.some_waiting("news")
    assert sorted(id for id, _ in found) == ["r-1", "r-2", "r-3"]
    assert all(until is not None for _, until in found)
    assert len(await surveys.some_waiting("news", 2)) == 2
    assert await surveys.some_waiting("other") == []


async def test_outbox_is_listed_without_data(operated: Operated) -> None:
    storage, (_, _, surveys) = operated
    for number in range(3):
        await storage.add_outbox_event(OutboxEvent(f"e-{number}", "order.paid", "shop", b'{"card": 1}'))
    await storage.mark_outbox_event_failed("e-1", error="no route")
    pending = await surveys.list_outbox(OutboxStatus.PENDING, 1)
    assert [(each.event_id, each.event_data) for each in pending] == [("e-0", None)]
    assert pending[0].created_at is not None
    following = await surveys.list_outbox(OutboxStatus.PENDING, 5, after=(pending[0].created_at, "e-0"))
    assert [each.event_id for each in following] == ["e-2"]
    (parked,) = await surveys.list_outbox(OutboxStatus.INVALID)
    assert (parked.event_id, parked.last_error, parked.event_type) == ("e-1", "no route", "order.paid")
    assert await surveys.count_outbox(OutboxStatus.PENDING, 10) == 2
    assert await surveys.count_outbox(OutboxStatus.PENDING, 1) == 1


async def test_oldest_run_of_each_state_is_found(operated: Operated) -> None:
    storage, (_, _, surveys) = operated
    for id in ("r-2", "r-1"):
        await storage.create_instance(WorkflowInstance(id, "wf"))
        shift_clock(storage, timedelta(seconds=1))
    assert await surveys.oldest_in([WorkflowStatus.RUNNING, WorkflowStatus.FAILED]) == ["r-2"]


async def test_texts_are_encoded_with_the_codec_of_the_client(operated: Operated) -> None:
    storage = operated.storage
    administration = administration_of(storage, Pipeline([Encrypted({"k1": new_key()})]))
    assert administration is not None
    audit, views, _ = administration
    await audit.finish(await audit.add("Ada", "cancel", "card 4000", query="input.card:4000"), "card 4000 refused")
    await views.add("mine", "input.card:4000", "Ada")
    stored = str(await storage.db().fetch("SELECT query, reason, outcome FROM perdure_audit"))
    assert "4000" not in stored + str(await storage.db().fetch("SELECT query FROM perdure_views"))
    (record,) = await audit.latest()
    assert (record.query, record.reason, record.outcome) == ("input.card:4000", "card 4000", "card 4000 refused")
    assert [each.query for each in await views.list()] == ["input.card:4000"]
    assert len([tags async for tags in encoded_tags(storage)]) == 4  # so that no key in use is thrown away


async def test_storage_of_another_author_has_no_administration() -> None:
    assert administration_of(Reference()) is None
