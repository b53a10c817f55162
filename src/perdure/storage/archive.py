"""Archive the histories of finished generations, and begin the next generation of a run."""

import re
from collections.abc import Sequence
from typing import Any

from perdure.database.operation import Again, Operation, Work, raw, utc, utc_or_none
from perdure.errors import InvalidTransitionError, LimitError
from perdure.model import limits
from perdure.model.records import ArchivedHistoryEvent, Lease, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage import channels, instances
from perdure.storage.fences import fence
from perdure.storage.sql import load_statements
from perdure.storage.wakeups import RESUMABLE, Wakeups, resumable

S = load_statements("archive")


class Archive(Wakeups):
    """Implement HistoryArchiveManager, and recurring in one step."""

    async def archive_history(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Move the whole history to the archive, all or nothing."""
        await self._run(Work(lambda: _archive(instance_id, lease), repeat=True))

    async def get_archived_history(self, instance_id: str, *, limit: int | None = None) -> list[ArchivedHistoryEvent]:
        """Return the archived events in the order they were recorded in, with their original ids and times."""
        return await self._scan(_list, limits.name(instance_id, "instance_id"), limits.some(limit))

    async def cleanup_instance_subscriptions(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Remove an instance's timers, channel subscriptions, cursors, claims and group memberships."""
        await self._run(Work(lambda: _unsubscribe(instance_id, lease), repeat=True))

    async def recur_instance(self, instance_id: str, input_data: bytes, *, lease: Lease) -> WorkflowInstance:
        """Begin the next generation of a running instance with a new input; return the live row.

        The generation that ends becomes the instance `<id>~<n>` with status recurred, its history in the archive. The
        lease stays valid. Subscriptions, cursors, groups and unread direct messages are kept; compensations, timers and
        waits are removed.
        """
        text = limits.text(input_data, "input_data")
        if text is None:
            raise LimitError("input_data must be JSON as bytes; use b'null' for none")
        generations: list[str] = []
        work = Work(
            lambda: _recur(instance_id, text, lease, generations), confirm=lambda: _recurred(instance_id, generations)
        )
        return await self._announce(
            RESUMABLE, work, lambda live: resumable(instance_id, live.workflow_name, reason="recurred")
        )


def _archive(instance_id: str, lease: Lease | None) -> Operation[None]:
    yield from fence(instance_id, lease)
    yield from _move(instance_id, instance_id)


def _move(instance_id: str, archived_as: str) -> Operation[None]:
    yield S.copy(instance_id=instance_id, archived_as=archived_as)
    yield S.clear(instance_id=instance_id, archived_as=archived_as)


def _list(instance_id: str, limit: int) -> Operation[list[ArchivedHistoryEvent]]:
    rows = yield S.list(instance_id=instance_id, limit=limit)
    return [_from_row(row) for row in rows]


def _from_row(row: Sequence[Any]) -> ArchivedHistoryEvent:
    key, (text, binary, data_type, created_at, archived_at) = row[:5], row[5:]
    fields = [*key, raw(text), raw(binary), data_type, utc_or_none(created_at), utc(archived_at)]
    return ArchivedHistoryEvent(*fields)


def _unsubscribe(instance_id: str, lease: Lease | None) -> Operation[None]:
    marked = {row[0] for row in (yield S.claimed(instance_id=instance_id))}
    for channel in sorted(marked):
        yield channels.S.mark(channel=channel)  # messages it had claimed are available to others again
    yield from fence(instance_id, lease)
    if not marked.issuperset(row[0] for row in (yield S.claimed(instance_id=instance_id))):
        raise Again  # it was claimed meanwhile, and channels are locked before instances
    yield S.unsubscribe(instance_id=instance_id)


def _recur(instance_id: str, text: str, lease: Lease, generations: list[str]) -> Operation[WorkflowInstance]:
    yield from fence(instance_id, lease)
    live = yield from _live(instance_id)
    if live.status is not WorkflowStatus.RUNNING:
        raise InvalidTransitionError(f"run {instance_id!r} is {live.status} and cannot recur: only a running run can")
    generation = yield from _insert_generation(live)
    generations.append(generation)
    yield from _move(instance_id, generation)
    yield S.restart(instance_id=instance_id, input_data=text, generation=generation)
    return (yield from _live(instance_id))


def _live(instance_id: str) -> Operation[WorkflowInstance]:
    return instances.from_row((yield instances.S.get(instance_id=instance_id))[0])


def _insert_generation(live: WorkflowInstance) -> Operation[str]:
    """Store the ending generation and return its id: the first free number after its predecessor's."""
    last = re.fullmatch(re.escape(live.instance_id) + r"~(\d+)", live.continued_from or "")
    number = int(last[1]) if last else 0
    while True:
        number += 1
        generation = limits.name(f"{live.instance_id}~{number}", "the name of a generation")
        if (yield S.generation(instance_id=live.instance_id, generation=generation)):
            return generation


def _recurred(instance_id: str, generations: list[str]) -> Operation[WorkflowInstance | None]:
    """Return the live row after a lost answer if a generation of that name exists, because the commit wrote it."""
    live = yield from _live(instance_id)
    return live if generations and live.continued_from == generations[-1] else None
