"""Messages and events that a body, an activity or a client sends, and how they are stored."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal

from perdure.engine.history.codec import decode, encode
from perdure.engine.history.messages import HEADERS, Event
from perdure.engine.interception import Interception, Send
from perdure.engine.starting import NewRun, new_id, not_found, started_by, store_missing
from perdure.errors import HistoryConflictError, LimitError
from perdure.model import headers as header_rules
from perdure.model import limits, names
from perdure.model.headers import NONE, Headers, none
from perdure.model.records import Lease, OutboxEvent, OutgoingMessage
from perdure.model.states import TERMINAL
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

SOURCE = "perdure"  # the default source of events that are sent outside a workflow


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for runs of this database and, for an event with an outbox, its outbox entry: stored in one commit."""

    message: OutgoingMessage
    event: OutboxEvent | None = None
    stored: Callable[[], None] = lambda: None  # called after the commit of an outbox entry
    to: str | None = None  # the only receiver
    starts: Event[None] | None = None  # the event without its data, if it may start runs
    kind: Literal["message", "event"] = "message"
    name: str = ""  # the channel or the event type, as the caller named it
    headers: Headers = field(default_factory=none)  # of the run that sends it, or those that it was received with
    interception: Interception | None = None

    def check(self) -> None:
        """Raise `EventDataError` if the event starts a workflow that its data does not fit."""
        self.new_runs()

    def new_runs(self) -> list[tuple[str, NewRun]]:
        """Return the runs that the event starts, with their ids and the headers of the event.

        Not when the event is made: a body makes it again on each replay, perhaps with other workflows defined.
        """
        if self.starts is None:
            return []
        starts = replace(self.starts, headers=self.headers) if self.headers else self.starts
        return started_by(starts, self.message.data)

    def intercepted(self, around: ExitStack) -> "Outgoing":
        """Enter the interceptors, if there are any, and return the message with the headers that they left."""
        if self.interception is None:
            return self
        about = Send(self.kind, self.name, self.to, dict(self.headers))
        around.enter_context(self.interception.send(about))
        return replace(self, headers=about.stored_headers(), interception=None)

    async def store(self, storage: Storage, lease: Lease | None = None) -> int:
        """Store the message, and in an open transaction also its outbox entry and the runs that it starts.

        Returns the message's id, or 0 if the receiver has ended and the message is dropped.
        """
        (id,) = await store_all(storage, [self], lease)
        return id

    async def publish(self, storage: Storage, lease: Lease | None) -> int:
        """Store the message itself, and return its id; 0 if the receiver has ended and the message is dropped."""
        message = self.message
        if self.to is not None and not await is_received(storage, self.to):
            return 0
        return await storage.publish_to_channel(
            message.channel,
            message.data,
            with_headers(message.metadata, self.headers),
            message_id=message.message_id,
            source=message.source,
            lease=lease,
        )

    async def add_to_outbox(self, storage: Storage, lease: Lease | None) -> None:
        """Store the outbox entry, if there is one."""
        if self.event is None:
            return
        try:
            await storage.add_outbox_event(replace(self.event, headers=header_rules.encode(self.headers)), lease=lease)
        except HistoryConflictError as error:
            raise LimitError(
                f"event id {self.event.event_id!r} is already used in the outbox by an event with another type, "
                "source or data, and consumers would drop this one as a duplicate: use another id"
            ) from error
        storage.register_post_commit_callback(self.stored)


async def store_all(storage: Storage, outgoing: Sequence[Outgoing], lease: Lease | None = None) -> list[int]:
    """Store messages, sorted by channel: first all of them, then the runs that they start, then outbox entries.

    Returns what `Outgoing.publish` returns for each. More than a single message needs an open transaction.
    """
    with ExitStack() as around:
        ready = [each.intercepted(around) for each in outgoing]
        runs = [run for each in ready for run in each.new_runs()]
        stored = [await each.publish(storage, lease) for each in ready]
        await store_missing(storage, runs)
        for each in ready:
            await each.add_to_outbox(storage, lease)
    return stored


def with_headers(metadata: bytes | None, headers: Headers) -> bytes | None:
    """Return the metadata of a message with its headers."""
    return metadata if not headers else encode({**decode(metadata or b"{}"), HEADERS: dict(headers)})


async def is_received(storage: Storage, instance_id: str) -> bool:
    """Return whether a run can still receive messages; messages to a run that has ended are dropped.

    Raises `RunNotFoundError` if no run has this id.
    """
    found = await storage.get_instance(instance_id)
    if found is None:
        raise not_found(instance_id)
    if found.status in TERMINAL:
        log.debug(
            "a message to run %s (%s) was dropped: the run is %s",
            instance_id,
            found.workflow_name,
            found.status.value,
            extra={"run_id": instance_id, "workflow": found.workflow_name},
        )
        return False
    return True


def message(
    channel: str,
    data: object,
    metadata: Mapping[str, object] | None = None,
    *,
    to: str | None = None,
    id: str | None = None,
    source: str = "",
    headers: Headers = NONE,
) -> Outgoing:
    """Return a message to all subscribers of a channel, or with `to` to one run.

    Messages with the same id, source, channel and receiver are stored once. `headers` are those of a message that was
    received from outside.
    """
    name = names.stored(channel) if to is None else names.direct(channel, to)
    about = None if metadata is None else encode(dict(metadata))
    payload = encode(data, what=f"the message on channel {channel!r}")
    key = None if id is None else _key(id, name)
    inside = OutgoingMessage(name, payload, about, message_id=key, source=source)
    return Outgoing(inside, to=to, name=channel, headers=headers)


def event(
    type: str,
    data: object,
    *,
    to: str | None = None,
    source: str = "",
    id: str | None = None,
    subject: str | None = None,
    time: str | None = None,
    extensions: Mapping[str, object] | None = None,
    outbox_stored: Callable[[], None] | None = None,
    sender: str = SOURCE,
    headers: Headers = NONE,
) -> Outgoing:
    """Return an event. Events with the same id, source, type and receiver are stored once.

    Unless it is for one run, the event also starts a run of each workflow with its type (`@workflow(on_event=)`).

    With `outbox_stored`, which is called after the commit, the event is also stored in the outbox, unless it is for one
    run. Outbox entries need a source and an id, so defaults are filled in. `headers` are those of an event that was
    received from outside.
    """
    outside = outbox_stored is not None and to is None
    known_as, origin = (id or new_id(), source or sender) if outside else (id, source)
    about = {
        "ce_type": type,
        "ce_source": origin,
        "ce_id": known_as,
        "ce_subject": subject,
        "ce_time": time,
        "ce_extensions": dict(extensions or {}),
    }
    metadata = encode({key: value for key, value in about.items() if value})
    payload = encode(data, what=f"the data of event {type!r}")
    channel = names.stored(type, "event type") if to is None else names.direct(type, to, "event type")
    key = None if id is None else _key(id, channel)
    inside = OutgoingMessage(channel, payload, metadata, message_id=key, source=source)
    starts = None if to is not None else Event(type, None, id or "", source, time, subject, dict(extensions or {}))
    if not outside or outbox_stored is None:
        return Outgoing(inside, to=to, starts=starts, kind="event", name=type, headers=headers)
    entry = OutboxEvent(str(known_as), type, origin, payload)
    return Outgoing(inside, entry, outbox_stored, starts=starts, kind="event", name=type, headers=headers)


def _key(id: str, channel: str) -> str:
    """Return the de-duplication key of a message or event: the same id with another type or receiver is another one.

    Keys of the engine's own messages never have this form.
    """
    digest = blake2b(f"{len(channel)} {channel} {id}".encode(), digest_size=8).hexdigest()
    return f"{limits.name(id, 'event id')[: limits.NAME_MAX - 17]}~{digest}"
