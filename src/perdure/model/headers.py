"""Headers: short texts that travel with a run, such as a tenant or the context of a trace."""

import json
import logging
from collections.abc import Mapping
from types import MappingProxyType

from perdure.errors import LimitError
from perdure.model import limits

log = logging.getLogger("perdure.engine")

COUNT_MAX = 32
NAME_MAX = 100
VALUE_MAX = 8192  # characters; the baggage of a trace has at most that many
TOTAL_MAX = 16 * 1024  # characters of all names and values

Headers = Mapping[str, str]

NONE: Headers = MappingProxyType({})


def none() -> Headers:
    """Return no headers; the default of the fields of dataclasses."""
    return NONE


def checked(headers: object, what: str) -> dict[str, str]:
    """Return a copy of the headers; raise `TypeError` or `LimitError`, naming them `what`, if they cannot be stored."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"{what} must be a dict of texts, not {headers!r}")
    found: dict[str, str] = {}
    for name, value in headers.items():
        limits.name(name, f"the name of a header in {what}", NAME_MAX)
        if not isinstance(value, str):
            raise TypeError(f"the header {name!r} in {what} must be a text, not {type(value).__name__}")
        if len(value) > VALUE_MAX:
            raise LimitError(f"the header {name!r} in {what} has {len(value)} characters, the limit is {VALUE_MAX}")
        if not value.isprintable():
            raise LimitError(f"the header {name!r} in {what} contains a character that is not printable: remove it")
        found[name] = value
    if len(found) > COUNT_MAX:
        raise LimitError(f"{what} has {len(found)} headers, the limit is {COUNT_MAX}: store the rest in the input")
    total = sum(len(name) + len(value) for name, value in found.items())
    if total > TOTAL_MAX:
        raise LimitError(f"{what} has {total} characters, the limit is {TOTAL_MAX}: store the rest in the input")
    return found


def encode(headers: Headers) -> bytes | None:
    """Return checked headers as JSON; None if there are none."""
    return json.dumps(dict(headers), ensure_ascii=False).encode() if headers else None


def decode(data: bytes | None) -> Headers:
    """Return stored headers. A value that perdure did not write is ignored and logged: no run depends on it."""
    if data is None:
        return NONE
    try:
        return read(json.loads(data))
    except ValueError as error:
        log.warning("stored headers are not JSON and are ignored: %s", error, extra={"reason": str(error)})
        return NONE


def read(value: object) -> Headers:
    """Return the headers in a decoded JSON value: the texts of an object, and nothing of anything else."""
    if not isinstance(value, dict):
        return NONE
    return MappingProxyType({str(name): text for name, text in value.items() if isinstance(text, str)})
