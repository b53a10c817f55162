"""Store the keys by which waits for certain values and messages with these values find each other.

Each set of JSON paths that the waits of a channel use is stored once. A message gets a key for each set when a sweep, a
subscriber that is about to wait, or the holder of a lease looks at the channel. All of them hold the channel's lock at
that time, so the keys are complete between the two ids stored with the set. A wait that is registered after its message
was published finds the message by the key, too.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from perdure.database.dialects import Features
from perdure.database.dialects.base import Bare
from perdure.database.operation import Operation
from perdure.errors import CodecError, LimitError
from perdure.model.limits import EVERYTHING
from perdure.model.matching import Match, data_of, key_of
from perdure.storage.sql import load_statements

log = logging.getLogger("perdure.storage")

S = load_statements("matching")

PAGE = 1000


def use(channel: str, match: Match, after_id: int) -> Operation[None]:
    """Record that a wait matches by a set of paths, from a message on."""
    paths = json.dumps(match.paths)
    yield S.use(channel=channel, paths_key=match.paths_key, paths=paths, after_id=after_id)


def find(features: Features, instance_id: str, channel: str, match: Match, after_id: int) -> Operation[int | None]:
    """Return the next message that matches, of those after an id; the channel is locked."""
    yield from complete(features, channel, match, after_id)
    rows = yield S.found(instance_id=instance_id, channel=channel, match_key=match.key)
    return rows[0][0] if rows else None


def may_find(instance_id: str, channel: str, match: Match) -> Operation[bool]:
    """Return whether there is a message that matches, or a message that has no key yet, without writing."""
    rows = yield S.may_find(instance_id=instance_id, channel=channel, match_key=match.key, paths_key=match.paths_key)
    return any(found is not None or not complete for found, complete in rows)


def not_for(channel: str) -> LimitError:
    """Return the error for a wait that cannot match."""
    return LimitError(f"channel {channel!r} is competing: its messages cannot be selected by their data")


def complete(features: Features, channel: str, match: Match, after_id: int) -> Operation[int | None]:
    """Create the missing keys of the messages after an id; the channel is locked.

    Return None, or the id before a message that is encoded and that this process cannot decode: the keys end there.
    """
    rows = yield S.range(channel=channel, paths_key=match.paths_key)
    if not rows:
        yield from use(channel, match, after_id)
    first, last = rows[0] if rows else (after_id, after_id)
    start = first
    if after_id < first and (yield from _make(features, channel, match.paths, after_id, first))[1]:
        start = after_id
    newest, is_complete = yield from _make(features, channel, match.paths, last, EVERYTHING)
    if start < first or newest > last:
        yield S.reach(channel=channel, paths_key=match.paths_key, from_id=start, to_id=newest)
    return None if is_complete else newest


def _make(
    features: Features, channel: str, paths: Sequence[str], after_id: int, last_id: int
) -> Operation[tuple[int, bool]]:
    """Create the keys of the messages between two ids; return the id of the last, and whether all have keys now."""
    while True:
        rows = yield S.messages(channel=channel, after_id=after_id, last_id=last_id, limit=PAGE)
        keys, unread = _keys(channel, paths, rows)
        if keys:
            yield from _add(features, keys)
        if unread is not None:
            return unread - 1, False
        after_id = rows[-1][0] if rows else after_id
        if len(rows) < PAGE:
            return after_id, True


def _keys(
    channel: str, paths: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[list[tuple[str, int, str]], int | None]:
    """Return the keys of messages up to the first that this process cannot decode, and the id of that one."""
    keys: list[tuple[str, int, str]] = []
    for number, data in rows:
        if data is None:
            continue
        try:
            key = key_of(channel, paths, data_of(channel, data))
        except CodecError as error:
            log.warning(
                "message %d of channel %s and those after it cannot be matched with waits by this process: %s",
                number,
                channel,
                error,
                extra={"channel": channel, "message_id": number, "reason": str(error)},
            )
            return keys, number
        if key is not None:
            keys.append((key, number, channel))
    return keys, None


def _add(features: Features, keys: Sequence[tuple[str, int, str]]) -> Operation[None]:
    if features.repeated_calls:
        yield S.add_many.for_each(
            [{"match_key": key, "message_id": number, "channel": name} for key, number, name in keys]
        )
        return
    columns = [list(column) for column in zip(*keys, strict=True)]
    yield S.add_many(keys=columns[0], messages=columns[1], channels=columns[2], rows=Bare(keys))


class Fresh(NamedTuple):
    """Hold a page of the keys on one channel that no sweep is done with, in the order of their messages."""

    channel: str
    keys: list[str]
    last_id: int  # once every wait for these keys is served, the sweep is done with the messages up to here
    more: bool


Sets = Sequence[Sequence[Any]]


def sets_of(channels: Sequence[str]) -> Operation[Sets]:
    """Return the sets of paths that waits of these channels match by."""
    return (yield S.sets(channels=list(channels)))  # type: ignore[no-any-return]


def complete_all(features: Features, channels: Sequence[str]) -> Operation[tuple[Sets, set[str]]]:
    """Create the missing keys of the messages of locked channels.

    Return their sets of paths, and the channels whose keys are not complete: another process must continue there.
    """
    sets, unread = [], set[str]()
    for row in (yield from sets_of(channels)):
        channel, paths_key, paths, to_id, newest, swept_id = row
        if newest is not None and newest > to_id:
            match = Match("", tuple(json.loads(paths)), paths_key)
            reached = yield from complete(features, channel, match, to_id)
            if reached is not None:
                unread.add(channel)
                newest = max(reached, swept_id)
        sets.append((channel, paths_key, paths, to_id, newest, swept_id))
    return sets, unread


def fresh(channel: str, sets: Sets, after_id: int) -> Operation[Fresh]:
    """Return a page of a channel's keys, from a message on; `sets` are those of the channel."""
    limit = PAGE + len(sets)  # so that a page holds more than one message
    rows = yield S.fresh(channel=channel, after_id=after_id, limit=limit)
    more = len(rows) == limit
    newest = max(after_id, min((newest for *_, newest, _ in sets if newest is not None), default=after_id))
    last_id = rows[-1][0] - 1 if more else newest  # another key of the last message may follow
    return Fresh(channel, sorted({key for _, key in rows}), last_id, more)


def by_channel(sets: Sets) -> dict[str, tuple[int, list[Sequence[Any]]]]:
    """Return, for each channel, up to where sweeps are done, and its sets."""
    found: dict[str, tuple[int, list[Sequence[Any]]]] = {}
    for row in sets:
        found.setdefault(row[0], (row[-1], []))[1].append(row)
    return found
