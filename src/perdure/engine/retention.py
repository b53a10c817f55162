"""Retention: what is over goes after a while, in small batches, beside the work. Nothing goes unless it is asked for.

Any worker may do it. Whoever gets the system lock keeps it for the whole interval and sweeps; the others ask once an
interval and find it taken. A sweep that a crash ends is gone on with by the next one: each batch is a commit.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta

from perdure.engine.durations import Duration, seconds
from perdure.engine.supervision import Supervised
from perdure.errors import StorageError
from perdure.model.limits import LEASE_MAX_SEC, SPAN_MAX
from perdure.model.records import ListInstancesOptions, OutboxStatus
from perdure.model.states import TERMINAL, WorkflowStatus
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

BATCH = 100  # runs go with their whole history, so a commit has few of them
PAGE = 1000
PAUSE_SEC = 0.02
REST = 3.0  # after a batch, rest so many times as long as it took: the work has three quarters of the database
SOON_SEC = 10.0  # workers that are started together do not all ask at once
AGAIN_SEC = 60.0  # after the database had trouble
DUTY = "perdure.retention"
CLOCK = "perdure.retention.clock"
CLOCK_SEC = 1.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long data is kept after it is no longer needed; None (the default) keeps it forever.

    - `finished`: runs that have ended, with their histories and archives.
    - `messages`: messages that no live subscriber waits for, with the ids by which they are de-duplicated.
    - `outbox`: events that were published.
    - `every`: sweep interval (default: one hour).
    """

    finished: Duration | None = None
    messages: Duration | None = None
    outbox: Duration | None = None
    every: Duration = timedelta(hours=1)

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            longest = timedelta(seconds=LEASE_MAX_SEC) if field.name == "every" else SPAN_MAX
            if given is not None or field.name == "every":
                seconds(given, f"Retention({field.name}=)", positive=True, longest=longest)

    @staticmethod
    def span(duration: Duration | None) -> timedelta | None:
        """Return one of the durations as a timedelta."""
        return timedelta(seconds=duration) if isinstance(duration, int | float) else duration


@dataclass(frozen=True, slots=True)
class Swept:
    """How many of each went, or in a dry run would go; None where that cannot be told without doing it."""

    finished: int
    messages: int | None
    outbox: int
    dry_run: bool


async def sweep(storage: Storage, retention: Retention, *, dry_run: bool = False) -> Swept:
    """Remove what is older than the policy says, or only count it."""
    began = time.monotonic()
    swept = await (_survey(storage, retention) if dry_run else _sweep(storage, retention))
    found = swept.finished or swept.messages or swept.outbox
    log.log(
        logging.INFO if found else logging.DEBUG,
        "the retention sweep %s %d finished runs, %s messages and %d outbox events",
        "would remove" if dry_run else "removed",
        swept.finished,
        "?" if swept.messages is None else swept.messages,
        swept.outbox,
        extra={**asdict(swept), "duration_sec": round(time.monotonic() - began, 3)},
    )
    return swept


async def sweep_for_ever(
    storage: Storage, retention: Retention, worker_id: str, task: Supervised | None = None
) -> None:
    """A worker's duty."""
    task = task or Supervised("retention")
    every_sec = seconds(retention.every, "every")
    delay = random.uniform(0, min(SOON_SEC, every_sec))  # nosec B311 # a pause
    while True:
        await asyncio.sleep(delay)
        try:
            if await storage.try_acquire_system_lock(DUTY, worker_id, every_sec) is not None:
                await sweep(storage, retention)
            task.succeeded()
            delay = every_sec
        except StorageError as error:
            delay = min(AGAIN_SEC, every_sec)
            log.warning(
                "the retention sweep failed, retrying in %g s: %s",
                delay,
                error,
                extra={"worker": worker_id, "retry_in_sec": delay, "reason": str(error)},
            )


# Doing it.


async def _sweep(storage: Storage, retention: Retention) -> Swept:
    """Runs first: what only they still needed can go in the same sweep."""
    finished, messages, outbox = map(Retention.span, (retention.finished, retention.messages, retention.outbox))
    return Swept(
        0 if finished is None else await _all(lambda: storage.delete_instances(finished, BATCH), BATCH),
        0 if messages is None else await _all(lambda: storage.cleanup_old_channel_messages(messages, limit=PAGE), PAGE),
        0 if outbox is None else await storage.cleanup_old_outbox_events(outbox),
        dry_run=False,
    )


async def _all(remove: Callable[[], Awaitable[int]], most: int) -> int:
    """Remove batch by batch, with a rest after each that was full."""
    total = 0
    while True:
        began = time.monotonic()
        count = await remove()
        total += count
        if count < most:
            return total
        await _rest(max(PAUSE_SEC, REST * (time.monotonic() - began)))


async def _rest(seconds: float) -> None:
    await asyncio.sleep(seconds)


# Counting it.


async def _survey(storage: Storage, retention: Retention) -> Swept:
    now = await database_now(storage)
    finished, outbox = Retention.span(retention.finished), Retention.span(retention.outbox)
    return Swept(
        0 if finished is None else await _count_finished(storage, now - finished),
        0 if retention.messages is None else None,  # who still needs one is known only while its channel is locked
        0 if outbox is None else await _count_published(storage, now - outbox),
        dry_run=True,
    )


async def database_now(storage: Storage) -> datetime:
    """The clock that the sweep would go by: it says when a lock expires, and this one may be renewed by anybody."""
    while (lease := await storage.try_acquire_system_lock(CLOCK, CLOCK, CLOCK_SEC)) is None:  # noqa: ASYNC110
        await asyncio.sleep(PAUSE_SEC)
    return lease.expires_at - timedelta(seconds=CLOCK_SEC)


async def _count_finished(storage: Storage, before: datetime) -> int:
    return sum([await _count_in(storage, status, before) for status in sorted(TERMINAL)])


async def _count_in(storage: Storage, status: WorkflowStatus, before: datetime) -> int:
    """Runs in one final state, which they have been in since they were last written."""
    total, token, more = 0, None, True
    while more:
        page = await storage.list_instances(ListInstancesOptions(BATCH, token, status, started_before=before))
        total += sum(each.updated_at is not None and each.updated_at < before for each in page.instances)
        token, more = page.next_page_token, page.has_more
        await asyncio.sleep(0)
    return total


async def _count_published(storage: Storage, before: datetime) -> int:
    total, after = 0, None
    while True:
        page = await storage.list_outbox_events(OutboxStatus.PUBLISHED, BATCH, after=after)
        total += sum(each.published_at is not None and each.published_at <= before for each in page)
        if len(page) < BATCH or (page[-1].created_at or before) > before:  # the oldest come first
            return total
        after = page[-1].event_id
