"""Messages and events that a body, an activity or a client sends, and how they are stored."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from perdure.engine.history.codec import encode
from perdure.engine.starting import new_id, not_found
from perdure.errors import HistoryConflictError, LimitError
from perdure.model import limits, names
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

    async def store(self, storage: Storage, lease: Lease | None = None) -> int:
        """Store the message and the outbox entry, if there is one; that needs an open transaction.

        Returns the message's id, or 0 if the receiver has ended and the message is dropped.
        """
        message = self.message
        if self.to is not None and not await is_received(storage, self.to):
            return 0
        id = await storage.publish_to_channel(
            message.channel,
            message.data,
            message.metadata,
            message_id=message.message_id,
            source=message.source,
            lease=lease,
        )
        if self.event is not None:
            try:
                await storage.add_outbox_event(self.event, lease=lease)
            except HistoryConflictError as error:
                raise LimitError(
                    f"event id {self.event.event_id!r} is already used in the outbox by an event with another type, "
                    "source or data, and consumers would drop this one as a duplicate: use another id"
                ) from error
            storage.register_post_commit_callback(self.stored)
        return id


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
    channel: str, data: object, metadata: Mapping[str, object] | None = None, *, to: str | None = None
) -> Outgoing:
    """Return a message to all subscribers of a channel, or with `to` to one run."""
    name = names.stored(channel) if to is None else names.direct(channel, to)
    about = None if metadata is None else encode(dict(metadata))
    return Outgoing(OutgoingMessage(name, encode(data, what=f"the message on channel {channel!r}"), about), to=to)


def event(
    type: str,
    data: object,
    *,
    to: str | None = None,
    source: str = "",
    id: str | None = None,
    subject: str | None = None,
    outbox_stored: Callable[[], None] | None = None,
    sender: str = SOURCE,
) -> Outgoing:
    """Return an event. Events with the same id, source, type and receiver are stored once.

    With `outbox_stored`, which is called after the commit, the event is also stored in the outbox, unless it is for one
    run. Outbox entries need a source and an id, so defaults are filled in.
    """
    outside = outbox_stored is not None and to is None
    known_as, origin = (id or new_id(), source or sender) if outside else (id, source)
    about = {"ce_type": type, "ce_source": origin, "ce_id": known_as, "ce_subject": subject}
    metadata = encode({key: value for key, value in about.items() if value})
    payload = encode(data, what=f"the data of event {type!r}")
    channel = names.stored(type, "event type") if to is None else names.direct(type, to, "event type")
    key = None if id is None else _key(id, channel)
    inside = OutgoingMessage(channel, payload, metadata, message_id=key, source=source)
    if not outside or outbox_stored is None:
        return Outgoing(inside, to=to)
    return Outgoing(inside, OutboxEvent(str(known_as), type, origin, payload), outbox_stored)


def _key(id: str, channel: str) -> str:
    """Return the de-duplication key of an event: the same id with another type or receiver is another event.

    Keys of the engine's own messages never have this form.
    """
    digest = blake2b(f"{len(channel)} {channel} {id}".encode(), digest_size=8).hexdigest()
    return f"{limits.name(id, 'event id')[: limits.NAME_MAX - 17]}~{digest}"
