"""Manage instances: create them, change their state, cancel, list, find and delete them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import itemgetter

from perdure.errors import (
    InstanceExistsError,
    InstanceNotFoundError,
    InvalidTransitionError,
    LeaseLostError,
    LimitError,
    StorageError,
    WorkflowNotCancellableError,
)
from perdure.model import limits
from perdure.model.records import (
    ChannelMode,
    EndedInstance,
    HistoryEvent,
    HistoryEventType,
    Lease,
    ListInstancesOptions,
    PaginationResult,
    ParentLink,
    ResumableWorkflow,
    TimerWait,
    WorkflowInstance,
)
from perdure.model.states import TERMINAL, WAITING, WorkflowStatus, sources_of
from perdure.testing.reference.arguments import OWN, bounded, check_first_rows, check_versions, failure, instance_row
from perdure.testing.reference.fences import claimable_at, finished_at, instance_from
from perdure.testing.reference.history import Compensations, History
from perdure.testing.reference.messages import Messages
from perdure.testing.reference.searches import checked_filters, folded, folded_part, has_values, position
from perdure.testing.reference.tables import Row, change, remove, where
from perdure.testing.reference.transactions import reads, writes

FAILED_ACTIVITY = "workflow_failed"
CANCELLED_ACTIVITY = "workflow_cancelled"
FRAMEWORK_MAX = 50
PAGE = 50


class Instances(Messages, History, Compensations):
    """Implement InstanceManager."""

    @writes
    def create_instance(
        self,
        instance: WorkflowInstance,
        *,
        worker_id: str | None = None,
        timeout_sec: float = 15,
        source_code: str = "",
        events: Sequence[HistoryEvent] = (),
        timers: Sequence[TimerWait] = (),
        parent: ParentLink | None = None,
    ) -> Lease | None:
        """Store a new instance with its first events and its timers; with a worker it is leased to that worker."""
        check_first_rows(instance, events, timers, parent)
        instance_row(instance, worker_id, timeout_sec)
        limits.text(source_code, "source_code")
        if parent is not None:
            self._subscribe(parent.lease.instance_id, parent.channel, ChannelMode.BROADCAST, parent.lease)
        lease = self._create(instance, worker_id, timeout_sec, source_code)
        for event in events:
            answer = self._append(event, None)
            if isinstance(answer, StorageError):
                raise answer
        for timer in timers:
            at = self._moment(timer.expires_at, timer.after)
            assert at is not None, "a timer has a time"
            self._set_timer(instance.instance_id, timer.timer_id, timer.activity_id, at)
        if parent is not None and parent.compensation is not None:
            self._add(parent.compensation, parent.lease)
        return lease

    @writes
    def create_instances(
        self, instances: Sequence[WorkflowInstance], *, worker_id: str | None = None, timeout_sec: float = 15
    ) -> list[Lease | StorageError | None]:
        """Create many instances in one commit."""
        return self._each(
            instances,
            lambda instance: self._create(instance, worker_id, timeout_sec, ""),
            lambda instance: instance.instance_id,
        )

    def _create(
        self, instance: WorkflowInstance, worker_id: str | None, timeout_sec: float, source: str
    ) -> Lease | None:
        row = instance_row(instance, worker_id, timeout_sec)
        limits.text(source, "source_code")
        instances, instance_id, previous = self._tables.workflow_instances, instance.instance_id, row["continued_from"]
        if previous is not None and previous not in instances:
            raise InstanceNotFoundError(f"run {previous!r}, which the new run continues from, does not exist")
        if instance_id in instances:
            raise InstanceExistsError(f"run {instance_id!r} already exists: use another id")
        lease_sec = row.pop("lease_sec")
        row |= {each: row[each] or self._now for each in ("started_at", "updated_at")}
        if lease_sec is not None:
            row |= {"locked_at": self._now, "lock_expires_at": self._after(lease_sec)}
        instances[instance_id] = row
        if lease_sec is None:
            return None
        return Lease(instance_id, row["locked_by"], row["lock_token"], row["lock_expires_at"])

    @writes
    def define_workflows(self, versions: Mapping[str, str]) -> None:
        """Do nothing but check the arguments: instances need no definitions here."""
        check_versions(versions)

    @reads
    def get_instance(self, instance_id: str) -> WorkflowInstance | None:
        """Return an instance with every field."""
        return self._get(instance_id)

    @reads
    def get_instances(self, instance_ids: Sequence[str]) -> list[WorkflowInstance | None]:
        """Return many instances, in the order of their ids."""
        return [self._get(instance_id) for instance_id in bounded(instance_ids)]

    def _get(self, instance_id: str) -> WorkflowInstance | None:
        row = self._tables.workflow_instances.get(instance_id)
        return None if row is None else instance_from(row)

    @writes
    def update_instance_status(
        self, instance_id: str, status: WorkflowStatus, error_msg: str = "", *, lease: Lease | None = None
    ) -> None:
        """Change an instance's state; the message of a failure becomes an event."""
        status = limits.choice(WorkflowStatus, status, "status")
        if status is WorkflowStatus.RECURRED:
            raise InvalidTransitionError("an instance cannot be set to recurred: use recur_instance()")
        if status in TERMINAL:
            self._finish(instance_id, status, None, lease)
            if status is WorkflowStatus.FAILED and error_msg:
                self._note(instance_id, FAILED_ACTIVITY, HistoryEventType.WORKFLOW_FAILED, failure(error_msg))
            return
        row = self._hold(instance_id, lease)
        if row["status"] not in sources_of(status):
            raise InvalidTransitionError(f"run {instance_id!r} is {row['status']} and cannot become {status}")
        change(self._tables.workflow_instances, instance_id, status=status.value, updated_at=self._now)
        if status in WAITING:
            self._remind(instance_id)

    @writes
    def update_instance_activity(self, instance_id: str, activity_id: str, *, lease: Lease | None = None) -> None:
        """Record the step that the instance has reached."""
        limits.name(activity_id, "activity_id")
        self._hold(instance_id, lease)
        change(self._tables.workflow_instances, instance_id, current_activity_id=activity_id, updated_at=self._now)

    @writes
    def update_instance_output(self, instance_id: str, output_data: bytes, *, lease: Lease | None = None) -> None:
        """Store the output and complete the instance in one transaction."""
        self._complete(instance_id, output_data, lease)

    @writes
    def complete_and_release(self, lease: Lease, output_data: bytes) -> None:
        """Complete a leased instance with its output and end the lease."""
        self._complete(lease.instance_id, output_data, lease)

    @writes
    def complete_instances(self, items: Sequence[tuple[Lease, bytes]]) -> list[StorageError | None]:
        """Complete many leased instances in one commit."""
        return self._each(
            items, lambda item: self._complete(item[0].instance_id, item[1], item[0]), lambda item: item[0].instance_id
        )

    @writes
    def append_and_complete(
        self, events: Sequence[tuple[HistoryEvent, Lease | None]], completions: Sequence[tuple[Lease, bytes]]
    ) -> list[int | StorageError | None]:
        """Record many events, then complete the instances of which no event is refused, in one commit."""
        answers = self._each(events, lambda item: self._append(*item), lambda item: item[0].instance_id)
        refused: dict[str, StorageError] = {}
        for (event, _), answer in zip(events, answers, strict=True):
            if isinstance(answer, StorageError):
                refused.setdefault(event.instance_id, answer)

        def complete(item: tuple[Lease, bytes]) -> None:
            lease, output_data = item
            if lease.instance_id in refused:
                raise refused[lease.instance_id]
            self._complete(lease.instance_id, output_data, lease)

        return [*answers, *self._each(completions, complete, lambda item: item[0].instance_id)]

    def _complete(self, instance_id: str, output_data: bytes, lease: Lease | None) -> None:
        output = limits.text(output_data, "output_data")
        if output is None:
            raise LimitError("output_data must be JSON as bytes; use b'null' for none")
        self._finish(instance_id, WorkflowStatus.COMPLETED, output, lease)

    @writes
    def cancel_instance(
        self, instance_id: str, reason: str = "", *, compensate: bool = False, lease: Lease | None = None
    ) -> None:
        """Cancel an instance in any state that is not final, fence off its worker, and record why.

        With `compensate` it changes to compensating instead; if it is compensating already, only the event is recorded.
        """
        limits.name(instance_id, "instance_id")
        if lease is not None and lease.instance_id != instance_id:
            raise LeaseLostError(f"the lease is on run {lease.instance_id!r}, not on run {instance_id!r}")
        row = self._tables.workflow_instances.get(instance_id)
        if row is None or row["status"] in TERMINAL:
            raise WorkflowNotCancellableError(f"run {instance_id!r} does not exist or has ended: nothing to cancel")
        if lease is not None:
            self._fence(instance_id, lease)
        if not compensate:
            self._finish(instance_id, WorkflowStatus.CANCELLED, None, lease)
        elif row["status"] in WAITING | {WorkflowStatus.RUNNING}:
            self._fence_off(instance_id, WorkflowStatus.COMPENSATING)
        self._note(instance_id, CANCELLED_ACTIVITY, HistoryEventType.WORKFLOW_CANCELLED, {"reason": reason})

    def _note(self, instance_id: str, activity_id: str, kind: HistoryEventType, payload: dict[str, object]) -> None:
        """Record an event of the instance's life once."""
        change(self._tables.workflow_instances, instance_id, current_activity_id=activity_id, updated_at=self._now)
        text = limits.text(json.dumps(payload, ensure_ascii=False), "error message")
        self._record(instance_id, activity_id, kind.value, "json", text, None)

    @reads
    def list_instances(self, options: ListInstancesOptions | None = None) -> PaginationResult:
        """Return a page of the instances for which every filter holds, by start time and id, both descending."""
        asked = options or ListInstancesOptions()
        found, limit = self._found(asked), limits.page(asked.limit, PAGE)
        page, more = found[:limit], len(found) > limit
        token = (
            f"{page[-1]['started_at'].isoformat(timespec='microseconds')}||{page[-1]['instance_id']}" if more else None
        )
        instances = [instance_from(row) for row in page]
        if not asked.payloads:
            instances = [replace(each, input_data=b"{}", output_data=None) for each in instances]
        return PaginationResult(instances, token, more)

    @reads
    def count_instances(self, options: ListInstancesOptions | None = None, *, limit: int = limits.COUNT_MAX) -> int:
        """Return the number of instances that match these filters, at most `limit`."""
        asked = options or ListInstancesOptions()
        limits.page(asked.limit, PAGE)
        most = limits.count(limit, "limit", limits.COUNT_MAX)
        return min(len(self._found(replace(asked, page_token=None))), most)

    @reads
    def list_ended(self, limit: int = 0, *, before: tuple[datetime, str] | None = None) -> list[EndedInstance]:
        """Return own instances that have ended, the last one first, before a position in that order."""
        page = limits.page(limit, PAGE)
        place = None if before is None else (limits.moment(before[0], "before"), before[1])
        rows = [
            row
            for row in self._tables.workflow_instances.values()
            if row["framework"] == OWN and WorkflowStatus(row["status"]) in TERMINAL
        ]
        rows.sort(key=itemgetter("updated_at", "instance_id"), reverse=True)
        found = [row for row in rows if place is None or (row["updated_at"], row["instance_id"]) < place]
        return [
            EndedInstance(
                row["instance_id"],
                row["workflow_name"],
                WorkflowStatus(row["status"]),
                row["started_at"],
                row["updated_at"],
            )
            for row in found[:page]
        ]

    @reads
    def list_workflow_names(self) -> list[str]:
        """Return the names of the workflows of own instances, sorted."""
        rows = self._tables.workflow_instances.values()
        return sorted({row["workflow_name"] for row in rows if row["framework"] == OWN})

    def _found(self, asked: ListInstancesOptions) -> list[Row]:
        """Return the instances for which every filter holds, after the position of a token, in order."""
        if asked.framework is not None:
            limits.name(asked.framework, "framework", FRAMEWORK_MAX)
        wanted = asked.status_filter
        status = None if wanted is None else limits.choice(WorkflowStatus, wanted, "status_filter").value
        several = {limits.choice(WorkflowStatus, each, "statuses").value for each in asked.statuses}
        if several and status is not None:
            raise LimitError("a listing takes status_filter or statuses, not both")
        before = limits.moment(asked.started_before, "started_before")
        workflow = asked.workflow_name and limits.name(asked.workflow_name, "workflow_name")
        after = limits.moment(asked.started_after, "started_after")
        name = folded_part(asked.workflow_name_filter, "workflow_name_filter")
        part = folded_part(asked.instance_id_filter, "instance_id_filter")
        place = None if asked.page_token is None else position(asked.page_token)
        inputs = checked_filters(asked.input_filters)
        found = [
            row
            for row in self._tables.workflow_instances.values()
            if asked.framework in (None, row["framework"])
            and status in (None, row["status"])
            and (not several or row["status"] in several)
            and (not workflow or workflow == row["workflow_name"])
            and (before is None or row["started_at"] < before)
            and (after is None or row["started_at"] > after)
            and name in folded(row["workflow_name"])
            and part in folded(row["instance_id"])
            and (place is None or (row["started_at"], row["instance_id"]) < place)
            and has_values(row["input_data"], inputs)
        ]
        return sorted(found, key=itemgetter("started_at", "instance_id"), reverse=True)

    @reads
    def find_resumable_workflows(
        self, limit: int = 0, *, workflow_names: Sequence[str] | None = None
    ) -> list[ResumableWorkflow]:
        """Return own instances, running or compensating, without a live lease; the longest waiting first."""
        page = limits.page(limit, 100)
        found = [
            (at, row["instance_id"], row)
            for row in self._tables.workflow_instances.values()
            if row["framework"] == OWN
            and (workflow_names is None or row["workflow_name"] in workflow_names)
            and (at := claimable_at(row)) is not None
            and at <= self._now
        ]
        found.sort(key=itemgetter(0, 1))
        return [
            ResumableWorkflow(name, row["workflow_name"], row["locked_by"], row["locked_at"])
            for _, name, row in found[:page]
        ]

    @writes
    def delete_instances(self, older_than: timedelta, limit: int = 0) -> int:
        """Delete own instances that ended longer ago than that; what a live run continues from is kept."""
        until, page = self._after(-limits.span(older_than, "older_than")), limits.page(limit, 100)
        instances = self._tables.workflow_instances
        needed = {row["continued_from"] for row in instances.values() if row["status"] not in TERMINAL}
        old = sorted(
            (at, instance_id)
            for instance_id, row in instances.items()
            if row["framework"] == OWN
            and instance_id not in needed
            and (at := finished_at(row)) is not None
            and at < until
        )
        for _, instance_id in old[:page]:
            self._delete(instance_id)
        return len(old[:page])

    @writes
    def delete_ended(self, instance_ids: Sequence[str]) -> list[bool]:
        """Delete those of these own instances that have ended and that no live run continues from; return whether."""
        ids = [limits.name(each, "instance_id") for each in bounded(instance_ids)]
        instances = self._tables.workflow_instances
        needed = {row["continued_from"] for row in instances.values() if row["status"] not in TERMINAL}
        ended = {
            each
            for each in ids
            if each in instances
            and each not in needed
            and instances[each]["framework"] == OWN
            and instances[each]["status"] in TERMINAL
        }
        for each in ended:
            self._delete(each)
        return [each in ended for each in ids]

    def _delete(self, instance_id: str) -> None:
        """Delete an instance and all its rows, and references of later generations to it."""
        tables = self._tables
        for later in where(tables.workflow_instances, continued_from=instance_id):
            change(tables.workflow_instances, later, continued_from=None)
        for owned in (
            tables.workflow_history,
            tables.workflow_timer_subscriptions,
            tables.workflow_group_memberships,
            tables.channel_subscriptions,
            tables.channel_delivery_cursors,
            tables.perdure_waits,
        ):
            remove(owned, where(owned, instance_id=instance_id))
        remove(tables.perdure_taken_messages, where(tables.perdure_taken_messages, instance_id=instance_id))
        for numbered in (tables.workflow_history_archive, tables.workflow_compensations):
            remove(numbered, where(numbered, instance_id=instance_id))
        claims = tables.channel_message_claims
        remove(claims, where(claims, instance_id=instance_id))
        remove(tables.perdure_stuck, [instance_id])
        del tables.workflow_instances[instance_id]
