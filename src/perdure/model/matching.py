"""Match messages with waits: a wait asks for values in a message's data, and a key connects the two.

A wait names JSON paths and the values they must have. Its key is a digest of the channel, the paths and the values. A
message has a key for each set of paths that waits of its channel use, and matches the waits that have the same key.
Values are equal if they have the same JSON type and are equal at every level; 1 and 1.0 are the same number.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from perdure.errors import LimitError
from perdure.model.envelopes import PREFIX, message_data
from perdure.model.json_paths import MISSING, canonical, check_match, value_at

PATHS_MAX = 50


@dataclass(frozen=True, slots=True)
class Match:
    """Hold what a wait asks for, as it is stored."""

    key: str
    paths: tuple[str, ...]
    paths_key: str


class Where(dict[str, object]):
    """Hold paths and values of a wait that is registered repeatedly, and compute its keys once per channel."""

    def __init__(self, where: Mapping[str, object]) -> None:
        super().__init__(where)
        self.known: dict[str, Match] = {}


def match_of(channel: str, where: Mapping[str, object]) -> Match:
    """Return the match by which a wait on a channel for these values at these paths is found."""
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
        raise LimitError(f"where must have 1 to {PATHS_MAX} JSON paths, not {len(where)}")
    for path, value in where.items():
        check_match(path, value)


def data_of(channel: str, text: str) -> object:
    """Return a message's data; None, which matches nothing, if another framework stored something that is not JSON.

    Raise `CodecError` if the message is encoded and no codec of this process decodes it.
    """
    data = message_data(channel, text.encode()) if text.startswith(PREFIX) else text
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def key_of(channel: str, paths: Sequence[str], data: object) -> str | None:
    """Return the key of a message's data for a set of paths, or None if it has no value at one of them.

    A value that is nested too deeply has no key either: no wait can ask for it.
    """
    values = [value_at(data, path) for path in paths]
    if any(value is MISSING for value in values):
        return None
    try:
        return _key(channel, paths, values)
    except RecursionError:
        return None


def matches(data: object, where: Mapping[str, object]) -> bool:
    """Return whether the data has these values at these paths."""
    try:
        return all(_same(value_at(data, path), value) for path, value in where.items())
    except RecursionError:
        return False


def _same(found: object, value: object) -> bool:
    return found is not MISSING and canonical(found) == canonical(value)


def _key(channel: str, paths: Sequence[str], values: Sequence[object]) -> str:
    return _digest(json.dumps([channel, list(paths), [canonical(value) for value in values]]))


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
