"""Plans: random workflows as data, one workflow that executes a plan, and a model of the expected outcome.

The model knows nothing of replay, leases or crashes. It walks the plan once and notes what is done, undone and said.
Branches of a gather end in any order, so what they do is compared as a whole; only results have an order.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

from perdure import (
    Retry,
    Workflow,
    WorkflowFailedError,
    activity,
    activity_info,
    publish,
    receive,
    recur,
    send_to,
    sleep,
    subscribe,
    wait_event,
    workflow,
)
from perdure.engine.replay import context
from tests.engine.crashes.rig.effect_log import EFFECTS
from tests.engine.crashes.rig.event_streams import Streams
from tests.engine.crashes.rig.workflows import Executed, Mark

SAID = "model.said"
CAUGHT, LATE = -1, -2
QUICK = Retry(attempts=3, initial=timedelta(milliseconds=10))

Node = dict[str, Any]
Plan = list[Node]


# The engine's side.


@activity(name="model.act")
async def act(label: int) -> Mark:
    executed = Executed()
    await asyncio.sleep(random.uniform(0, 0.03))
    return executed.mark(label)


@activity(name="model.book")
async def book(label: int) -> Mark:
    executed = Executed()
    await asyncio.sleep(random.uniform(0, 0.03))
    return executed.mark(label)


@book.compensation(retry=QUICK)
async def unbook(label: int, *, result: Mark) -> None:
    executed = Executed()
    EFFECTS.activity("undone", result.token)
    if label % 3 == 0 and activity_info().attempt == 1:
        raise executed.fail("not the first time")
    executed.mark(label)


@activity(name="model.flaky", retry=QUICK)
async def flaky(label: int, fails: int) -> Mark:
    executed = Executed()
    if activity_info().attempt <= fails:
        raise executed.fail("not yet")
    return executed.mark(label)


@activity(name="model.fail", retry=Retry(attempts=1))
async def fail(label: int) -> Mark:
    raise Executed().fail(str(label))


@activity(name="model.say")
async def say(label: int) -> Mark:
    executed = Executed()
    await publish(SAID, label)
    return executed.mark(label)


@workflow(name="model.play")
async def play(plan: Plan, seen: list[Any]) -> list[Any]:
    for node in plan:
        if node["do"] == "recur":
            recur(node["body"], seen)
        seen = [*seen, await _perform(node)]
    return seen


async def _perform(node: Node) -> Any:
    label = node["label"]
    match node["do"]:
        case "act":
            return (await act(label)).value
        case "book":
            return (await book(label)).value
        case "flaky":
            return (await flaky(label, node["fails"])).value
        case "fail":
            return (await fail(label)).value
        case "say":
            return (await say(label)).value
        case "publish":
            await publish(SAID, label)
            return label
        case "sleep":
            await sleep(node["sec"])
            return label
        case "late":
            return await _late("model.never", None, node["sec"])
        case "event":
            return (await wait_event(f"model.{label}")).data
        case "events":
            return [(await wait_event(f"model.{label}", where=where)).data["number"] for where in node["wheres"]]
        case "misses":
            return await _late(f"model.{label}", node["where"], node["sec"])
        case "mail":
            return await _mail(label)
        case "child":
            return await play(node["body"], [])
        case "all":
            return await _all(node["branches"])
        case "try":
            return await _try(node["body"])
    raise AssertionError(node)


async def _sequence(plan: Plan) -> list[Any]:
    return [await _perform(node) for node in plan]


async def _all(branches: list[Plan]) -> list[Any]:
    found = await asyncio.gather(*map(_sequence, branches), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return list(found)


async def _try(plan: Plan) -> Any:
    try:
        return await _sequence(plan)
    except (ValueError, WorkflowFailedError):
        return CAUGHT


async def _late(event: str, where: dict[str, Any] | None, seconds: float) -> int:
    try:
        await wait_event(event, where=where, timeout=timedelta(seconds=seconds))
    except TimeoutError:
        return LATE
    return 0


async def _mail(label: int) -> Any:
    """A letter to itself."""
    channel = f"model.mail.{label}"
    await subscribe(channel, "direct")
    await send_to(context.require_run("mail").run_id, channel, label)
    return (await receive(channel)).data


CAST: Sequence[Workflow[..., Any]] = [play]


# The model's side.


class Failed(Exception):
    """A step failed for good."""


@dataclass(slots=True)
class Model:
    """What must have happened in a run and its children, by labels."""

    done: Counter[int] = field(default_factory=Counter)
    undone: Counter[int] = field(default_factory=Counter)
    retried: Counter[int] = field(default_factory=Counter)
    said: Counter[int] = field(default_factory=Counter)
    runs: int = 0
    failed_runs: int = 0
    result: list[Any] | None = None

    @classmethod
    def of(cls, plan: Plan) -> "Model":
        """What comes of a plan."""
        model = cls()
        try:
            model.result = model._run(plan)
        except Failed:
            model.result = None
        return model

    def _run(self, plan: Plan) -> list[Any]:
        seen: list[Any] = []
        while True:
            self.runs += 1
            booked: list[int] = []
            again = plan[-1]["body"] if plan and plan[-1]["do"] == "recur" else None
            try:
                seen += [self._perform(node, booked) for node in plan if node["do"] != "recur"]
            except Failed:
                self.undone.update(booked)
                self.failed_runs += 1
                raise
            if again is None:
                return seen
            plan = again

    def _perform(self, node: Node, booked: list[int]) -> Any:
        label = node["label"]
        match node["do"]:
            case "act" | "flaky" | "book" | "say":
                self.done[label] += 1
                self.retried[label] += node.get("fails", 0)
                self.said[label] += node["do"] == "say"
                booked += [label] if node["do"] == "book" else []
                return label
            case "fail":
                raise Failed(label)
            case "publish":
                self.said[label] += 1
            case "late" | "misses":
                return LATE
            case "events":
                return node["found"]
            case "child":
                return self._run(node["body"])
            case "all":
                return self._all(node["branches"], booked)
            case "try":
                try:
                    return [self._perform(each, booked) for each in node["body"]]
                except Failed:
                    return CAUGHT
        return label

    def _all(self, branches: list[Plan], booked: list[int]) -> list[Any]:
        """Every branch goes as far as it can; then the first failure counts."""
        found: list[Any] = []
        failure: Failed | None = None
        for branch in branches:
            try:
                found.append([self._perform(each, booked) for each in branch])
            except Failed as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return found


# Plans.

LEAVES = ("act", "act", "book", "book", "flaky", "say", "publish", "sleep", "late", "mail", "event", "fail",
          "events", "misses")  # fmt: skip
FROM_OUTSIDE = ("event", "events", "misses")
TREES = ("child", "all", "all", "try", "try")


class Planner:
    """Makes plans up."""

    def __init__(self, chance: random.Random, labels: Iterator[int] | None = None) -> None:
        self._chance = chance
        self._labels = labels or count(1)
        self._streams = Streams(chance)
        self.events: dict[int, list[Any]] = {}  # what is sent to the run from outside, by label, each list in order

    def plan(self) -> Plan:
        """For a run; some continue in another generation, once or twice."""
        plan = self._nodes(self._chance.randint(3, 6), 2, alone=True)
        if self._chance.random() < 0.4:
            plan.append({"do": "recur", "label": 0, "body": self.plan()})
        return plan

    def _nodes(self, number: int, depth: int, *, alone: bool) -> Plan:
        return [self._node(depth, alone=alone) for _ in range(number)]

    def _node(self, depth: int, *, alone: bool) -> Node:
        """Events come from outside to the run itself, so no child waits for any."""
        trees = depth > 0 and self._chance.random() < 0.4
        kind = self._chance.choice(TREES if trees else LEAVES)
        if (kind == "fail" and self._chance.random() < 0.5) or (kind in FROM_OUTSIDE and not alone):
            kind = "act"
        node: Node = {"do": kind, "label": next(self._labels)}
        if kind == "flaky":
            node["fails"] = self._chance.randint(0, 2)
        elif kind in ("sleep", "late"):
            node["sec"] = self._seconds()
        elif kind == "event":
            self.events[node["label"]] = [node["label"]]
        elif kind == "events":
            wheres = [self._streams.where() for _ in range(self._chance.randint(1, 2))]
            node["wheres"] = list(map(self._streams.values, wheres))
            self.events[node["label"]], node["found"] = self._streams.fitting(wheres)
        elif kind == "misses":
            where = self._streams.where()
            node |= {"where": self._streams.values(where), "sec": self._seconds()}
            self.events[node["label"]] = self._streams.missing(where)
        elif kind == "all":
            lengths = [self._chance.randint(1, 3) for _ in range(self._chance.randint(2, 3))]
            node["branches"] = [self._nodes(length, depth - 1, alone=alone) for length in lengths]
        elif kind in ("child", "try"):
            node["body"] = self._nodes(self._chance.randint(1, 3), depth - 1, alone=alone and kind == "try")
        return node

    def _seconds(self) -> float:
        return self._chance.choice((0.0, 0.02, 0.1, 1.05)) + 0.01
