"""Streams of events for one run: some fit what it waits for, the others nearly do.

A value is known by its kind. Which values are the same stands in `GROUPS`, written down and not computed, so that
nothing here can be wrong in the way the engine's own comparison would be.
"""

import random
from typing import Any

# A group has kinds that an implementation might confuse; in a kind are values that are the same.
GROUPS: tuple[tuple[tuple[Any, ...], ...], ...] = (
    ((1, 1.0), (True,), ("1",), ("true",)),
    ((0, 0.0, -0.0), (False,), (None,), ("0",), ("",), ("false",), ("null",)),
    ((2**53, float(2**53)), (2**53 + 1,), (str(2**53),)),  # no float is the second
    (("a",), ("A",), ("a ",), ("\u00e1",), ("a\u0301",)),  # the last two look the same
    (
        ([1], [1.0]),
        ([True],),
        ([1, 1],),
        ([[1]],),
        ([],),
        ({"x": 1}, {"x": 1.0}),
        ({"x": True},),
        ({"x": 1, "y": 1},),
        ({},),
    ),
)
KINDS = [kind for group in GROUPS for kind in group]
GROUP_OF = [place for place, group in enumerate(GROUPS) for _ in group]
PATHS = ("a", "b.c", "d.e.f")
NOTHING = -1  # no value at this path
SPOILED: tuple[Any, ...] = (None, 1, "c", [], ["c"], [{"c": 1}], {})  # where an object would have to be

Where = dict[str, int]  # kinds by path


class Streams:
    """Makes them up."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def where(self) -> Where:
        """What a wait asks for; mostly one thing."""
        paths = self._chance.sample(PATHS, self._chance.choice((1, 1, 2)))
        return {path: self._chance.randrange(len(KINDS)) for path in paths}

    def values(self, where: Where) -> dict[str, Any]:
        """The same, in the form of the engine."""
        return {path: self._chance.choice(KINDS[kind]) for path, kind in where.items()}

    def fitting(self, wheres: list[Where]) -> tuple[list[Any], list[int]]:
        """The events for waits that come one after the other, and the number of the event that each has to take."""
        sent: list[Where] = []
        for where in wheres:
            sent += [self._near(self._chance.choice(wheres)) for _ in range(self._chance.randint(0, 2))]
            sent.append({**self._any(), **where})
        sent += [self._near(where) for where in wheres[-1:]]
        found: list[int] = []
        for where in wheres:  # an event that the first wait did not match is still there for the second
            numbers = (number for number, each in enumerate(sent) if number not in found and fits(each, where))
            found.append(next(numbers))
        return [self._event(number, each) for number, each in enumerate(sent)], found

    def missing(self, where: Where) -> list[Any]:
        """Events of which none fits."""
        sent = [self._near(where) for _ in range(self._chance.randint(1, 3))]
        return [self._event(number, each) for number, each in enumerate(sent) if not fits(each, where)]

    def _any(self) -> Where:
        return {path: self._chance.randrange(NOTHING, len(KINDS)) for path in PATHS}

    def _near(self, where: Where) -> Where:
        """All is right but for one value, or the place where that should be."""
        path = self._chance.choice(list(where))
        kind, group = where[path], GROUP_OF[where[path]]
        near = [other for other in range(len(KINDS)) if other != kind and GROUP_OF[other] == group]
        return {**self._any(), **where, path: self._chance.choice((*near, NOTHING))}

    def _event(self, number: int, kinds: Where) -> Any:
        data: dict[str, Any] = {"number": number}
        for path, kind in kinds.items():
            *parents, last = path.split(".")
            if kind == NOTHING:
                if parents and self._chance.random() < 0.5:
                    data[parents[0]] = self._chance.choice(SPOILED)
                if parents and self._chance.random() < 0.5:
                    data[path] = self._chance.choice(KINDS[0])  # a name that looks like the path
                continue
            place = data
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = self._chance.choice(KINDS[kind])
        return data


def fits(event: Where, where: Where) -> bool:
    """Whether an event has all that is asked for."""
    return all(event[path] == kind for path, kind in where.items())
