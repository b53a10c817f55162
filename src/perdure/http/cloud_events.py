"""CloudEvents 1.0 over HTTP, in structured, binary and batched mode, read by the official SDK, version 1 or 2.

The SDK is lenient: it makes up a missing id or time, and takes broken JSON for text. An event with a made-up id would
never be recognised as a duplicate. So what the specification requires is checked here as well.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any, cast
from urllib.parse import quote, unquote

import msgspec

from perdure.http.bodies import check_text, is_json, parse
from perdure.http.problems import Problem
from perdure.model.header_attributes import OTHERS, from_attributes
from perdure.model.headers import Headers
from perdure.model.limits import PAGE_MAX

STRUCTURED = "application/cloudevents"
STRUCTURED_JSON = "application/cloudevents+json"
BATCH_JSON = "application/cloudevents-batch+json"
PREFIX = "ce-"
RECEIVER = "perdurerun"  # the extension attribute with the id of the only run that receives the event

_REQUIRED = ("specversion", "id", "source", "type")
_OWN = (*_REQUIRED, "subject", "time", "datacontenttype", "data", "data_base64", RECEIVER)
_READ = (*_OWN, OTHERS)
_NAME = re.compile(r"[a-z0-9]+\Z")
_ESCAPE = re.compile(r"\\(.)")  # in a quoted string of a header

Attributes = Mapping[str, Any]
Read = Callable[[Mapping[str, str], bytes], tuple[Attributes, object]]


@dataclass(frozen=True, slots=True)
class Received:
    """A CloudEvent that was received. `extensions` has the extension attributes, and `dataschema`.

    `headers` are in some of the extension attributes.
    """

    type: str
    source: str
    id: str
    data: object
    subject: str | None
    time: str | None
    to: str | None
    extensions: Mapping[str, object]
    headers: Headers


def read_events(headers: Mapping[str, str], type: str, body: bytes) -> list[Received]:
    """Return the events of a request with this media type; raise `Problem` if there are none or one is invalid."""
    if type == BATCH_JSON:
        return _read_batch(body)
    if type == STRUCTURED_JSON:
        return [_read_structured(body, parse(body, dict[str, Any]))]
    if not type.startswith(STRUCTURED) and f"{PREFIX}specversion" in headers:
        return [_read_binary(headers, type, body)]
    raise Problem(
        415,
        f"the request has no CloudEvent: send {STRUCTURED_JSON}, {BATCH_JSON}, or an event in binary mode with the "
        f"header {PREFIX}specversion",
    )


def _read_batch(body: bytes) -> list[Received]:
    texts = parse(body, list[msgspec.Raw])
    if len(texts) > PAGE_MAX:
        raise Problem(413, f"a batch has at most {PAGE_MAX} events, and this one has {len(texts)}: send several")
    return [_read_structured(bytes(text), parse(bytes(text), dict[str, Any])) for text in texts]


def _read_structured(body: bytes, given: Attributes) -> Received:
    _check(given)
    if "data" in given and "data_base64" in given:
        raise _invalid("data_base64", "an event has `data` or `data_base64`, not both")
    attributes, data = _sdk({"content-type": STRUCTURED_JSON}, body)
    if "data_base64" in given:
        data = _decoded(_bytes(given["data_base64"]), str(given.get("datacontenttype") or ""))
    return _received(attributes, given, data)


def _read_binary(headers: Mapping[str, str], type: str, body: bytes) -> Received:
    attributed = [(name[len(PREFIX) :], value) for name, value in headers.items() if name.startswith(PREFIX)]
    given = {name: _header(name, value) for name, value in attributed}
    _check(given)
    # The SDK gets only the attributes: it would take data that is not what the content type says for text.
    attributes, _ = _sdk({f"{PREFIX}{name}": quote(value) for name, value in given.items()}, b"")
    return _received(attributes, given, _decoded(body, type))


def _header(name: str, value: str) -> str:
    """Return the value of an attribute in a header: without quotes, as early senders wrote it, and percent-decoded."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = _ESCAPE.sub(r"\1", value[1:-1])
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise _invalid(name, f"the header {PREFIX}{name} is not percent-encoded UTF-8") from None


def _check(given: Attributes) -> None:
    """Raise `Problem` if an event lacks what the specification requires."""
    for name in _REQUIRED:
        if not isinstance(given.get(name), str) or not given[name]:
            raise _invalid(name, f"a CloudEvent needs the attribute {name!r}, a text that is not empty")
    if given["specversion"] != "1.0":
        raise _invalid("specversion", f"only CloudEvents 1.0 are supported, not {given['specversion'][:20]!r}")
    for name in ("subject", "time", "datacontenttype", "dataschema", RECEIVER):
        if given.get(name) is not None and (not isinstance(given[name], str) or not given[name]):
            raise _invalid(name, f"the attribute {name!r} must be a text that is not empty")
    for name, value in given.items():
        if name not in _OWN and not (_NAME.match(name) and isinstance(value, str | int | bool | None)):
            raise _invalid(
                name, "an extension attribute has a name of lower-case letters and digits and a simple value"
            )
    if given.get("time") is not None:
        _check_time(given["time"])


def _check_time(text: str) -> None:
    try:
        aware = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise _invalid("time", "the attribute 'time' must be a time with a time zone, such as 2026-01-31T12:00:00Z")


def _received(attributes: Attributes, given: Attributes, data: object) -> Received:
    """Return an event with the attributes that the SDK read; `given` says which of them the request has."""
    return Received(
        type=str(attributes["type"]),
        source=str(attributes["source"]),
        id=str(attributes["id"]),
        data=data,
        subject=given.get("subject"),
        time=given.get("time"),
        to=given.get(RECEIVER),
        extensions={name: value for name, value in given.items() if name not in _READ and value is not None},
        headers=from_attributes(given, str(attributes["id"])),
    )


def _decoded(body: bytes, type: str) -> object:
    """Return the data of an event by its content type: JSON, text, or bytes."""
    type = type.partition(";")[0].strip().lower()
    if not body:
        return None
    if not type or is_json(type):
        return parse(body, Any)
    if type.startswith("text/"):
        check_text(body)
        return body.decode()
    return body


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(cast(str, text), validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _invalid("data_base64", "the attribute 'data_base64' must be a text in base64") from None


def _invalid(name: str, detail: str) -> Problem:
    return Problem(422, detail, code="http.cloudevent", parameter=name)


def _sdk(headers: Mapping[str, str], body: bytes) -> tuple[Attributes, object]:
    """Return the attributes and the data of an event that the SDK reads."""
    try:
        return _read(headers, body)
    except Exception as error:  # the SDK raises what its parsers raise
        raise Problem(422, f"the CloudEvent is invalid: {str(error)[:500]}", code="http.cloudevent") from None


def _read_by_version_2() -> Read:
    binding = import_module("cloudevents.core.bindings.http")

    def read(headers: Mapping[str, str], body: bytes) -> tuple[Attributes, object]:
        event = binding.from_http_event(binding.HTTPMessage(dict(headers), body))
        return event.get_attributes(), event.get_data()

    return read


def _read_by_version_1() -> Read:
    sdk = import_module("cloudevents.http")

    def read(headers: Mapping[str, str], body: bytes) -> tuple[Attributes, object]:
        decoded = {name: unquote(value) for name, value in headers.items()}  # which this version does not do
        event = sdk.from_http(decoded, body, data_unmarshaller=_unmarshalled)
        return event.get_attributes(), event.get_data()

    return read


def _unmarshalled(content: str | bytes) -> object:
    return parse(content.encode(), Any) if isinstance(content, str) and content else content


def _reader() -> Read:
    try:
        return _read_by_version_2()
    except ImportError:
        return _read_by_version_1()


_read = _reader()
