"""Test how a backend handles events to be sent."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from perdure.errors import HistoryConflictError, InvalidPageTokenError, LeaseLostError, LimitError
from perdure.model.records import OutboxEvent, OutboxStatus
from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift, leased


async def add(storage: Storage, *event_ids: str, source: str = "shop") -> None:
    for event_id in event_ids:
        await storage.add_outbox_event(OutboxEvent(event_id, "paid", source, b"1"))


async def fetch(storage: Storage, limit: int = 0, **options: object) -> list[str]:
    events = await storage.get_pending_outbox_events(limit, **options)  # type: ignore[arg-type]
    return [event.event_id for event in events]


async def send_all(storage: Storage) -> list[str]:
    """Return what a relay sends until there is nothing more."""
    sent: list[str] = []
    while found := await fetch(storage):
        for event_id in found:
            assert await storage.mark_outbox_event_sent(event_id)
        sent += found
    return sent


async def states(storage: Storage) -> dict[str, tuple[str, int]]:
    return {event.event_id: (event.status, event.retry_count) for event in await storage.list_outbox_events()}


async def test_added_events_are_fetched_as_added(storage: Storage) -> None:
    json = OutboxEvent("e-1", "order.paid", "/shop", b'{"n":  1}', content_type="application/cloudevents+json")
    binary = OutboxEvent("e-2", "order.paid", "/shop", event_data_binary=b"\x00\xff", data_type="binary")
    for event in (json, binary):
        await storage.add_outbox_event(event)
    first, second = await storage.get_pending_outbox_events(relay_id="r1")
    assert (first.event_id, first.event_type, first.event_source) == ("e-1", "order.paid", "/shop")
    assert (first.event_data, first.event_data_binary, first.data_type) == (b'{"n":  1}', None, "json")
    assert (first.content_type, first.status, first.retry_count) == ("application/cloudevents+json", "processing", 0)
    assert (second.event_data, second.event_data_binary, second.data_type) == (None, b"\x00\xff", "binary")
    assert (first.sequence, second.sequence) == (1, 2)
    assert first.created_at is not None
    assert abs(datetime.now(UTC) - first.created_at) < timedelta(minutes=1)
    assert (first.published_at, first.last_error) == (None, None)


@pytest.mark.parametrize("headers", [b'{"tenant":  "\xc3\xa9"}', b"{}", None])
async def test_headers_are_read_back_as_given(storage: Storage, headers: bytes | None) -> None:
    await storage.add_outbox_event(OutboxEvent("e-1", "paid", "shop", b"1", headers=headers))
    (listed,) = await storage.list_outbox_events()
    (pending,) = await storage.list_outbox_events(OutboxStatus.PENDING)
    (fetched,) = await storage.get_pending_outbox_events()
    assert listed.headers == pending.headers == fetched.headers == headers


async def test_headers_do_not_make_an_event_a_different_one(storage: Storage) -> None:
    first = OutboxEvent("e-1", "paid", "shop", b"1", headers=b'{"traceparent": "a"}')
    for headers in (first.headers, b'{"traceparent": "b"}', None):
        await storage.add_outbox_event(replace(first, headers=headers))
    assert [event.headers for event in await storage.list_outbox_events()] == [first.headers]


@pytest.mark.parametrize("headers", [b'"' + b"x" * 65_536, b"\xff", b"a\0b"])
async def test_headers_that_cannot_be_stored_are_refused(storage: Storage, headers: bytes) -> None:
    with pytest.raises(LimitError, match="headers"):
        await storage.add_outbox_event(OutboxEvent("e-1", "paid", "shop", b"1", headers=headers))
    assert await storage.list_outbox_events() == []


async def test_every_change_of_an_event_sets_updated_at(storage: Storage, shift: Shift) -> None:
    async def changed() -> datetime:
        (event,) = await storage.list_outbox_events()
        assert event.updated_at is not None
        assert event.created_at is not None
        assert event.created_at <= event.updated_at
        return event.updated_at

    times = []
    await storage.add_outbox_event(OutboxEvent("e-1", "paid", "shop", created_at=datetime(2020, 1, 1, tzinfo=UTC)))
    times.append(await changed())
    assert abs(datetime.now(UTC) - times[0]) < timedelta(minutes=1)
    (claimed,) = await storage.get_pending_outbox_events()
    assert claimed.updated_at == await changed()
    for n, change in enumerate(
        [
            lambda: storage.increment_outbox_attempts("e-1", back_off=timedelta(0)),
            lambda: storage.get_pending_outbox_events(),
            lambda: storage.mark_outbox_event_failed("e-1"),
            lambda: storage.requeue_outbox_event("e-1"),
            lambda: storage.mark_outbox_event_sent("e-1"),
        ],
        1,
    ):
        shift(storage, n)
        assert await change()  # type: ignore[no-untyped-call]
        times.append(await changed())
    assert all(later - earlier > timedelta(seconds=0.5) for earlier, later in pairwise(times))


@pytest.mark.pitfall(17)
async def test_event_exists_if_and_only_if_its_transaction_committed(storage: Storage) -> None:
    with pytest.raises(KeyError):
        async with storage.transaction():
            await add(storage, "e-1")
            raise KeyError
    assert await fetch(storage) == []
    async with storage.transaction():
        await add(storage, "e-2")
        with pytest.raises(KeyError):
            async with storage.transaction():
                await add(storage, "e-3", source="inner")
                raise KeyError
    assert await fetch(storage) == ["e-2"]


async def test_adding_the_same_event_again_changes_nothing(storage: Storage) -> None:
    event = OutboxEvent("e-1", "paid", "shop", b"1")
    await storage.add_outbox_event(event)
    await storage.add_outbox_event(event)
    await storage.add_outbox_event(replace(event, created_at=datetime(2020, 1, 1, tzinfo=UTC)))
    assert await send_all(storage) == ["e-1"]
    await storage.add_outbox_event(event)
    assert await send_all(storage) == []
    assert await states(storage) == {"e-1": ("published", 0)}


@pytest.mark.parametrize("change", [
    {"event_type": "refused"},
    {"event_source": "bank"},
    {"event_data": b"2"},
    {"event_data": None, "event_data_binary": b"1", "data_type": "binary"},
    {"content_type": "text/plain"},
])  # fmt: skip
async def test_different_event_with_the_same_id_is_a_conflict(storage: Storage, change: dict[str, object]) -> None:
    event = OutboxEvent("e-1", "paid", "shop", b"1")
    await storage.add_outbox_event(event)
    async with storage.transaction():
        with pytest.raises(HistoryConflictError):
            await storage.add_outbox_event(replace(event, **change))  # type: ignore[arg-type]
        await add(storage, "e-2")
    assert await send_all(storage) == ["e-1", "e-2"]


@pytest.mark.pitfall(1)
async def test_lost_lease_cannot_add_an_event(storage: Storage, shift: Shift) -> None:
    lease = await leased(storage, "i-1", timeout_sec=10)
    await storage.add_outbox_event(OutboxEvent("e-1", "paid", "shop"), lease=lease)
    shift(storage, 11)
    assert await storage.try_acquire_lock("i-1", "w2", 10) is not None
    with pytest.raises(LeaseLostError):
        await storage.add_outbox_event(OutboxEvent("e-2", "paid", "shop"), lease=lease)
    assert await fetch(storage) == ["e-1"]


@pytest.mark.pitfall(30)
async def test_concurrent_relays_fetch_each_event_once(storage: Storage, peer: Storage) -> None:
    for n in range(40):
        await add(storage, f"e-{n}", source=f"s-{n % 7}")
    found: list[str] = []
    while len(found) < 40:
        pages = await asyncio.gather(*(fetch(side, 3, relay_id=f"r{n}") for n, side in enumerate([storage, peer] * 4)))
        page = [event_id for page in pages for event_id in page]
        await asyncio.gather(*(peer.mark_outbox_event_sent(event_id) for event_id in page))
        found += page
    assert Counter(found) == Counter(f"e-{n}" for n in range(40))
    assert await fetch(storage) == []


async def test_fetch_fills_a_page_from_many_sources(storage: Storage) -> None:
    await add(storage, "a1", "a2", "a3", source="a")
    for n in range(10):
        await add(storage, f"b{n}", source=f"b-{n}")
    assert len(await fetch(storage, 5)) == 5
    assert len(await fetch(storage)) >= 7
    await storage.mark_outbox_event_sent("a1")
    with pytest.raises(LimitError):
        await fetch(storage, 1001)


async def test_a_busy_source_does_not_starve_the_others(storage: Storage) -> None:
    for n in range(20):
        await add(storage, f"a{n:02}", source="a")
    await add(storage, "b", source="b")
    assert await fetch(storage, 5) == ["a00", "a01", "a02", "a03", "a04"]
    for n in range(5):
        await storage.mark_outbox_event_sent(f"a{n:02}")
    assert (await fetch(storage, 5))[0] == "b"


async def test_events_of_a_source_are_fetched_in_order(storage: Storage) -> None:
    names = [f"e-{n:02}" for n in range(25)]
    await add(storage, *reversed(names))
    sent: list[str] = []
    while page := await fetch(storage, 4):
        for event_id in page:
            await storage.mark_outbox_event_sent(event_id)
        sent += page
    assert sent == names[::-1]


async def test_later_events_wait_for_a_claimed_earlier_event(storage: Storage) -> None:
    await add(storage, "e-1", "e-2", "e-3", "e-4")
    assert await fetch(storage, 2) == ["e-1", "e-2"]
    assert await fetch(storage) == []
    await add(storage, "e-5")
    await storage.mark_outbox_event_sent("e-2")
    assert await fetch(storage) == []
    await storage.mark_outbox_event_sent("e-1")
    assert await fetch(storage) == ["e-3", "e-4", "e-5"]


@pytest.mark.pitfall(11)
async def test_events_claimed_by_a_dead_relay_are_fetched_again(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1", "e-2", "e-3")
    assert await fetch(storage, relay_id="dead", lease_sec=20) == ["e-1", "e-2", "e-3"]
    await storage.mark_outbox_event_sent("e-1")
    shift(storage, 19)
    assert await fetch(storage) == []
    shift(storage, 21)
    assert await fetch(storage, 1) == ["e-2"]
    await storage.mark_outbox_event_sent("e-2")
    assert await fetch(storage) == ["e-3"]


async def test_marking_an_event_again_changes_nothing(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1", "e-2")
    await fetch(storage)
    assert await storage.mark_outbox_event_sent("e-1")
    (published,) = await storage.list_outbox_events(OutboxStatus.PUBLISHED)
    assert published.published_at is not None
    shift(storage, 5)
    assert await storage.mark_outbox_event_sent("e-1")
    assert await storage.list_outbox_events(OutboxStatus.PUBLISHED) == [published]
    assert not await storage.increment_outbox_attempts("e-1")
    assert not await storage.mark_outbox_event_failed("e-1")
    assert await storage.mark_outbox_event_failed("e-2", error="no")
    assert await storage.mark_outbox_event_failed("e-2", error="never")
    assert [event.last_error for event in await storage.list_outbox_events("invalid")] == ["no"]
    assert not await storage.increment_outbox_attempts("e-2")
    assert await states(storage) == {"e-1": ("published", 0), "e-2": ("invalid", 0)}


async def test_marking_an_unknown_event_returns_false(storage: Storage) -> None:
    for call in (
        storage.mark_outbox_event_sent("nothing"),
        storage.mark_outbox_event_failed("nothing"),
        storage.increment_outbox_attempts("nothing"),
        storage.requeue_outbox_event("nothing"),
    ):
        assert await call is False


@pytest.mark.pitfall(30)
async def test_failed_attempts_back_off_exponentially(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1")
    now = 0.0
    for attempt, wait in enumerate([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]):
        (event,) = await storage.get_pending_outbox_events()
        assert event.retry_count == attempt
        assert await storage.increment_outbox_attempts("e-1", error=f"no {attempt}")
        (event,) = await storage.list_outbox_events()
        assert (event.status, event.retry_count, event.last_error) == ("pending", attempt + 1, f"no {attempt}")
        shift(storage, now + wait - 0.5)
        assert await fetch(storage) == [], wait
        now += wait + 0.5
        shift(storage, now)


async def test_back_off_can_be_set_by_the_caller(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1")
    await fetch(storage)
    await storage.increment_outbox_attempts("e-1", back_off=timedelta(seconds=50))
    shift(storage, 49)
    assert await fetch(storage) == []
    shift(storage, 51)
    assert await fetch(storage) == ["e-1"]
    await storage.increment_outbox_attempts("e-1", back_off=timedelta(0))
    assert await fetch(storage) == ["e-1"]
    with pytest.raises(LimitError):
        await storage.increment_outbox_attempts("e-1", back_off=timedelta(seconds=-1))


async def test_back_off_holds_only_its_own_source(storage: Storage, shift: Shift) -> None:
    await add(storage, "a-1", "a-2", "a-3", source="a")
    await add(storage, "b-1", source="b")
    assert await fetch(storage) == ["a-1", "a-2", "a-3", "b-1"]
    await storage.mark_outbox_event_sent("a-1")
    await storage.increment_outbox_attempts("a-2", back_off=timedelta(seconds=60))
    await add(storage, "a-4", source="a")
    await add(storage, "b-2", source="b")
    assert await fetch(storage) == []
    await storage.mark_outbox_event_sent("b-1")
    assert await send_all(storage) == ["b-2"]
    assert await states(storage) == {
        "a-1": ("published", 0),
        "a-2": ("pending", 1),
        "a-3": ("pending", 0),
        "a-4": ("pending", 0),
        "b-1": ("published", 0),
        "b-2": ("published", 0),
    }
    shift(storage, 61)
    assert await send_all(storage) == ["a-2", "a-3", "a-4"]


async def test_failed_event_waits_for_earlier_events_of_its_source(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1", "e-2", "e-3")
    await fetch(storage, lease_sec=100)
    await storage.increment_outbox_attempts("e-2", back_off=timedelta(seconds=50))
    shift(storage, 51)
    assert await fetch(storage) == []  # the first is still claimed
    await storage.increment_outbox_attempts("e-1", back_off=timedelta(0))
    assert await fetch(storage) == ["e-1", "e-2", "e-3"]
    await storage.increment_outbox_attempts("e-2", back_off=timedelta(seconds=50))
    await storage.increment_outbox_attempts("e-1", back_off=timedelta(seconds=1))
    shift(storage, 53)
    assert await fetch(storage) == ["e-1"]  # the second still backs off
    await storage.mark_outbox_event_sent("e-1")
    assert await fetch(storage) == []
    shift(storage, 102)
    assert await fetch(storage) == ["e-2", "e-3"]


async def test_parked_event_can_be_requeued(storage: Storage) -> None:
    await add(storage, "e-1", "e-2")
    await fetch(storage)
    await storage.increment_outbox_attempts("e-1", error="no", back_off=timedelta(0))
    await storage.mark_outbox_event_failed("e-1")
    await storage.mark_outbox_event_sent("e-2")
    assert await fetch(storage) == []
    assert await storage.requeue_outbox_event("e-1")
    assert not await storage.requeue_outbox_event("e-1")
    assert not await storage.requeue_outbox_event("e-2")
    await add(storage, "e-3")
    (first, second) = await storage.get_pending_outbox_events()
    assert (first.event_id, first.retry_count, first.last_error) == ("e-1", 0, None)
    assert second.event_id == "e-3"


async def test_late_relay_cannot_change_an_event_claimed_by_another_relay(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1", "e-2")
    assert await fetch(storage, relay_id="slow", lease_sec=10) == ["e-1", "e-2"]
    shift(storage, 11)
    assert await fetch(storage, relay_id="next", lease_sec=100) == ["e-1", "e-2"]
    assert not await storage.increment_outbox_attempts("e-1", relay_id="slow")
    assert not await storage.mark_outbox_event_failed("e-1", relay_id="slow")
    assert await storage.mark_outbox_event_sent("e-1")  # it was sent, whichever relay reports it
    assert await fetch(storage) == []
    assert await storage.increment_outbox_attempts("e-2", relay_id="next", back_off=timedelta(0))
    assert not await storage.increment_outbox_attempts("e-2", relay_id="next")
    assert await fetch(storage) == ["e-2"]


async def test_events_of_a_claim_are_settled_in_one_commit(storage: Storage) -> None:
    await add(storage, "a-1", "a-2", "a-3", source="a")
    await add(storage, "b-1", source="b")
    assert await fetch(storage, relay_id="r") == ["a-1", "a-2", "a-3", "b-1"]
    await storage.settle_outbox_events(sent=["a-1", "b-1", "a-1"], released=["a-2", "a-3"], relay_id="r")
    found = await states(storage)
    assert found == {"a-1": ("published", 0), "a-2": ("pending", 0), "a-3": ("pending", 0), "b-1": ("published", 0)}
    assert await fetch(storage) == ["a-2", "a-3"]
    await storage.settle_outbox_events(relay_id="r")
    await storage.settle_outbox_events(sent=["a-2", "nothing"], released=["nothing"], relay_id="")
    assert await fetch(storage) == []  # a-3 is still claimed
    await storage.settle_outbox_events(released=["a-3"], relay_id="")
    assert await fetch(storage) == ["a-3"]


async def test_released_events_can_wait_before_they_are_fetched_again(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1", "e-2")
    await fetch(storage, relay_id="r")
    await storage.settle_outbox_events(released=["e-1", "e-2"], relay_id="r", pause=timedelta(seconds=10))
    await add(storage, "e-3")
    assert await fetch(storage) == []
    shift(storage, 11)
    assert await fetch(storage) == ["e-1", "e-2", "e-3"]
    assert await states(storage) == dict.fromkeys(("e-1", "e-2", "e-3"), ("processing", 0))


async def test_pause_of_released_events_ends_no_other_claim_of_their_source(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1", "e-2")
    await fetch(storage, relay_id="r", lease_sec=100)
    await storage.settle_outbox_events(released=["e-2"], relay_id="r", pause=timedelta(seconds=10))
    shift(storage, 11)
    assert await fetch(storage) == []
    await storage.settle_outbox_events(sent=["e-1"], relay_id="r")
    assert await fetch(storage) == ["e-2"]


async def test_late_relay_releases_no_event_claimed_by_another_relay(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1", "e-2")
    await fetch(storage, relay_id="slow", lease_sec=10)
    shift(storage, 11)
    await fetch(storage, relay_id="next", lease_sec=100)
    await storage.settle_outbox_events(sent=["e-1"], released=["e-2"], relay_id="slow")
    assert await states(storage) == {"e-1": ("published", 0), "e-2": ("processing", 0)}
    assert await fetch(storage) == []


async def test_event_can_be_marked_before_it_is_fetched(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1", "e-2", "e-3")
    assert await storage.mark_outbox_event_sent("e-1")
    assert await storage.increment_outbox_attempts("e-2", back_off=timedelta(seconds=10))
    assert await storage.mark_outbox_event_failed("e-3")
    assert await fetch(storage) == []
    shift(storage, 11)
    assert await send_all(storage) == ["e-2"]


@pytest.mark.pitfall(52)
async def test_lists_are_bounded_and_in_order(storage: Storage) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    names = [f"{letter}-{n}" for n in range(4) for letter in "abc"]
    for place, name in enumerate(reversed(names)):
        at = start + timedelta(seconds=names.index(name) // 3)
        await storage.add_outbox_event(OutboxEvent(name, "paid", f"s-{place % 2}", created_at=at))
    assert [event.event_id for event in await storage.list_outbox_events()] == names
    pages, after = list[list[str]](), None
    while page := [event.event_id for event in await storage.list_outbox_events("pending", 5, after=after)]:
        pages.append(page)
        after = page[-1]
    assert pages == [names[:5], names[5:10], names[10:]]
    assert await storage.list_outbox_events(OutboxStatus.PUBLISHED) == []
    with pytest.raises(InvalidPageTokenError):
        await storage.list_outbox_events(after="nothing")
    with pytest.raises(LimitError):
        await storage.list_outbox_events(limit=1001)
    with pytest.raises(LimitError, match="unknown"):
        await storage.list_outbox_events("unknown")


@pytest.mark.pitfall(44)
async def test_published_events_are_removed_by_the_time_of_publication(storage: Storage, shift: Shift) -> None:
    old = datetime(2020, 1, 1, tzinfo=UTC)
    for name in ("sent", "late", "parked", "waiting"):
        await storage.add_outbox_event(OutboxEvent(name, "paid", name, created_at=old))
    await fetch(storage)
    await storage.mark_outbox_event_sent("sent")
    await storage.mark_outbox_event_failed("parked")
    shift(storage, 60)
    await storage.mark_outbox_event_sent("late")
    assert await storage.cleanup_old_outbox_events(timedelta(seconds=30)) == 1
    assert await states(storage) == {
        "late": ("published", 0),
        "parked": ("invalid", 0),
        "waiting": ("processing", 0),
    }
    assert await storage.cleanup_old_outbox_events(timedelta(0)) == 1
    assert await storage.cleanup_old_outbox_events(timedelta(0)) == 0


async def test_concurrent_adds_to_one_source_succeed(storage: Storage, peer: Storage) -> None:
    sides = [storage, peer] * 10
    await asyncio.gather(*(add(side, f"e-{n}") for n, side in enumerate(sides)))
    await asyncio.gather(*(add(side, "same", source="other") for side in sides))
    events = await storage.list_outbox_events()
    sequences = [event.sequence for event in events if event.event_source == "shop"]
    assert sorted(sequence or 0 for sequence in sequences) == list(range(1, 21))
    assert len(events) == 21
    in_order = sorted((event for event in events), key=lambda event: (event.event_source, event.sequence or 0))
    assert sorted(await send_all(storage)) == sorted(event.event_id for event in in_order)


@pytest.mark.parametrize("event", [
    OutboxEvent("", "paid", "shop"),
    OutboxEvent("e" * 256, "paid", "shop"),
    OutboxEvent("e-1", "p" * 101, "shop"),
    OutboxEvent("e-1", "paid", "s" * 256),
    OutboxEvent("e-1", "paid", "shop "),
    OutboxEvent("e-1", "paid", "shop", content_type="c" * 101),
    OutboxEvent("e-1", "paid", "shop", data_type=""),
    OutboxEvent("e-1", "paid", "shop", b"\xff"),
    OutboxEvent("e-1", "paid", "shop", event_data_binary=b"1" * (8 * 1024 * 1024 + 1), data_type="binary"),
])  # fmt: skip
async def test_event_beyond_a_limit_is_refused(storage: Storage, event: OutboxEvent) -> None:
    with pytest.raises(LimitError):
        await storage.add_outbox_event(event)
    assert await storage.list_outbox_events() == []


@pytest.mark.pitfall(36)
async def test_event_ids_and_sources_are_compared_exactly(storage: Storage) -> None:
    await add(storage, "e-1", source="shop")
    await add(storage, "E-1", source="Shop")
    events = await storage.get_pending_outbox_events()
    assert {(event.event_id, event.event_source, event.sequence) for event in events} == {
        ("e-1", "shop", 1),
        ("E-1", "Shop", 1),
    }


@pytest.mark.pitfall(11)
async def test_parked_event_is_skipped_and_does_not_block_its_source(storage: Storage, shift: Shift) -> None:
    await add(storage, "e-1", "e-2", "e-3")
    await fetch(storage, 1)
    await storage.mark_outbox_event_failed("e-1", error="poison")
    assert await fetch(storage) == ["e-2", "e-3"]
    await storage.mark_outbox_event_failed("e-2")
    await storage.mark_outbox_event_sent("e-3")
    shift(storage, 100_000)
    assert await fetch(storage) == []
    parked = await storage.list_outbox_events(OutboxStatus.INVALID)
    assert [(event.event_id, event.last_error) for event in parked] == [("e-1", "poison"), ("e-2", None)]
