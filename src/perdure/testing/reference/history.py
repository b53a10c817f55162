"""Manage the history, append-only and in id order, the archive with the next generation, compensations and groups."""

import re
from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter

from perdure.errors import HistoryConflictError, InvalidTransitionError, LimitError, StorageError
from perdure.model import limits
from perdure.model.records import (
    ArchivedHistoryEvent,
    CompensationEntry,
    HistoryEvent,
    Lease,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.testing.reference.arguments import bounded, event_content
from perdure.testing.reference.fences import FREE, Fences, instance_from
from perdure.testing.reference.tables import Row, change, remove, where
from perdure.testing.reference.transactions import reads, writes

PAGE = 1000


def raw(text: str | None) -> bytes | None:
    """Return a text as callers passed it."""
    return None if text is None else text.encode()


def _event(row: Row) -> HistoryEvent:
    return HistoryEvent(**{**row, "event_data": raw(row["event_data"])})


class History(Fences):
    """Implement HistoryManager."""

    @writes
    def _try_append(self, event: HistoryEvent, lease: Lease | None) -> int | StorageError:
        return self._append(event, lease)

    async def append_history(self, event: HistoryEvent, *, lease: Lease | None = None) -> int:
        """Record an event and return its id; raise `HistoryConflictError` if the step has a different event already."""
        answer = await self._try_append(event, lease)
        if isinstance(answer, StorageError):
            raise answer
        return answer

    @writes
    def append_histories(self, items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        """Record many events in one commit."""
        return self._each(items, lambda item: self._append(*item), lambda item: item[0].instance_id)

    def _append(self, event: HistoryEvent, lease: Lease | None) -> int | StorageError:
        """Check the fence first; it is kept even if there is a conflict."""
        wanted, created_at = event_content(event), limits.moment(event.created_at, "created_at")
        instance_id, activity_id = event.instance_id, event.activity_id
        self._hold(instance_id, lease)
        change(self._tables.workflow_instances, instance_id, current_activity_id=activity_id, updated_at=self._now)
        found = self._tables.workflow_history.get((instance_id, activity_id))
        if found is None:
            self._record(instance_id, activity_id, **wanted, created_at=created_at)
            return int(self._tables.workflow_history[instance_id, activity_id]["id"])
        if any(found[name] != value for name, value in wanted.items()):
            return HistoryConflictError(
                f"activity {activity_id!r} of run {instance_id!r} already has a different event"
            )
        return int(found["id"])

    def _record(
        self,
        instance_id: str,
        activity_id: str,
        event_type: str,
        data_type: str,
        event_data: str | None,
        event_data_binary: bytes | None,
        created_at: datetime | None = None,
    ) -> bool:
        """Insert an event; return False if the activity has one."""
        if (instance_id, activity_id) in self._tables.workflow_history:
            return False
        self._tables.workflow_history[instance_id, activity_id] = {
            "id": self._world.draw("workflow_history"),
            "instance_id": instance_id,
            "activity_id": activity_id,
            "event_type": event_type,
            "data_type": data_type,
            "event_data": event_data,
            "event_data_binary": event_data_binary,
            "created_at": created_at or self._now,
        }
        return True

    def _events(self, instance_id: str) -> list[Row]:
        table = self._tables.workflow_history
        rows = [table[key] for key in where(table, instance_id=limits.name(instance_id, "instance_id"))]
        return sorted(rows, key=lambda row: int(row["id"]))

    @reads
    def get_history_paginated(
        self, instance_id: str, after_id: int = 0, limit: int = 0
    ) -> tuple[list[HistoryEvent], bool]:
        """Return the events after an id, in order, and whether there are more."""
        limits.number(after_id, "after_id")
        page = limits.page(limit, PAGE)
        rows = [row for row in self._events(instance_id) if row["id"] > after_id]
        return [_event(row) for row in rows[:page]], len(rows) > page

    @reads
    def get_history_count(self, instance_id: str) -> int:
        """Return the number of events of an instance."""
        return len(self._events(instance_id))

    @reads
    def get_last_event(self, instance_id: str, event_type: str) -> HistoryEvent | None:
        """Return the newest event of a type; archived events are ignored."""
        limits.name(event_type, "event_type", limits.EVENT_TYPE_MAX)
        found = [row for row in self._events(instance_id) if row["event_type"] == event_type]
        return _event(found[-1]) if found else None

    @reads
    def get_events(self, instance_ids: Sequence[str], activity_ids: Sequence[str]) -> list[HistoryEvent]:
        """Return the events of these activities of these instances, by instance and in order."""
        wanted, activities = set(bounded(instance_ids)), set(bounded(activity_ids))
        table = self._tables.workflow_history
        rows = [row for key, row in table.items() if key[0] in wanted and key[1] in activities]
        return [_event(row) for row in sorted(rows, key=itemgetter("instance_id", "id"))]


class Archive(History):
    """Implement HistoryArchiveManager."""

    @writes
    def archive_history(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Move the whole history to the archive."""
        self._fence(instance_id, lease)
        self._move(instance_id, instance_id)

    def _move(self, instance_id: str, archived_as: str) -> None:
        for row in self._events(instance_id):
            number = self._world.draw("workflow_history_archive")
            self._tables.workflow_history_archive[number] = {
                **row,
                "id": number,
                "instance_id": archived_as,
                "archived_at": self._now,
                "original_id": row["id"],
                "original_created_at": row["created_at"],
            }
            del self._tables.workflow_history[instance_id, row["activity_id"]]

    @reads
    def get_archived_history(self, instance_id: str, *, limit: int | None = None) -> list[ArchivedHistoryEvent]:
        """Return the archived events in the order they were recorded in, with their original ids and times."""
        table = self._tables.workflow_history_archive
        found = where(table, instance_id=limits.name(instance_id, "instance_id"))
        rows = sorted((table[number] for number in found), key=lambda row: (row["original_id"] or 0, row["id"]))
        return [
            ArchivedHistoryEvent(
                row["id"],
                row["original_id"],
                row["instance_id"],
                row["activity_id"],
                row["event_type"],
                raw(row["event_data"]),
                row["event_data_binary"],
                row["data_type"],
                row["original_created_at"],
                row["archived_at"],
            )
            for row in rows[: limits.some(limit)]
        ]

    @writes
    def recur_instance(self, instance_id: str, input_data: bytes, *, lease: Lease) -> WorkflowInstance:
        """Begin the next generation: the ending one becomes `<id>~<n>`, with its history archived.

        Compensations, timers and waits are removed; the lease, subscriptions, cursors, groups and unread messages are
        kept.
        """
        text = limits.text(input_data, "input_data")
        if text is None:
            raise LimitError("input_data must be JSON as bytes; use b'null' for none")
        self._fence(instance_id, lease)
        instances, compensations = self._tables.workflow_instances, self._tables.workflow_compensations
        live = instances[instance_id]
        if live["status"] != WorkflowStatus.RUNNING:
            raise InvalidTransitionError(
                f"run {instance_id!r} is {live['status']} and cannot recur: only a running run can"
            )
        generation = self._next_generation(live)
        ended = {"status": WorkflowStatus.RECURRED.value, "updated_at": self._now, "output_data": None, "lock_token": 0}
        instances[generation] = {**live, **ended, **FREE, "instance_id": generation}
        self._move(instance_id, generation)
        begun = {"input_data": text, "output_data": None, "current_activity_id": None, "continued_from": generation}
        change(instances, instance_id, **begun, started_at=self._now, updated_at=self._now)
        remove(compensations, where(compensations, instance_id=instance_id))
        self._wait_for_nothing(instance_id)
        return instance_from(instances[instance_id])

    def _next_generation(self, live: Row) -> str:
        """Return the first free name after the last generation's."""
        last = re.fullmatch(re.escape(live["instance_id"]) + r"~(\d+)", live["continued_from"] or "")
        number = int(last[1]) + 1 if last else 1
        while f"{live['instance_id']}~{number}" in self._tables.workflow_instances:
            number += 1
        return limits.name(f"{live['instance_id']}~{number}", "the name of a generation")


class Compensations(Fences):
    """Implement CompensationManager."""

    @writes
    def add_compensation(self, entry: CompensationEntry, *, lease: Lease | None = None) -> int:
        """Register a compensation of a step. If it is added twice, it is stored twice."""
        return self._add(entry, lease)

    def _add(self, entry: CompensationEntry, lease: Lease | None) -> int:
        row = {
            "instance_id": entry.instance_id,
            "activity_id": limits.name(entry.activity_id, "activity_id"),
            "activity_name": limits.name(entry.activity_name, "activity_name"),
            "args": limits.text(entry.args, "args"),
            "created_at": limits.moment(entry.created_at, "created_at") or self._now,
        }
        self._fence(entry.instance_id, lease)
        number = self._world.draw("workflow_compensations")
        self._tables.workflow_compensations[number] = {"id": number, **row}
        return number

    @reads
    def get_compensations(self, instance_id: str, *, limit: int | None = None) -> list[CompensationEntry]:
        """Return the registered compensations, strictly last in, first out."""
        table = self._tables.workflow_compensations
        found = sorted(where(table, instance_id=limits.name(instance_id, "instance_id")), reverse=True)
        rows = [table[number] for number in found[: limits.some(limit)]]
        return [CompensationEntry(**{**row, "args": row["args"].encode()}) for row in rows]


class Groups(Fences):
    """Implement GroupManager."""

    @writes
    def join_group(self, instance_id: str, group_name: str, *, lease: Lease | None = None) -> None:
        """Add an instance to a group; a member keeps its position."""
        limits.name(group_name, "group_name")
        self._fence(instance_id, lease)
        self._tables.workflow_group_memberships.setdefault(
            (instance_id, group_name),
            {
                "id": self._world.draw("workflow_group_memberships"),
                "instance_id": instance_id,
                "group_name": group_name,
                "joined_at": self._now,
            },
        )

    @writes
    def leave_group(self, instance_id: str, group_name: str, *, lease: Lease | None = None) -> None:
        """Remove an instance from a group if it is a member."""
        limits.name(group_name, "group_name")
        self._fence(instance_id, lease)
        remove(self._tables.workflow_group_memberships, [(instance_id, group_name)])

    @writes
    def leave_all_groups(self, instance_id: str, *, lease: Lease | None = None) -> None:
        """Remove an instance from every group."""
        self._fence(instance_id, lease)
        table = self._tables.workflow_group_memberships
        remove(table, where(table, instance_id=instance_id))

    @reads
    def get_group_members(self, group_name: str, *, limit: int | None = None) -> list[str]:
        """Return the instances in a group, in the order of joining."""
        table = self._tables.workflow_group_memberships
        rows = [table[key] for key in where(table, group_name=limits.name(group_name, "group_name"))]
        return [row["instance_id"] for row in sorted(rows, key=lambda row: int(row["id"]))][: limits.some(limit)]
