"""Matching: what a wait asks of a message's data, and the key by which the two find each other.

A wait names JSON paths and the values they must have. Its key is a digest of the channel, the paths and the values. A
message has a key for each set of paths that waits of its channel use, and matches the waits that have the same key.
Values are equal if they are of the same JSON type and equal all the way down; 1 and 1.0 are the same number.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from perdure.errors import InvalidJSONPathError, LimitError

PATHS_MAX = 50
PATH_MAX = 255
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Match:
    """What a wait asks for, as it is stored."""

    key: str
    paths: tuple[str, ...]
    paths_key: str


class Where(dict[str, object]):
    """Paths and values of a wait that is registered again and again: its keys are computed once for each channel."""

    def __init__(self, where: Mapping[str, object]) -> None:
        super().__init__(where)
        self.known: dict[str, Match] = {}


def match_of(channel: str, where: Mapping[str, object]) -> Match:
    """Return what a wait on a channel for these values at these paths is found by."""
    if not isinstance(where, Where):
        return _match_of(channel, where)
    if channel not in where.known:
        where.known[channel] = _match_of(channel, where)
    return where.known[channel]


def _match_of(channel: str, where: Mapping[str, object]) -> Match:
    check(where)
    paths = tuple(sorted(where))
    return Match(_key(channel, paths, [where[path] for path in paths]), paths, _digest(json.dumps(paths)))


def check(where: Mapping[str, object]) -> None:
    """Raise unless these are paths and values that a message can be matched by."""
    if not 0 < len(where) <= PATHS_MAX:
        raise LimitError(f"a match has 1 to {PATHS_MAX} JSON paths, not {len(where)}")
    for path, value in where.items():
        if not isinstance(path, str) or len(path) > PATH_MAX or not all(path.split(".")):
            raise InvalidJSONPathError(
                f"a JSON path is keys joined by dots, of at most {PATH_MAX} characters, not {path!r}"
            )
        try:
            json.dumps(_canonical(value))
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise LimitError(f"the value to match at {path!r} is not JSON: {error}") from error


def data_of(text: str) -> object:
    """Return a message's data; None, which has no values, if another framework stored something that is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def key_of(channel: str, paths: Sequence[str], data: object) -> str | None:
    """Return the key of a message's data for a set of paths, or None if it has no value at one of them.

    A value too deeply nested to be looked at has no key either: no wait can ask for it.
    """
    values = [value_at(data, path) for path in paths]
    if any(value is _MISSING for value in values):
        return None
    try:
        return _key(channel, paths, values)
    except RecursionError:
        return None


def matches(data: object, where: Mapping[str, object]) -> bool:
    """Return whether the values at these paths are these."""
    try:
        return all(_same(value_at(data, path), value) for path, value in where.items())
    except RecursionError:
        return False


def value_at(data: object, path: str) -> object:
    """Return the value at a dotted path; a mark that equals nothing if there is none."""
    for name in path.split("."):
        if not isinstance(data, Mapping) or name not in data:
            return _MISSING
        data = data[name]
    return data


def _same(found: object, value: object) -> bool:
    return found is not _MISSING and _canonical(found) == _canonical(value)


def _key(channel: str, paths: Sequence[str], values: Sequence[object]) -> str:
    return _digest(json.dumps([channel, list(paths), [_canonical(value) for value in values]]))


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _canonical(value: object) -> object:
    """A form that is equal for equal values only: numbers as text, objects in the order of their keys."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of an object are texts")
        return {"object": [[key, _canonical(value[key])] for key in sorted(value)]}
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"number": str(int(value)) if value == value // 1 else repr(float(value))}
    return value
