"""Two features side by side in one run, with every order in which two of their activities complete.

Each activity waits until the rig lets it complete, and each action of a script until the rig carries it out. All that
has completed so far, in whatever order, is a state of the pair. The rig plays orders until, in every state that any
order leads to, each activity that waits has been the next to complete. The same holds for actions that are due at the
same time. Each order must come to the same as the two features alone.

So any two completions that can follow each other are played both ways, in every state. All orders would be too many:
two `parent` have tens of thousands.
"""

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations_with_replacement
from typing import Any

from perdure import Client
from perdure.engine.execution import run as execution
from tests.takeover.features import FEATURES, Action, Aspect, Feature
from tests.takeover.log import LOG
from tests.takeover.outcomes import Outcome, left_behind
from tests.takeover.plays import CaseError, Play
from tests.takeover.rig import Player

PREFIXES = ("a.", "b.")
ENDED = "run ended: "
ACTION = "action "
SETTLED_SEC = 0.02  # no other activity has started for so long
LOOK_SEC = 0.004  # how often a run with a running activity looks for its timers and messages
_PATH = re.compile(r"(?<=~)[0-9.]+|(?<=~end/0/)[0-9.]+|\b[0-9]+(?:\.[0-9]+)*:")  # of a step in the task tree
_NOT_COMPARED = re.compile(r"run ended: |\S+ ~(?:[0-9]|patch:)")  # values that branches take together share a row
_CHILD = re.compile(r"run/[0-9.]+|run\b|[ab]\.started")
COMPARED = (Aspect.HISTORY, Aspect.TIMES, Aspect.OBSERVED, Aspect.LEFT)


@dataclass(frozen=True, slots=True)
class Order:
    """Two features, and which of the waiting activities completes at each choice."""

    first: str
    second: str
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join([self.first, self.second, ",".join(self.choices)])

    @classmethod
    def parse(cls, text: str) -> "Order":
        first, second, choices = text.split("/", 2)
        return cls(first, second, tuple(each for each in choices.split(",") if each))


def pairs() -> list[tuple[str, str]]:
    """All pairs of features that can be branches, also of a feature with itself."""
    return list(combinations_with_replacement([name for name, each in FEATURES.items() if not each.alone], 2))


def _branches(*names: tuple[str, str]) -> Feature:
    """The feature of a run with these features as branches, each with its prefix."""
    features = [(FEATURES[name], prefix) for name, prefix in names]
    script = [(hours, partial(_act, act, prefix)) for each, prefix in features for hours, act in each.script]
    bodies, prefixes = [each.workflow for each, _ in features], [prefix for _, prefix in features]
    served = dict.fromkeys([*bodies, *(child for each, _ in features for child in each.serves)])
    return Feature(
        "takeover.branches",
        ends="completed",
        hours=max(each.hours for each, _ in features),
        serves=tuple(served),
        arguments=(bodies, prefixes),
        script=tuple(sorted(script, key=lambda each: each[0])),
    )


async def _act(act: Action, prefix: str, client: Client, _: str) -> None:
    await act(client, prefix)


State = frozenset[tuple[str, int]]


@dataclass(slots=True)
class States:
    """The states of a pair that were seen, and what has been next in each."""

    _paths: dict[State, tuple[str, ...]] = field(default_factory=dict)  # the choices that lead to each
    _names: dict[State, set[str]] = field(default_factory=dict)  # what can be next
    _left: dict[State, set[str]] = field(default_factory=dict)  # what has not been next

    def choose(self, path: Sequence[str], names: Sequence[str]) -> str:
        """Return what is next after these choices: preferably what was not next before in this state."""
        state = _state(path)
        self._paths.setdefault(state, tuple(path))
        known, left = self._names.setdefault(state, set()), self._left.setdefault(state, set())
        left.update(set(names) - known)
        known.update(names)
        return next((name for name in names if name in left), names[0])

    def note(self, path: Sequence[str]) -> None:
        """Note an order that was played."""
        for place, name in enumerate(path):
            self._left.get(_state(path[:place]), set()).discard(name)

    def next_path(self) -> tuple[str, ...] | None:
        """Return choices that have not been made yet; None if all have been."""
        return next(((*self._paths[state], min(left)) for state, left in self._left.items() if left), None)


def _state(path: Sequence[str]) -> State:
    return frozenset(Counter(path).items())


class OrderedPlay(Play):
    """Lets activities complete one at a time, in the order of the choices, and then by the states that were seen."""

    def __init__(self, player: Player, feature: Feature, choices: Sequence[str], states: States) -> None:
        super().__init__(player.url, player.storage, player.deployment, feature, None, "")
        self._choices, self._states = list(choices), states
        self.made: list[str] = []
        self._actions = {id(act): f"{ACTION}{number}" for number, (_, act) in enumerate(feature.script)}
        self._waiting: set[str] = set()
        self._since = 0.0
        self._ordered: set[int] = set()
        LOG.has_turns = True

    async def _is_quiet(self) -> bool:
        if not LOG.waiting:
            return await super()._is_quiet()
        if self._choices and not self._choices[0].startswith(ACTION):
            return self._choices[0] in LOG.waiting
        if (names := set(LOG.waiting)) != self._waiting or not await self._is_settled():
            self._waiting, self._since = names, time.monotonic()
        return time.monotonic() - self._since > SETTLED_SEC

    async def _is_settled(self) -> bool:
        """Whether each run that is executed waits for its turn, and no other work is due."""
        waiting = {name.partition(" ")[0] for name in LOG.waiting}
        if any(worker.runs - waiting for worker in self._live):
            return False
        due, now = await self._dues(), await self._storage.now()
        return not due or min(due) > now

    async def _move_on(self) -> bool:
        if not LOG.waiting:
            self._order_actions()
            return await super()._move_on()
        LOG.waiting.pop(self._choose(sorted(LOG.waiting))).set_result(None)
        return True

    def _order_actions(self) -> None:
        """Choose which of the actions at the same time comes first, once for each place in the script."""
        if len(self._script) in self._ordered:
            return
        self._ordered.add(len(self._script))
        together = {self._actions[id(act)]: (hours, act) for hours, act in self._script if hours == self._script[0][0]}
        if len(together) > 1:
            first = together[self._choose(list(together))]
            self._script.remove(first)
            self._script.insert(0, first)

    def _choose(self, names: list[str]) -> str:
        if self._choices and self._choices[0] not in names:
            raise CaseError(f"{self._choices[0]!r} is not the next after {self.made}, but one of {names}")
        found = self._choices.pop(0) if self._choices else self._states.choose(self.made, names)
        self.made.append(found)
        return found


@dataclass(slots=True)
class PairPlayer:
    """Plays pairs on one database."""

    player: Player
    _alone: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    async def differences(self, first: str, second: str, most: int = 0) -> AsyncIterator[tuple[Order, list[str]]]:
        """Play all orders of a pair that are needed, or so many; yield the differences of each from the two alone."""
        states = States()
        choices: tuple[str, ...] | None = ()
        while choices is not None:
            wrong, made = await self.play(Order(first, second, choices), states)
            yield Order(first, second, made), wrong
            states.note(made if len(made) >= len(choices) else choices)
            most -= 1
            choices = states.next_path() if most else None

    async def play(self, order: Order, states: States | None = None) -> tuple[list[str], tuple[str, ...]]:
        """Play one order; return the differences and the choices that were made."""
        names = [(order.first, PREFIXES[0]), (order.second, PREFIXES[1])]
        alone = [await self._play_alone(each) for each in names]
        try:
            found, made = await self._play(_branches(*names), order.choices, states or States())
        except CaseError as error:
            return [str(error)], order.choices
        return _compare(alone, found), made

    async def _play_alone(self, name: tuple[str, str]) -> Outcome:
        if name not in self._alone:
            self._alone[name], _ = await self._play(_branches(name), (), States())
        return self._alone[name]

    async def _play(self, feature: Feature, choices: Sequence[str], states: States) -> tuple[Outcome, tuple[str, ...]]:
        await self.player.clear()
        play = OrderedPlay(self.player, feature, choices, states)
        before, execution.LOOK_SEC = execution.LOOK_SEC, LOOK_SEC
        try:
            return await play.run(), tuple(play.made)
        finally:
            execution.LOOK_SEC = before
            await play.close()


def _compare(alone: Sequence[Outcome], found: Outcome) -> list[str]:
    wrong = [f"left behind: {each}" for each in left_behind(found)]
    results = ",".join(_result(each) for each in alone)
    if _result(found) != results:
        wrong.append(f"the result is {_result(found)}, not {results}")
    if _end(found) != max(map(_end, alone)):
        wrong.append(f"it ended after {_end(found)} h, not {' and '.join(str(_end(each)) for each in alone)} h")
    for aspect in COMPARED:
        wrong += _difference(aspect, _lines(aspect, *alone), _lines(aspect, found))
    once, both = (
        Counter((each.what, each.attempt) for run in runs for each in run.executions) for runs in (alone, [found])
    )
    return wrong + _difference(Aspect.EXECUTIONS, once, both)


def _difference(aspect: Aspect, expected: Counter[Any], found: Counter[Any]) -> list[str]:
    missing, added = (expected - found).elements(), (found - expected).elements()
    return [*(f"{aspect}: missing {each}" for each in missing), *(f"{aspect}: added {each}" for each in added)]


def _lines(aspect: Aspect, *outcomes: Outcome) -> Counter[str]:
    """The lines of an aspect, without the places of their steps in the run."""
    lines = [line for each in outcomes for line in each.aspects[aspect] if not _NOT_COMPARED.match(line)]
    return Counter(_PATH.sub("", _CHILD.sub("a run", line)) for line in lines)


def _end(outcome: Outcome) -> float:
    (line,) = [each for each in outcome.aspects[Aspect.TIMES] if each.startswith(ENDED)]
    return float(line.removeprefix(ENDED).removesuffix("h"))


def _result(outcome: Outcome) -> str:
    """The results of the branches, without the brackets of their list."""
    (line,) = [each for each in outcome.aspects[Aspect.RUNS] if each.startswith("run: ")]
    return line.removeprefix("run: completed ").removeprefix("[").removesuffix("]")
