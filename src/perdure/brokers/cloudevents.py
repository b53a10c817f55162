"""CloudEvents 1.0: events of the outbox as messages, and messages as events.

In structured mode the message's body is a JSON object with all attributes and the data. In binary mode the body is the
data, and headers have the attributes; their prefix depends on the broker.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from perdure.model.header_attributes import from_attributes, to_attributes
from perdure.model.headers import Headers, decode, none
from perdure.model.records import OutboxEvent

STRUCTURED = "application/cloudevents+json"
PREFIXES = ("ce-", "ce_", "cloudevents:", "cloudevents_")  # HTTP and NATS, Kafka, AMQP (two spellings)
_REQUIRED = ("id", "source", "type")


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """An event that was received; `data` is a JSON value."""

    id: str
    type: str
    source: str
    subject: str | None
    data: object
    headers: Headers = field(default_factory=none)


def attributes(event: OutboxEvent) -> dict[str, str]:
    """Return the attributes of an event of the outbox; some of them carry its headers."""
    found = {"specversion": "1.0", "id": event.event_id, "type": event.event_type, "source": event.event_source}
    if event.created_at is not None:
        found["time"] = event.created_at.isoformat().replace("+00:00", "Z")
    return {**found, "datacontenttype": event.content_type, **to_attributes(decode(event.headers), event.event_id)}


def structured(event: OutboxEvent) -> bytes:
    """Return an event as a JSON object."""
    fields: dict[str, object] = {**attributes(event)}
    if event.event_data_binary is not None:
        fields["data_base64"] = base64.b64encode(event.event_data_binary).decode()
    elif event.event_data is not None:
        fields["data"] = msgspec.Raw(event.event_data)
    return msgspec.json.encode(fields)


def message(event: OutboxEvent, mode: str, prefix: str) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a message, with its content type as `content-type`."""
    if mode == "structured":
        return structured(event), {"content-type": STRUCTURED}
    about = attributes(event)
    kind = about.pop("datacontenttype")
    data = event.event_data if event.event_data_binary is None else event.event_data_binary
    return data or b"", {**{f"{prefix}{name}": value for name, value in about.items()}, "content-type": kind}


def received(headers: Mapping[str, str], body: bytes) -> CloudEvent | None:
    """Return the event in a message, whose headers have lower-case names; None if it is no CloudEvent.

    Raises `ValueError` if it claims to be one and is not valid.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == STRUCTURED:
        return _from_object(_json(body, "the body of the CloudEvent"))
    if kind.startswith("application/cloudevents"):
        raise ValueError(f"CloudEvents in the form {kind} are not supported: send each event as {STRUCTURED}")
    for prefix in PREFIXES:
        if f"{prefix}specversion" in headers or f"{prefix}type" in headers:
            return _from_headers(headers, prefix, kind, body)
    if kind in ("", "application/json") and b'"specversion"' in body:  # a broker without headers
        found = _json(body, "the body")
        if isinstance(found, dict) and isinstance(found.get("specversion"), str):
            return _from_object(found)
    return None


def plain(headers: Mapping[str, str], body: bytes) -> object:
    """Return the JSON value in a message that is no CloudEvent; raise `ValueError` if it is not JSON."""
    if not body:
        raise ValueError("the body is empty: it must be JSON (in a stream of Redis, the field 'data')")
    return _json(body, "the body")


def _json(body: bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from error


def _from_object(fields: Any) -> CloudEvent:
    if not isinstance(fields, dict):
        raise ValueError("the CloudEvent is not a JSON object")
    data = fields.get("data")
    if "data_base64" in fields:
        try:
            decoded = base64.b64decode(str(fields["data_base64"]), validate=True)
        except binascii.Error as error:
            raise ValueError(f"data_base64 of the CloudEvent is not base64: {error}") from error
        data = _data(str(fields.get("datacontenttype", "")), decoded)
    return _event(fields, data)


def _from_headers(headers: Mapping[str, str], prefix: str, kind: str, body: bytes) -> CloudEvent:
    about = {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}
    return _event(about, _data(about.get("datacontenttype", kind), body))


def _event(about: Mapping[str, Any], data: object) -> CloudEvent:
    if not str(about.get("specversion", "")).startswith("1."):
        raise ValueError(f"specversion of the CloudEvent is {about.get('specversion')!r}: only 1.0 is supported")
    for name in _REQUIRED:
        if not isinstance(about.get(name), str) or not about[name]:
            raise ValueError(f"the CloudEvent has no attribute {name!r}, or an empty one")
    subject = None if about.get("subject") is None else str(about["subject"])
    headers = from_attributes(about, about["id"])
    return CloudEvent(about["id"], about["type"], about["source"], subject, data, headers)


def _data(kind: str, body: bytes) -> object:
    """Return data as a JSON value: text as a string, other bytes in base64."""
    kind = kind.partition(";")[0].strip().lower()
    if not body:
        return None
    if kind in ("", "application/json", "text/json") or kind.endswith("+json"):
        return _json(body, "the data of the CloudEvent")
    if kind.startswith("text/"):
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"the data of the CloudEvent is not UTF-8: {error}") from error
    return base64.b64encode(body).decode()
