"""Split a batch into sets, each of which is written by a constant number of statements."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

SET_MAX, SET_MAX_BYTES = 500, 2 * 1024 * 1024  # items of a batch in one statement


def split(items: Sequence[Item], size: Callable[[Item], int]) -> list[Sequence[Item]]:
    """Return the items in sets that are small enough for one statement, whose size MySQL limits."""
    sets: list[list[Item]] = []
    room_left = 0
    for item in items:
        taken = size(item)
        if not sets or taken > room_left or len(sets[-1]) == SET_MAX:
            sets.append([])
            room_left = SET_MAX_BYTES
        sets[-1].append(item)
        room_left -= taken
    return list(sets)
