"""Messages and events as a body receives them, read from the rows that record them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from perdure.engine.history.codec import decode
from perdure.errors import SerializationError
from perdure.model.headers import NONE, Headers, none, read
from perdure.model.records import HistoryEvent, HistoryEventType

T = TypeVar("T")

HEADERS = "perdure_headers"  # the key of the headers in the metadata of a message


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """A message; returned by `receive()`.

    - `channel`: the name of the channel.
    - `data`: the data, decoded as the `type` given to `receive()`.
    - `id`: the number of the message.
    - `metadata`: the metadata that was given when it was sent.
    - `published_at`: when it was sent, in UTC.
    - `headers`: the headers of the run that sent it, and those that interceptors added.
    """

    channel: str
    data: T
    id: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    published_at: datetime | None = None
    headers: Headers = field(default_factory=none)


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """An event; returned by `wait_event()`.

    `data` is decoded as the type given to `wait_event()`. `headers` are those of the run that sent it, and those that
    interceptors added. The other fields are the attributes of the CloudEvent.
    """

    type: str
    data: T
    id: str = ""
    source: str = ""
    time: str | None = None
    subject: str | None = None
    extensions: Mapping[str, Any] = field(default_factory=dict)
    headers: Headers = field(default_factory=none)


def split_headers(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], Headers]:
    """Return the metadata of a message without its headers, and the headers."""
    if HEADERS not in metadata:
        return metadata, NONE
    return {key: value for key, value in metadata.items() if key != HEADERS}, read(metadata[HEADERS])


def headers_in(row: HistoryEvent | None) -> Headers:
    """Return the headers of the message that a row records; none for another row."""
    if row is None or row.event_type not in _MESSAGES or not row.event_data:
        return NONE
    envelope = json.loads(row.event_data)
    return split_headers(envelope.get("metadata") or {})[1] if isinstance(envelope, dict) else NONE


_MESSAGES = (HistoryEventType.CHANNEL_MESSAGE_RECEIVED, HistoryEventType.EVENT_RECEIVED)


def message_from(envelope: Mapping[str, Any], channel: str) -> Message[Any]:
    """Return the message in a recorded envelope; compatible frameworks use other names for some fields."""
    number = envelope.get("id")
    stamp = envelope.get("published_at") or envelope.get("created_at")
    about, headers = split_headers(envelope.get("metadata") or {})
    return Message(
        channel=channel,
        data=envelope.get("data", envelope.get("payload")),
        id=number if isinstance(number, int) else 0,
        metadata=about,
        published_at=datetime.fromisoformat(stamp) if stamp else None,
        headers=headers,
    )


def typed(message: Message[Any], hint: object, what: str) -> Message[Any]:
    """Return the message with its data decoded by a type hint; raise `SerializationError`, naming it `what`."""
    if isinstance(message.data, bytes):
        return message
    try:
        data = decode(json.dumps(message.data).encode(), hint)
    except SerializationError as error:
        raise SerializationError(f"the data of the {what}: {error}") from error
    return Message(message.channel, data, message.id, message.metadata, message.published_at, message.headers)


def event_from(message: Message[Any], kind: str) -> Event[Any]:
    """Return the event in a message of the channel of its type."""
    about = message.metadata
    return Event(
        type=kind,
        data=message.data,
        id=str(about.get("ce_id", "")),
        source=str(about.get("ce_source", "")),
        time=about.get("ce_time"),
        subject=about.get("ce_subject"),
        extensions=about.get("ce_extensions") or {},
        headers=message.headers,
    )
