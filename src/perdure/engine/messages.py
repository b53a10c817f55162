"""Messages and events on their way into the database, from a body, an activity or a client."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from perdure.engine import names
from perdure.engine.codec import encode
from perdure.engine.starting import new_id, not_found
from perdure.errors import HistoryConflictError, LimitError
from perdure.model import limits
from perdure.model.records import Lease, OutboxEvent, OutgoingMessage
from perdure.model.states import TERMINAL
from perdure.storage.contract import Storage

log = logging.getLogger("perdure.engine")

SOURCE = "perdure"  # of events that no workflow sends


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is stored in one commit: a message for runs of this database and, of an event, its copy for the world."""

    message: OutgoingMessage
    event: OutboxEvent | None = None
    stored: Callable[[], None] = lambda: None  # called after the commit, if the world is told
    to: str | None = None  # the run that it is for alone

    async def store(self, storage: Storage, lease: Lease | None = None) -> int:
        """Store it; with an event, in the transaction that is open."""
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
                    f"another event, of another type or source or with other data, was sent to the outbox with the id "
                    f"{self.event.event_id!r}: its consumers would take this one for the same, so give it another id"
                ) from error
            storage.register_post_commit_callback(self.stored)
        return id


async def is_received(storage: Storage, instance_id: str) -> bool:
    """Return whether a run can receive what is sent to it: one that has ended does not, and what is sent is dropped.

    Raises `RunNotFoundError` if there is no such run.
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
    """A message to a channel, or on that channel to one run."""
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
    told: Callable[[], None] | None = None,
    sender: str = SOURCE,
) -> Outgoing:
    """An event. One with an id is stored once, however often it is sent with the same source, type and receiver.

    With `told` it goes to the outbox as well, unless it is for one run; there it needs a source and an id.
    """
    outside = told is not None and to is None
    known_as, origin = (id or new_id(), source or sender) if outside else (id, source)
    about = {"ce_type": type, "ce_source": origin, "ce_id": known_as, "ce_subject": subject}
    metadata = encode({key: value for key, value in about.items() if value})
    payload = encode(data, what=f"the data of event {type!r}")
    channel = names.stored(type, "event type") if to is None else names.direct(type, to, "event type")
    key = None if id is None else _key(id, channel)
    inside = OutgoingMessage(channel, payload, metadata, message_id=key, source=source)
    if not outside or told is None:
        return Outgoing(inside, to=to)
    return Outgoing(inside, OutboxEvent(str(known_as), type, origin, payload), told)


def _key(id: str, channel: str) -> str:
    """What an event is known by among those of its source: the same id for another type or receiver is another event.

    No message of the engine itself has a key of this form.
    """
    digest = blake2b(f"{len(channel)} {channel} {id}".encode(), digest_size=8).hexdigest()
    return f"{limits.name(id, 'event id')[: limits.NAME_MAX - 17]}~{digest}"
