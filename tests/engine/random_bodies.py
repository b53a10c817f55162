"""Random workflow bodies, and an executor without a database that completes their steps in any order.

A plan is JSON: the input of one workflow, which does what the plan says with asyncio's own tools. Its result is the
whole story of the run in the order in which it happened, so two runs that differ anywhere have different results.
"""

import asyncio
import json
import random as chance
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from perdure import (
    Workflow,
    activity,
    now,
    patched,
    publish,
    random,
    receive,
    set_state,
    sleep,
    subscribe,
    uuid4,
    wait_event,
    workflow,
)
from perdure.engine.history.codec import encode
from perdure.engine.history.failures import encode_failure
from perdure.engine.history.ids import OWN, attempt_of
from perdure.engine.history.records import ATTEMPT_FAILED, Taken, record_of, row_of
from perdure.engine.replay.commands import Command, Take
from perdure.engine.replay.open_steps import OpenSteps
from perdure.engine.replay.replayer import Replayer
from perdure.engine.replay.steps import ActivityStep, EffectStep, TimerStep, WaitStep
from perdure.model.records import HistoryEvent, HistoryEventType

Plan = list[Any]
INSTANCE = "run-1"
STORED = HistoryEventType.ACTIVITY_COMPLETED


class StepError(Exception):
    """An activity of a random body fails with it."""


@activity(name="work")
async def work(label: str) -> int:
    raise AssertionError("bodies are fed by hand: no activity runs")


# The workflow that does what its plan says.


class Story:
    """Records what happened, and executes the nodes of a plan."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, line: str) -> None:
        self.lines.append(line)

    async def do(self, plan: Plan) -> str:
        kind, *rest = plan
        try:
            found = await getattr(self, f"_{kind}")(*rest)
        except asyncio.CancelledError:
            self.tell(f"{kind} cancelled")
            raise
        self.tell(f"{kind} {found}")
        return f"{kind}={found}"

    async def _act(self, label: str) -> str:
        try:
            return str(await work(label))
        except StepError as error:
            return f"failed {error}"

    async def _risky(self, label: str) -> str:
        return str(await work(label))

    async def _sleep(self, seconds: float) -> str:
        await sleep(seconds)
        return "slept"

    async def _pause(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "paused"

    async def _event(self, wanted: int | None, seconds: float | None) -> str:
        where = None if wanted is None else {"number": wanted}
        try:
            return str((await wait_event("news", where=where, timeout=seconds)).data)
        except TimeoutError:
            return "timed out"

    async def _receive(self, seconds: float | None) -> str:
        await subscribe("mail")
        try:
            return str((await receive("mail", timeout=seconds)).data)
        except TimeoutError:
            return "timed out"

    async def _publish(self, channel: str) -> None:
        await publish(channel, 1)

    async def _value(self, kind: str) -> str:
        return str({"now": now, "random": lambda: random().random(), "uuid": uuid4}[kind]())

    async def _state(self, value: int) -> None:
        set_state({"value": value})

    async def _patched(self, name: str, inner: Plan) -> str:
        return await self.do(inner) if patched(name) else "old"

    async def _either(self, left: Plan, right: Plan) -> str:
        return await self.do(left if random().random() < 0.5 else right)

    async def _sequence(self, parts: list[Plan]) -> list[str]:
        return [await self.do(part) for part in parts]

    async def _gather(self, parts: list[Plan]) -> list[str]:
        return await asyncio.gather(*map(self.do, parts))

    async def _settled(self, parts: list[Plan]) -> list[str]:
        return list(map(repr, await asyncio.gather(*map(self.do, parts), return_exceptions=True)))

    async def _group(self, parts: list[Plan]) -> list[str]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.do(part)) for part in parts]
        except ExceptionGroup as errors:
            return [repr(error) for error in errors.exceptions]
        return [task.result() for task in tasks]

    async def _wait(self, how: str, parts: list[Plan]) -> list[str]:
        tasks = [asyncio.create_task(self.do(part)) for part in parts]
        done, rest = await asyncio.wait(tasks, return_when=how)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        return [repr(task.exception() or task.result()) for task in done]

    async def _completed(self, parts: list[Plan]) -> list[str]:
        found = []
        for each in asyncio.as_completed([self.do(part) for part in parts]):
            try:
                found.append(await each)
            except StepError as error:
                found.append(str(error))
        return found

    async def _timeout(self, seconds: float, inner: Plan) -> str:
        try:
            async with asyncio.timeout(seconds):
                return await self.do(inner)
        except TimeoutError:
            return "timed out"

    async def _wait_for(self, seconds: float, inner: Plan) -> str:
        try:
            return await asyncio.wait_for(self.do(inner), seconds)
        except TimeoutError:
            return "timed out"

    async def _cancel(self, victim: Plan, inner: Plan) -> str:
        task = asyncio.create_task(self.do(victim))
        await self.do(inner)
        task.cancel()
        with suppress(asyncio.CancelledError):
            return await task
        return "cancelled"

    async def _shield(self, inner: Plan) -> str:
        return await asyncio.shield(self.do(inner))

    async def _finally(self, inner: Plan, last: Plan) -> str:
        try:
            return await self.do(inner)
        finally:
            await self.do(last)

    async def _queue(self, parts: list[Plan], consumers: int) -> list[str]:
        queue: asyncio.Queue[str | None] = asyncio.Queue(1)
        found: list[str] = []

        async def produce(part: Plan) -> None:
            await queue.put(await self.do(part))

        async def consume() -> None:
            while (item := await queue.get()) is not None:
                found.append(f"{item} then {await self._act('consume')}")

        eaters = [asyncio.create_task(consume()) for _ in range(consumers)]
        await asyncio.gather(*map(produce, parts), return_exceptions=True)
        for _ in eaters:
            await queue.put(None)
        await asyncio.gather(*eaters)
        return found

    async def _lock(self, parts: list[Plan]) -> list[str]:
        lock = asyncio.Lock()

        async def alone(part: Plan) -> str:
            async with lock:
                return await self.do(part)

        return list(map(repr, await asyncio.gather(*map(alone, parts), return_exceptions=True)))


@workflow(name="bodies.planned")
async def planned(plan: list[Any]) -> list[str]:
    story = Story()
    try:
        await story.do(plan)
    except StepError as error:
        story.tell(f"ended with {error}")
    return story.lines


# Random plans.


def random_plan(rng: chance.Random, depth: int = 3) -> Plan:
    """A plan: mostly things side by side on top, single steps at the bottom."""
    if depth == 0 or rng.random() < 0.15:
        return _leaf(rng)
    return _node(rng, lambda: random_plan(rng, depth - 1))


def _leaf(rng: chance.Random) -> Plan:
    leaves: list[Plan] = [
        ["act", f"a{rng.randrange(9)}"],
        ["act", f"b{rng.randrange(9)}"],
        ["risky", "r"],
        ["sleep", rng.choice([0.5, 3, 60])],
        ["pause", rng.choice([0, 0.1, 5])],
        ["event", rng.choice([None, 1]), rng.choice([None, 10])],
        ["receive", rng.choice([None, 10])],
        ["publish", "out"],
        ["value", rng.choice(["now", "random", "uuid"])],
        ["state", rng.randrange(9)],
    ]
    return rng.choice(leaves)


def _node(rng: chance.Random, make: Callable[[], Plan]) -> Plan:
    parts = [make() for _ in range(rng.randint(2, 3))]
    firsts = ["FIRST_COMPLETED", "ALL_COMPLETED", "FIRST_EXCEPTION"]
    nodes: list[Plan] = [
        ["sequence", parts],
        ["sequence", parts],
        ["gather", parts],
        ["settled", parts],
        ["group", parts],
        ["wait", rng.choice(firsts), parts],
        ["completed", parts],
        ["timeout", 7, parts[0]],
        ["wait_for", 7, parts[0]],
        ["cancel", parts[0], parts[1]],
        ["shield", parts[0]],
        ["finally", parts[0], parts[1]],
        ["queue", parts, 2],
        ["lock", parts],
        ["patched", f"p{rng.randrange(3)}", parts[0]],
        ["either", parts[0], parts[1]],
    ]
    return rng.choice(nodes)


# Live, and again from rows.


def asked(steps: OpenSteps) -> list[str]:
    """Everything that a body waits for, down to arguments, attempts and times."""
    found = [f"{step.id} {step.attempt} {step.pause_sec} {step.payload!r}" for step in steps.of(ActivityStep)]
    found += [step.id for step in steps.of(EffectStep)]
    found += [f"{step.id} {step.delay_sec}" for step in steps.of(TimerStep)]
    for wait in steps.of(WaitStep):
        found += [f"{each.activity_id} {each.channel} {wait.delay_sec}" for each in wait.waits(None)]
    return sorted(found)


@dataclass
class Live:
    """A body with the rows that were recorded for it, as a run does."""

    workflow: Workflow[..., Any]
    input_data: bytes
    rows: list[HistoryEvent] = field(default_factory=list)
    snapshots: list[list[str]] = field(default_factory=list)  # what was asked for when so many rows were stored

    def __post_init__(self) -> None:
        self.body = Replayer(self.workflow, INSTANCE, self.input_data)
        self._snap()

    @property
    def steps(self) -> OpenSteps:
        """The steps that the body waits for."""
        return self.body.steps

    @property
    def story(self) -> Any:
        """What came of it; None while it is not done."""
        return repr(self.body.outcome()) if self.body.done else None

    def begin(self) -> "Live":
        """Replay what is recorded, then continue from it."""
        assert not self.body.feed_all(map(record_of, self.rows)), "a replay returns no commands"
        self._obey(self.body.catch_up())
        self._snap()
        return self

    def catch_up(self, rows: Sequence[HistoryEvent]) -> None:
        """Feed what others recorded, as to a copy that was kept in memory."""
        for row in rows:
            self.body.feed(record_of(row))
        self.body.catch_up()

    def tell(self, id: str, kind: str, data: bytes) -> None:
        """Record a row and feed it; what the body takes because of it comes right behind."""
        self._record(id, kind, data)
        self._obey(self.body.feed(record_of(self.rows[-1])))
        self._obey(self.body.catch_up())
        self._snap()

    def _record(self, id: str, kind: str, data: bytes) -> None:
        assert all(row.activity_id != id for row in self.rows), f"{id} is recorded twice"
        self.rows.append(HistoryEvent(INSTANCE, id, kind, data))

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Take):
                row = row_of(INSTANCE, command.record)
                assert row.activity_id.startswith(OWN)
                self._record(row.activity_id, row.event_type, row.event_data or b"")

    def _snap(self) -> None:
        self.snapshots += [[]] * (len(self.rows) + 1 - len(self.snapshots))
        self.snapshots[len(self.rows)] = asked(self.steps)

    def run(self, rng: chance.Random, most: int = 1000) -> "Live":
        """Complete what is pending, in any order, until the body is done or waits for nothing."""
        while not self.body.done and most:
            choices = self.choices(rng)
            if not choices:
                break
            self.tell(*rng.choice(choices))
            most -= 1
        return self

    def choices(self, rng: chance.Random) -> list[tuple[str, str, bytes]]:
        """A row for each thing that could happen next."""
        found: list[tuple[str, str, bytes]] = []
        expired = b'{"result": null}'
        for step in self.steps.of(ActivityStep):
            if step.pause_sec:
                found.append((step.pause_id, HistoryEventType.TIMER_EXPIRED, expired))
            else:
                found.append(_attempted(step.id, attempt_of(step.id, step.attempt), step.attempt, rng))
        for effect in self.steps.of(EffectStep):
            found.append((effect.id, STORED, b'"mail"'))
        for timer in self.steps.of(TimerStep):
            found.append((timer.id, HistoryEventType.TIMER_EXPIRED, expired))
        for wait in self.steps.of(WaitStep):
            id, channel = rng.choice(list(zip(wait.row_ids(), wait.channels, strict=True)))
            found.append((id, HistoryEventType.CHANNEL_MESSAGE_RECEIVED, _message(channel, rng)))
            if wait.after is not None:
                found.append((wait.row_ids()[0], HistoryEventType.MESSAGE_TIMEOUT, b'{"error_type": "TimeoutError"}'))
        return found


def _attempted(id: str, attempt_id: str, attempt: int, rng: chance.Random) -> tuple[str, str, bytes]:
    lot = rng.random()
    if lot < 0.7:
        return id, STORED, encode(rng.randrange(1000))
    failure = encode_failure(StepError(f"{attempt}"))
    if lot < 0.8 or attempt > 3:
        return id, HistoryEventType.ACTIVITY_FAILED, encode(failure)
    return attempt_id, ATTEMPT_FAILED, encode({**failure, "attempt": attempt, "pause_sec": rng.choice([0.0, 5.0])})


def _message(channel: str, rng: chance.Random) -> bytes:
    data = {"number": rng.randrange(3)}
    return json.dumps({"id": rng.randrange(1, 99), "channel": channel, "data": data, "metadata": {}}).encode()


def taken(body: Replayer) -> list[Taken]:
    """What a body took that is to be recorded."""
    return [command.record for command in body.catch_up() if isinstance(command, Take)]


def replayed(workflow: Workflow[..., Any], input_data: bytes, rows: Sequence[HistoryEvent]) -> Live:
    """A new body that was fed these rows."""
    return Live(workflow, input_data, list(rows)).begin()


def live(workflow: Workflow[..., Any], *args: object) -> Live:
    """A new body without a history."""
    return Live(workflow, workflow.signature.bind(args, {})).begin()
