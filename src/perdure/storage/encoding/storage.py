"""A storage around another one that encodes and decodes the values of users.

It implements the operations that hold such values, and passes all others on. A value that cannot be decoded is returned
as its envelope: whoever needs it checks that, and whoever only shows it can do so.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from perdure.codecs.pipeline import Pipeline
from perdure.errors import CodecError, HistoryConflictError, LimitError, StorageError
from perdure.model.envelopes import BINARY_MARK, MARK, run_place
from perdure.model.limits import COUNT_MAX, METADATA_MAX, PAGE_MAX
from perdure.model.records import (
    ArchivedHistoryEvent,
    ChannelMessage,
    CompensationEntry,
    HistoryEvent,
    Lease,
    ListInstancesOptions,
    OutboxEvent,
    OutboxStatus,
    OutgoingMessage,
    PaginationResult,
    ParentLink,
    StuckInstance,
    TimerWait,
    WorkflowInstance,
)
from perdure.model.states import WorkflowStatus
from perdure.storage.encoding.fields import Fields

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from perdure.storage.contract import Storage

T = TypeVar("T")
R = TypeVar("R")
Answers = list[int | StorageError | None]


def encoding(storage: "Storage", pipeline: Pipeline) -> "Storage":
    """Return a storage that encodes what is stored in `storage`."""
    return cast("Storage", EncodingStorage(storage, pipeline))


class EncodingStorage:
    """Encode and decode around a storage. Use `encoding()`, which has the type of a storage."""

    def __init__(self, storage: "Storage", pipeline: Pipeline) -> None:
        self._storage = storage
        self._pipeline = pipeline
        self._fields = Fields(pipeline)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Return the class of the storage behind, so that `isinstance` shows what its database can do."""
        return self._storage.__class__

    def __repr__(self) -> str:
        return f"<{self._storage!r} with {self._pipeline!r}>"

    # Instances.

    async def create_instance(
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
        """Store a new instance; see `InstanceManager`."""
        given = await self._encode(
            lambda: _encoded_start(self._fields, instance, events, parent), _size(instance), *map(_size, events)
        )
        return await self._storage.create_instance(
            given[0],
            worker_id=worker_id,
            timeout_sec=timeout_sec,
            source_code=source_code,
            events=given[1],
            timers=timers,
            parent=given[2],
        )

    async def create_instances(
        self, instances: Sequence[WorkflowInstance], *, worker_id: str | None = None, timeout_sec: float = 15
    ) -> list[Lease | StorageError | None]:
        """Create many instances; an instance that cannot be encoded gets an error."""
        given = await self._encode_each(self._fields.encoded_instance, instances, *map(_size, instances))
        stored = await self._storage.create_instances(_accepted(given), worker_id=worker_id, timeout_sec=timeout_sec)
        return _merged(given, stored)

    async def get_instance(self, instance_id: str) -> WorkflowInstance | None:
        """Return an instance, or None."""
        found = await self._storage.get_instance(instance_id)
        return None if found is None else (await self._decode(self._fields.decoded_instance, [found]))[0]

    async def get_instances(self, instance_ids: Sequence[str]) -> list[WorkflowInstance | None]:
        """Return many instances, in the order of their ids."""
        return await self._decode_some(self._fields.decoded_instance, await self._storage.get_instances(instance_ids))

    async def update_instance_status(
        self, instance_id: str, status: WorkflowStatus, error_msg: str = "", *, lease: Lease | None = None
    ) -> None:
        """Change the state of an instance; the message may quote values."""
        text = self._fields.encoded_text(error_msg, run_place(instance_id, "reason"), "error_msg")
        await self._storage.update_instance_status(instance_id, status, text, lease=lease)

    async def update_instance_output(self, instance_id: str, output_data: bytes, *, lease: Lease | None = None) -> None:
        """Store the output and complete the instance."""
        data = await self._encode(lambda: self._fields.encoded_output(instance_id, output_data), output_data)
        await self._storage.update_instance_output(instance_id, data, lease=lease)

    async def complete_and_release(self, lease: Lease, output_data: bytes) -> None:
        """Complete a leased instance with its output and end the lease."""
        data = await self._encode(lambda: self._fields.encoded_output(lease.instance_id, output_data), output_data)
        await self._storage.complete_and_release(lease, data)

    async def complete_instances(self, items: Sequence[tuple[Lease, bytes]]) -> list[StorageError | None]:
        """Complete many leased instances; one whose output cannot be encoded gets an error."""
        given = await self._encode_each(self._encoded_end, items, *(data for _, data in items))
        return _merged(given, await self._storage.complete_instances(_accepted(given)))

    def _encoded_end(self, item: tuple[Lease, bytes]) -> tuple[Lease, bytes]:
        return item[0], self._fields.encoded_output(item[0].instance_id, item[1])

    async def cancel_instance(
        self, instance_id: str, reason: str = "", *, compensate: bool = False, lease: Lease | None = None
    ) -> None:
        """Cancel an instance."""
        text = self._fields.encoded_text(reason, run_place(instance_id, "reason"), "reason")
        await self._storage.cancel_instance(instance_id, text, compensate=compensate, lease=lease)

    async def list_instances(self, options: ListInstancesOptions | None = None) -> PaginationResult:
        """Return a page of instances; raise `CodecError` for filters on inputs, which the database cannot read."""
        _refuse_input_filters(options)
        page = await self._storage.list_instances(options)
        return replace(page, instances=await self._decode(self._fields.decoded_instance, page.instances))

    async def count_instances(self, options: ListInstancesOptions | None = None, *, limit: int = COUNT_MAX) -> int:
        """Return the number of instances; raise `CodecError` for filters on inputs."""
        _refuse_input_filters(options)
        return await self._storage.count_instances(options, limit=limit)

    async def recur_instance(self, instance_id: str, input_data: bytes, *, lease: Lease) -> WorkflowInstance:
        """Begin the next generation with a new input."""
        data = await self._encode(lambda: self._fields.encoded_input(instance_id, input_data), input_data)
        live = await self._storage.recur_instance(instance_id, data, lease=lease)
        return (await self._decode(self._fields.decoded_instance, [live]))[0]

    # Leases.

    async def claim_instances(
        self, instance_ids: Sequence[str], worker_id: str, timeout_sec: float, *, limit: int
    ) -> list[tuple[Lease, WorkflowInstance]]:
        """Acquire leases, and return them with the instances."""
        found = await self._storage.claim_instances(instance_ids, worker_id, timeout_sec, limit=limit)
        rows = await self._decode(self._fields.decoded_instance, [row for _, row in found])
        return [(lease, row) for (lease, _), row in zip(found, rows, strict=True)]

    async def back_off(self, lease: Lease, tries: int, reason: str, pause_sec: float) -> None:
        """End a lease after attempts without progress; the reason may quote values.

        Only a reason that names a missing key or codec does not, and others must be able to read it.
        """
        if reason.startswith(f"{CodecError.__name__}: "):
            await self._storage.back_off(lease, tries, reason, pause_sec)
            return
        text = self._fields.encoded_text(reason, run_place(lease.instance_id, "stuck"), "reason", METADATA_MAX)
        await self._storage.back_off(lease, tries, text, pause_sec)

    async def get_stuck(self, instance_ids: Sequence[str]) -> list[StuckInstance | None]:
        """Return why each of these instances is stuck."""
        return [self._fields.decoded_stuck(row) for row in await self._storage.get_stuck(instance_ids)]

    async def list_stuck(self, limit: int = 0, *, after: "tuple[datetime, str] | None" = None) -> list[StuckInstance]:
        """Return stuck instances."""
        found = await self._storage.list_stuck(limit, after=after)
        return [row for each in found if (row := self._fields.decoded_stuck(each)) is not None]

    # Histories. An event that is recorded twice is encoded to different bytes, so the storage takes it for another one.

    async def append_history(self, event: HistoryEvent, *, lease: Lease | None = None) -> int:
        """Record an event and return its id; an equal event changes nothing."""
        given = await self._encode(lambda: self._fields.encoded_event(event), _size(event))
        try:
            return await self._storage.append_history(given, lease=lease)
        except HistoryConflictError as error:
            found = await self._recorded(event, error)
            if found is error:
                raise
            return cast(int, found)

    async def append_histories(self, items: Sequence[tuple[HistoryEvent, Lease | None]]) -> list[int | StorageError]:
        """Record many events; one that cannot be encoded gets an error."""
        given = await self._encode_each(self._encoded_item, items, *(_size(event) for event, _ in items))
        answers = _merged(given, await self._storage.append_histories(_accepted(given)))
        return [await self._recorded(event, answer) for (event, _), answer in zip(items, answers, strict=True)]

    async def append_and_complete(
        self, events: Sequence[tuple[HistoryEvent, Lease | None]], completions: Sequence[tuple[Lease, bytes]]
    ) -> Answers:
        """Record many events, then complete many leased instances.

        If something of an instance cannot be encoded, nothing that follows in the batch is written for the instance.
        """
        given = await self._encode_each(self._encoded_item, events, *(_size(event) for event, _ in events))
        ends = await self._encode_each(self._encoded_end, completions, *(data for _, data in completions))
        broken: dict[str, StorageError] = {}
        for position, (event, _) in enumerate(events):
            given[position] = _refused(broken, event.instance_id, given[position])
        for position, (lease, _) in enumerate(completions):
            ends[position] = _refused(broken, lease.instance_id, ends[position])
        stored = await self._storage.append_and_complete(_accepted(given), _accepted(ends))
        count = len(_accepted(given))
        answers = cast("list[int | StorageError]", _merged(given, stored[:count]))
        fates = cast("list[StorageError | None]", _merged(ends, stored[count:]))
        found = [await self._recorded(event, answer) for (event, _), answer in zip(events, answers, strict=True)]
        if found == answers:
            return [*answers, *fates]
        return [*found, *await self._complete_left(events, found, completions, fates)]

    async def _complete_left(
        self,
        events: Sequence[tuple[HistoryEvent, Lease | None]],
        answers: Sequence[int | StorageError],
        completions: Sequence[tuple[Lease, bytes]],
        fates: list[StorageError | None],
    ) -> list[StorageError | None]:
        """Complete the instances that were not completed only because an equal event was taken for another one."""
        refused = {event.instance_id for (event, _), each in zip(events, answers, strict=True) if _is_error(each)}
        left = [
            position
            for position, (lease, _) in enumerate(completions)
            if isinstance(fates[position], HistoryConflictError) and lease.instance_id not in refused
        ]
        completed = await self.complete_instances([completions[position] for position in left])
        for position, fate in zip(left, completed, strict=True):
            fates[position] = fate
        return fates

    def _encoded_item(self, item: tuple[HistoryEvent, Lease | None]) -> tuple[HistoryEvent, Lease | None]:
        return self._fields.encoded_event(item[0]), item[1]

    async def _recorded(self, event: HistoryEvent, answer: int | StorageError) -> int | StorageError:
        """Return the id of an event that the storage refused if it is equal to the recorded one once decoded."""
        if not isinstance(answer, HistoryConflictError):
            return answer
        for row in await self.get_events([event.instance_id], [event.activity_id]):
            if _content(row) == _content(event):
                return row.id
        return answer

    async def get_history_paginated(
        self, instance_id: str, after_id: int = 0, limit: int = 0
    ) -> tuple[list[HistoryEvent], bool]:
        """Return the events after an id, in order, and whether there are more."""
        page, more = await self._storage.get_history_paginated(instance_id, after_id, limit)
        return await self._decode(self._fields.decoded_event, page), more

    async def get_last_event(self, instance_id: str, event_type: str) -> HistoryEvent | None:
        """Return the newest event of a type, or None."""
        found = await self._storage.get_last_event(instance_id, event_type)
        return None if found is None else (await self._decode(self._fields.decoded_event, [found]))[0]

    async def get_events(self, instance_ids: Sequence[str], activity_ids: Sequence[str]) -> list[HistoryEvent]:
        """Return the events of these activities of these instances."""
        return await self._decode(
            self._fields.decoded_event, await self._storage.get_events(instance_ids, activity_ids)
        )

    async def get_archived_history(self, instance_id: str, *, limit: int | None = None) -> list[ArchivedHistoryEvent]:
        """Return the archived events in the order they were recorded in."""
        found = await self._storage.get_archived_history(instance_id, limit=limit)
        return await self._decode(self._fields.decoded_archived, found)

    # Outbox.

    async def add_outbox_event(self, event: OutboxEvent, *, lease: Lease | None = None) -> None:
        """Store an event to be sent; an equal one changes nothing."""
        values = event.event_data, event.event_data_binary
        given = await self._encode(lambda: self._fields.encoded_outbox(event), *values)
        try:
            await self._storage.add_outbox_event(given, lease=lease)
        except HistoryConflictError:
            if not await self._is_in_outbox(event):
                raise

    async def _is_in_outbox(self, event: OutboxEvent) -> bool:
        """Return whether the outbox has an equal event; the contract has no operation that reads a single one."""
        after: str | None = None
        while True:
            page = await self._storage.list_outbox_events(None, PAGE_MAX, after=after)
            for row in page:
                if row.event_id == event.event_id:
                    return _sent(self._fields.decoded_outbox(row)) == _sent(event)
            if len(page) < PAGE_MAX:
                return False
            after = page[-1].event_id

    async def get_pending_outbox_events(
        self, limit: int = 0, *, relay_id: str = "", lease_sec: float = 30
    ) -> list[OutboxEvent]:
        """Claim events for a while; the relay publishes none that cannot be decoded."""
        found = await self._storage.get_pending_outbox_events(limit, relay_id=relay_id, lease_sec=lease_sec)
        return await self._decode(self._fields.decoded_outbox, found)

    async def list_outbox_events(
        self, status: OutboxStatus | str | None = None, limit: int = 0, *, after: str | None = None
    ) -> list[OutboxEvent]:
        """Return own events, oldest first."""
        found = await self._storage.list_outbox_events(status, limit, after=after)
        return await self._decode(self._fields.decoded_outbox, found)

    async def mark_outbox_event_failed(
        self, event_id: str, *, error: str | None = None, relay_id: str | None = None
    ) -> bool:
        """Park an event; the error may quote values."""
        text = error and self._fields.encoded_text(error, f"outbox {event_id}/error", "error")
        return await self._storage.mark_outbox_event_failed(event_id, error=text, relay_id=relay_id)

    async def increment_outbox_attempts(
        self,
        event_id: str,
        *,
        error: str | None = None,
        back_off: "timedelta | None" = None,
        relay_id: str | None = None,
    ) -> bool:
        """Record a failed attempt; the error may quote values."""
        text = error and self._fields.encoded_text(error, f"outbox {event_id}/error", "error")
        return await self._storage.increment_outbox_attempts(event_id, error=text, back_off=back_off, relay_id=relay_id)

    # Compensations.

    async def add_compensation(self, entry: CompensationEntry, *, lease: Lease | None = None) -> int:
        """Register a compensation of a step and return its id."""
        given = await self._encode(lambda: self._fields.encoded_compensation(entry), entry.args)
        return await self._storage.add_compensation(given, lease=lease)

    async def get_compensations(self, instance_id: str, *, limit: int | None = None) -> list[CompensationEntry]:
        """Return the registered compensations, strictly last in, first out."""
        found = await self._storage.get_compensations(instance_id, limit=limit)
        return await self._decode(self._fields.decoded_compensation, found)

    # Messages.

    async def publish_to_channel(
        self,
        channel: str,
        data: bytes,
        metadata: bytes | None = None,
        *,
        message_id: str | None = None,
        source: str = "",
        binary: bool = False,
        lease: Lease | None = None,
    ) -> int:
        """Publish a message, JSON or `binary`, and return its id."""
        message = OutgoingMessage(channel, data, metadata, message_id, source, binary)
        given = await self._encode(lambda: self._fields.encoded_message(message), data)
        return await self._storage.publish_to_channel(
            channel,
            given.data,
            given.metadata,
            message_id=message_id,
            source=source,
            binary=binary,
            lease=lease,
        )

    async def publish_messages(
        self, messages: Sequence[OutgoingMessage], *, lease: Lease | None = None
    ) -> list[int | StorageError]:
        """Publish many messages; one that cannot be encoded gets an error."""
        given = await self._encode_each(self._fields.encoded_message, messages, *(each.data for each in messages))
        return _merged(given, await self._storage.publish_messages(_accepted(given), lease=lease))

    async def get_pending_channel_messages(
        self, channel: str, after_id: int = 0, limit: int = 0
    ) -> list[ChannelMessage]:
        """Return the messages of a channel after an id, in order."""
        found = await self._storage.get_pending_channel_messages(channel, after_id, limit)
        return await self._decode(self._fields.decoded_message, found)

    async def get_pending_channel_messages_for_instance(
        self, instance_id: str, channel: str, *, limit: int | None = None
    ) -> list[ChannelMessage]:
        """Return the messages that a subscriber has not received, in order."""
        found = await self._storage.get_pending_channel_messages_for_instance(instance_id, channel, limit=limit)
        return await self._decode(self._fields.decoded_message, found)

    # Encoding and decoding, in a thread if it takes long.

    async def _encode(self, work: Callable[[], T], *values: bytes | str | None) -> T:
        if self._pipeline.may_block(_longest(values)):
            return await asyncio.to_thread(work)
        return work()

    async def _encode_each(
        self, encode: Callable[[T], T], items: Sequence[T], *values: bytes | str | None
    ) -> list[T | StorageError]:
        def work() -> list[T | StorageError]:
            found: list[T | StorageError] = []
            for item in items:
                try:
                    found.append(encode(item))
                except (CodecError, LimitError) as error:
                    found.append(error)
            return found

        return await self._encode(work, *values)

    async def _decode(self, decode: Callable[[T], T], rows: Sequence[T]) -> list[T]:
        lengths = [length for row in rows for length in _encoded_lengths(row)]
        if self._pipeline.may_block_decoding(sum(lengths), bool(lengths)):
            return await asyncio.to_thread(lambda: [decode(row) for row in rows])
        return [decode(row) for row in rows]

    async def _decode_some(self, decode: Callable[[T], T], rows: Sequence[T | None]) -> list[T | None]:
        found = iter(await self._decode(decode, [row for row in rows if row is not None]))
        return [None if row is None else next(found) for row in rows]


def _encoded_start(
    fields: Fields, instance: WorkflowInstance, events: Sequence[HistoryEvent], parent: ParentLink | None
) -> tuple[WorkflowInstance, list[HistoryEvent], ParentLink | None]:
    return (
        fields.encoded_instance(instance),
        [fields.encoded_event(event) for event in events],
        fields.encoded_parent(parent),
    )


def _is_error(item: object) -> bool:
    return isinstance(item, StorageError)


def _accepted(items: Sequence[T | StorageError]) -> list[T]:
    return [item for item in items if not isinstance(item, StorageError)]


def _merged(items: Sequence[object], stored: Sequence[R]) -> list[R]:
    """Return the answer for each item: its own error, or the next answer of the storage."""
    answers = iter(stored)
    return [cast(R, item) if isinstance(item, StorageError) else next(answers) for item in items]


def _refused(broken: dict[str, StorageError], instance_id: str, item: T | StorageError) -> T | StorageError:
    """Return the first error of the instance, if there was one, or the item."""
    if isinstance(item, StorageError):
        broken.setdefault(instance_id, item)
    return broken.get(instance_id, item)


def _refuse_input_filters(options: ListInstancesOptions | None) -> None:
    if options is not None and options.input_filters:
        raise CodecError(
            "runs cannot be filtered by where=, because the database cannot read inputs that a codec has encoded: "
            "filter by workflow, status and start time, and compare run.input of the runs that this returns"
        )


def _size(row: WorkflowInstance | HistoryEvent) -> bytes | str | None:
    """Return the longest value of a row."""
    if isinstance(row, WorkflowInstance):
        return row.input_data
    return row.event_data_binary if row.data_type == "binary" else row.event_data


def _longest(values: Sequence[bytes | str | None]) -> int:
    return max((len(value) for value in values if value), default=0)


_VALUES = ("input_data", "output_data", "event_data", "event_data_binary", "data", "data_binary", "args")


def _encoded_lengths(row: object) -> list[int]:
    """Return the lengths of the encoded values of a row."""
    values = [getattr(row, name, None) for name in _VALUES]
    return [len(value) for value in values if value and (MARK in value or value.startswith(BINARY_MARK))]


def _content(event: HistoryEvent) -> tuple[object, ...]:
    return str(event.event_type), event.data_type, event.event_data, event.event_data_binary


def _sent(event: OutboxEvent) -> tuple[object, ...]:
    content = event.event_data, event.event_data_binary, event.data_type, event.content_type
    return event.event_type, event.event_source, *content


# Starts in a caller's transaction.


class Starts(Protocol):
    """What storing a run needs of a storage, or of a caller's transaction."""

    async def create_instance(
        self,
        instance: WorkflowInstance,
        *,
        source_code: str = "",
        events: Sequence[HistoryEvent] = (),
        timers: Sequence[TimerWait] = (),
        parent: ParentLink | None = None,
    ) -> object:
        """Store a new instance with its first rows."""

    async def get_instance(self, instance_id: str) -> WorkflowInstance | None:
        """Return an instance, or None."""


class EncodingStarts:
    """Encode and decode around a caller's transaction. Nothing is awaited: its connection may be a blocking one."""

    def __init__(self, starts: Starts, pipeline: Pipeline) -> None:
        self._starts, self._fields = starts, Fields(pipeline)

    async def create_instance(
        self,
        instance: WorkflowInstance,
        *,
        source_code: str = "",
        events: Sequence[HistoryEvent] = (),
        timers: Sequence[TimerWait] = (),
        parent: ParentLink | None = None,
    ) -> object:
        """Store a new instance with its first rows."""
        given = _encoded_start(self._fields, instance, events, parent)
        return await self._starts.create_instance(
            given[0], source_code=source_code, events=given[1], timers=timers, parent=given[2]
        )

    async def get_instance(self, instance_id: str) -> WorkflowInstance | None:
        """Return an instance, or None."""
        found = await self._starts.get_instance(instance_id)
        return None if found is None else self._fields.decoded_instance(found)
