"""Retention: delete old data in small batches while the workers run. By default nothing is deleted.

Any worker can sweep. The worker that gets the system lock holds it for the whole interval and sweeps; the others try
once per interval and find it taken. Each batch is one commit, so after a crash the next sweep resumes the work.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta

from perdure.engine.execution.clock import Clock, SystemClock
from perdure.engine.worker.supervision import Supervised
from perdure.errors import StorageError
from perdure.model.durations import Duration, seconds
from perdure.model.limits import LEASE_MAX_SEC, SPAN_MAX
from perdure.model.records import ListInstancesOptions, OutboxStatus
from perdure.model.states import TERMINAL, WorkflowStatus
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

BATCH = 100  # runs per commit: few, because each is deleted with its whole history
PAGE = 1000
PAUSE_SEC = 0.02
REST = 3.0  # pause this many times the duration of the last batch: runs keep three quarters of the database's time
SOON_SEC = 10.0  # spread the first sweeps of workers that start together
AGAIN_SEC = 60.0  # pause after a database error
DUTY = "perdure.retention"


@dataclass(frozen=True, slots=True)
class Retention:
    """A retention policy: how long data is kept after it is no longer needed.

    - `finished`: runs that have ended, with their histories (default: None, keep forever).
    - `messages`: messages that no live subscriber waits for (default: None, keep forever, with their ids).
    - `outbox`: published events in the outbox (default: None, keep forever).
    - `every`: sweep interval (default: one hour).
    - `message_ids`: the ids of received messages and events, by which a duplicate is recognised (default: 7 days; None
      keeps them forever). They are kept at least as long as `messages`.

    Durations are seconds or timedeltas. Raises `TypeError` or `ValueError` for an invalid duration.
    """

    finished: Duration | None = None
    messages: Duration | None = None
    outbox: Duration | None = None
    every: Duration = timedelta(hours=1)
    message_ids: Duration | None = timedelta(days=7)  # brokers deliver a message again hours or days later

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            longest = timedelta(seconds=LEASE_MAX_SEC) if field.name == "every" else SPAN_MAX
            if given is not None or field.name == "every":
                seconds(given, f"Retention({field.name}=)", positive=True, longest=longest)

    @staticmethod
    def span(duration: Duration | None) -> timedelta | None:
        """Return a duration of the policy as a timedelta, or None."""
        return timedelta(seconds=duration) if isinstance(duration, int | float) else duration


@dataclass(frozen=True, slots=True)
class Swept:
    """The numbers of runs, messages and outbox events that a sweep deleted, or in a dry run would delete.

    `messages` is None in a dry run with a policy for messages: they cannot be counted without deleting them.
    """

    finished: int
    messages: int | None
    outbox: int
    dry_run: bool


async def sweep(storage: Storage, retention: Retention, *, dry_run: bool = False) -> Swept:
    """Delete what the policy no longer keeps, or with `dry_run` only count it."""
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
    storage: Storage,
    retention: Retention,
    worker_id: str,
    task: Supervised | None = None,
    clock: Clock | None = None,
) -> None:
    """Sweep once per interval, if no other worker does; runs as a background task of every worker."""
    task, clock = task or Supervised("retention"), clock or SystemClock()
    every_sec = seconds(retention.every, "every")
    delay = random.uniform(0, min(SOON_SEC, every_sec))  # nosec B311 # a pause
    while True:
        await clock.rest(delay)
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


# Deleting.


async def _sweep(storage: Storage, retention: Retention) -> Swept:
    """Delete runs first, so that messages that only they needed are deleted in the same sweep."""
    finished, messages, outbox = map(Retention.span, (retention.finished, retention.messages, retention.outbox))
    ids = Retention.span(retention.message_ids) or SPAN_MAX
    return Swept(
        0 if finished is None else await _all(lambda: storage.delete_instances(finished, BATCH), BATCH),
        0 if messages is None else await _all(lambda: _clean(storage, messages, max(messages, ids)), PAGE),
        0 if outbox is None else await storage.cleanup_old_outbox_events(outbox),
        dry_run=False,
    )


async def _clean(storage: Storage, messages: timedelta, ids: timedelta) -> int:
    return await storage.cleanup_old_channel_messages(messages, limit=PAGE, ids_older_than=ids)


async def _all(remove: Callable[[], Awaitable[int]], most: int) -> int:
    """Delete batch by batch, with a pause after each full batch, and return the total."""
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


# Counting.


async def _survey(storage: Storage, retention: Retention) -> Swept:
    now = await storage.now()
    finished, outbox = Retention.span(retention.finished), Retention.span(retention.outbox)
    return Swept(
        0 if finished is None else await _count_finished(storage, now - finished),
        0 if retention.messages is None else None,  # counting the messages in use would need a lock on each channel
        0 if outbox is None else await _count_published(storage, now - outbox),
        dry_run=True,
    )


async def _count_finished(storage: Storage, before: datetime) -> int:
    return sum([await _count_in(storage, status, before) for status in sorted(TERMINAL)])


async def _count_in(storage: Storage, status: WorkflowStatus, before: datetime) -> int:
    """Count the runs that ended with a status before a time; a run is not updated after it has ended."""
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
