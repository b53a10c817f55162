"""Headers as attributes of CloudEvents, and back.

The context of a trace has the attributes of the CloudEvents extension for distributed tracing. All other headers are in
one attribute, as a JSON object in ASCII: their names may have characters that names of attributes must not have.
"""

import json
import logging
from collections.abc import Mapping
from urllib.parse import unquote

from perdure.errors import LimitError
from perdure.model.headers import COUNT_MAX, NONE, Headers, checked

log = logging.getLogger("perdure.engine")

TRACE = ("traceparent", "tracestate")
OTHERS = "perdureheaders"
OTHERS_MAX = 8192  # characters; web servers limit the length of a header, many of them to about so much

# Less than a run may have: interceptors add headers to a received event, and it must not be refused because of that.
RECEIVED_MAX = COUNT_MAX - 4
TRACE_MAX = 2048  # characters of each attribute


def to_attributes(headers: Headers, event_id: str) -> dict[str, str]:
    """Return the attributes that carry the headers of an event; the id is for the log.

    What does not fit into the attribute for other headers is left out, the longest headers first.
    """
    found = {name: headers[name] for name in TRACE if headers.get(name)}
    others = sorted((item for item in headers.items() if item[0] not in found), key=lambda item: len("".join(item)))
    omitted, text = list[str](), json.dumps(dict(others))
    while len(text) > OTHERS_MAX:
        omitted.append(others.pop()[0])
        text = json.dumps(dict(others))
    if omitted:
        log.warning(
            "event %s is published without the headers %s: all of them have more than %d characters as JSON",
            event_id,
            ", ".join(omitted),
            OTHERS_MAX,
            extra={"event_id": event_id, "headers": omitted},
        )
    return {**found, OTHERS: text} if others else found


def from_attributes(attributes: Mapping[str, object], event_id: str) -> Headers:
    """Return the headers in the attributes of a received event; the id is for the log.

    Headers that cannot be stored are dropped and logged: they come from outside, and no event is lost because of them.
    """
    reasons = list[str]()
    found = _trace(attributes, reasons)
    for name, value in _others(attributes.get(OTHERS), reasons).items():
        if len(found) == RECEIVED_MAX:
            reasons.append(f"the limit is {RECEIVED_MAX} headers")
            break
        if name not in found:
            found = _with(found, name, value, reasons)
    if reasons:
        log.debug(
            "headers of the received event %r were dropped: %s",
            event_id,
            "; ".join(reasons[:3]),
            extra={"event_id": event_id, "reason": reasons[0]},
        )
    return found or NONE


def _trace(attributes: Mapping[str, object], reasons: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in TRACE:
        value = attributes.get(name)
        if isinstance(value, str) and not (value.isascii() and len(value) <= TRACE_MAX):
            reasons.append(f"{name} must have at most {TRACE_MAX} characters, all of them ASCII")
        elif value is not None and value != "":
            found = _with(found, name, value, reasons)
    return found


def _with(found: dict[str, str], name: str, value: object, reasons: list[str]) -> dict[str, str]:
    try:
        return checked({**found, name: value}, "a received event")
    except (TypeError, LimitError) as error:
        reasons.append(str(error))
        return found


def _others(given: object, reasons: list[str]) -> dict[str, object]:
    """Return the headers in the attribute for them; some senders percent-encode it, as in headers of HTTP."""
    if given is None:
        return {}
    text = given if isinstance(given, str) and len(given) <= 3 * OTHERS_MAX else ""
    text = text if text.startswith("{") else unquote(text)
    try:
        found = json.loads(text) if len(text) <= OTHERS_MAX else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        reasons.append(f"{OTHERS} is not a text with a JSON object of at most {OTHERS_MAX} characters")
        return {}
    return found
