"""The table of features: workflows, what happens to their runs from outside, and legitimate differences."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from perdure import Client
from tests.takeover.log import LOG

HOUR = 3600.0
RUN = "run"  # the id of the run


class Change(StrEnum):
    """How a run changes its worker."""

    DEATH = "death"  # the worker dies; its leases expire, and another takes over
    DRAIN = "drain"  # the App closes, then another opens
    LOST = "lost"  # the worker freezes until another has taken over, and continues alone, with outdated copies
    EVICTION = "eviction"  # the body is removed from memory at its next wait
    DEPLOY = "deploy"  # a worker with workflows defined anew opens, then the first one closes


class Aspect(StrEnum):
    """What is compared with the undisturbed run."""

    RUNS = "runs"  # the status, result or error of each run
    TIMES = "times"  # when rows were recorded, to a tenth of an hour
    HISTORY = "history"  # the rows, in order
    EXECUTIONS = "executions"  # the executions of each attempt of each activity
    STUCK = "stuck"  # the tries without progress that were counted
    OBSERVED = "observed"  # what a client saw meanwhile, and the rows of transactional activities
    LEFT = "left"  # leases, timers, waits, subscriptions and memberships after the end


Action = Callable[[Client, str], Awaitable[None]]  # the prefix of channels and event types


@dataclass(frozen=True, slots=True)
class Feature:
    """A workflow, how its run ends, what is done to it and when, and the differences that a change may make."""

    workflow: str
    ends: str  # how the undisturbed run ends: its status and result
    hours: float  # and after how many hours
    tries: int = 0  # without progress, that it counts
    run: str = RUN  # the name of that run
    serves: tuple[str, ...] = ()  # other workflows
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    script: tuple[tuple[float, Action], ...] = ()  # hours after the start
    max_cached_runs: int = 100
    until: float = 0.0  # for a schedule, which never ends: the hours to play
    legitimate: Mapping[tuple[Change, Aspect], str] = field(default_factory=dict)  # with the reason of each difference
    alone: str = ""  # the reason why it cannot be a branch beside another feature
    unordered: str = ""  # the reason why rows of different branches may be recorded in another order

    @property
    def name(self) -> str:
        """The name in reports and on the command line."""
        return self.workflow.removeprefix("takeover.")


def _send(type: str, data: object = None) -> Action:
    return lambda client, of: client.send_event(f"{of}{type}", data)


def _publish(channel: str, data: object) -> Action:
    return lambda client, of: client.publish(f"{of}{channel}", data)


def _send_to(channel: str, data: object) -> Action:
    return lambda client, of: client.send_to(RUN, f"{of}{channel}", data)


async def _cancel(client: Client, of: str) -> None:
    await client.cancel(RUN, "changed my mind")


async def _retry_from_the_second_step(client: Client, of: str) -> None:
    LOG.notes.append("repaired")
    await client.retry(RUN, from_step="3:takeover.work")


async def _read_state(client: Client, of: str) -> None:
    LOG.observed.append(json.dumps(await client.state(RUN)))


def _legitimate(changes: Sequence[Change], aspects: Sequence[Aspect], why: str) -> dict[tuple[Change, Aspect], str]:
    return {(change, aspect): why for change in changes for aspect in aspects}


DEATHS = Change.DEATH, Change.LOST
A_TRY = "a worker that dies or loses its lease during a try without progress counts as a try"
WHOLE = "it happens to the whole run"
NOT_IN_A_ROW = "a worker that closes does not die, so the deaths are no longer in a row"
BRANCHES = "two branches record their rows when their own activities end"

FEATURES = {
    feature.name: feature
    for feature in (
        Feature("takeover.deadline", "cancelled", 3, alone=WHOLE, options={"timeout": 3 * HOUR}),
        Feature("takeover.punctual", 'completed "second"', 1, options={"timeout": 3 * HOUR}),
        Feature("takeover.short_retries", 'completed [3,"second 3"]', 1),
        Feature("takeover.long_retries", 'completed [3,"second 3"]', 4),
        Feature("takeover.parallel_retries", "completed [3,2]", 2, unordered=BRANCHES),
        Feature("takeover.rollback", "failed", 1, alone=WHOLE),
        Feature("takeover.handled", "failed", 0, alone=WHOLE),
        Feature("takeover.cancelled", "cancelled", 1.5, alone=WHOLE, script=((1.5, _cancel),)),
        Feature(
            "takeover.cancelled_parent",
            "cancelled",
            1.5,
            alone=WHOLE,
            serves=("takeover.slow_child",),
            script=((1.5, _cancel),),
        ),
        Feature("takeover.failing", "failed", 1, alone=WHOLE, script=((1.5, _retry_from_the_second_step),)),
        Feature(
            "takeover.tries",
            'completed "after"',
            2,
            alone=WHOLE,
            tries=3,
            max_cached_runs=0,  # so that each try is a replay
            legitimate=_legitimate(DEATHS, (Aspect.STUCK, Aspect.OBSERVED), A_TRY),
        ),
        Feature(
            "takeover.tries_exhausted",
            "failed",
            1,
            tries=2,
            alone=WHOLE,
            max_cached_runs=0,
            legitimate=_legitimate(DEATHS, (Aspect.STUCK, Aspect.OBSERVED, Aspect.HISTORY), A_TRY),
        ),
        Feature(
            "takeover.deaths",
            'completed "after"',
            2,
            alone=WHOLE,
            legitimate=_legitimate(DEATHS, (Aspect.STUCK, Aspect.OBSERVED), A_TRY),
        ),
        Feature(
            "takeover.deaths_exhausted",
            "failed",
            1,
            alone=WHOLE,
            legitimate={
                **_legitimate(DEATHS, (Aspect.EXECUTIONS, Aspect.OBSERVED, Aspect.HISTORY), A_TRY),
                **_legitimate((Change.DRAIN, Change.DEPLOY), (Aspect.EXECUTIONS, Aspect.OBSERVED), NOT_IN_A_ROW),
            },
        ),
        Feature("takeover.recurring", 'completed "last"', 3, alone=WHOLE),
        Feature("takeover.ticking", 'completed "of 3"', 3, alone=WHOLE),
        Feature(
            "takeover.parent",
            'completed ["first child ends","second child ends","third child ends","after"]',
            2,
            serves=("takeover.child",),
            unordered=BRANCHES,
        ),
        Feature("takeover.regretting_parent", "failed", 1, alone=WHOLE, serves=("takeover.child",)),
        Feature(
            "takeover.bereaved_parent", 'completed "WorkflowFailedError after"', 1, serves=("takeover.failing_child",)
        ),
        Feature("takeover.impatient_parent", 'completed "after"', 2, serves=("takeover.slow_child",)),
        Feature("takeover.starter", 'completed "started"', 0.5, serves=("takeover.child",)),
        Feature(
            "takeover.waits",
            'completed ["timed out",{"n":2},"now","after"]',
            4,
            script=(
                (1, _send("go", {"n": 1})),
                (3, _send("go", {"n": 2})),
                (4, _send("stop", "now")),
            ),
        ),
        Feature(
            "takeover.several_waits",
            'completed ["one","two","slept","no three","no stop"]',
            4,
            script=((1, _send("go", {"n": 1})), (2, _send("go", {"n": 2})), (5, _send("stop"))),
        ),
        Feature("takeover.first_of_two", 'completed "1 came"', 2, script=((1, _send("stop")),)),
        Feature("takeover.sleeps", 'completed "woke"', 2),
        Feature("takeover.timeouts", 'completed ["in time","too late"]', 2),
        Feature(
            "takeover.channels",
            'completed ["own","late",1,"no more",2]',
            3,
            script=((1, _publish("news", "late")), (2, _publish("jobs", 1)), (2.5, _publish("jobs", 2))),
        ),
        Feature(
            "takeover.two_receivers", "completed [1,2]", 2, script=((1, _publish("news", 1)), (2, _publish("news", 2)))
        ),
        Feature("takeover.groups", 'completed [1,0,"own","direct"]', 1, script=((1, _send_to("orders", "direct")),)),
        Feature("takeover.listener", 'completed [{"n":2},"by talker","talked"]', 3, serves=("takeover.talker",)),
        Feature("takeover.transactions", "completed [1,2,1]", 1),
        Feature("takeover.scheduled", 'completed "tock"', 2.1, alone=WHOLE, until=2.5, run="takeover.scheduled@2"),
        Feature(
            "takeover.states",
            'completed "second"',
            4,
            alone=WHOLE,
            script=((1, _read_state), (3, _read_state), (5, _read_state)),
        ),
        Feature("takeover.patches", 'completed "new newer newest"', 2),
        Feature("takeover.values", "completed [true,true,true,true,true,true]", 2),
        Feature("takeover.later", 'completed "ended"', 2, options={"after": HOUR}),
    )
}
