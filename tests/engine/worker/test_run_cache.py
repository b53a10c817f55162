"""The cache keeps waiting runs in memory, and evicts those that are of no use."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from perdure.engine.execution.run import Run
from perdure.engine.worker.run_cache import RunCache
from perdure.model.records import WorkflowInstance
from perdure.model.states import WorkflowStatus


@dataclass
class Waiting:
    id: str
    evicted: list[str] = field(default_factory=list)
    generation: str | None = None

    def park(self) -> "Waiting":
        return self

    def evict(self) -> None:
        self.evicted.append(self.id)


def run(id: str, evicted: list[str], generation: str | None = None) -> Run:
    return cast(Run, Waiting(id, evicted, generation))


def test_a_full_cache_evicts_the_run_that_has_waited_longest() -> None:
    cache, evicted = RunCache(2), list[str]()
    for id in "abc":
        cache.put(run(id, evicted))
    assert evicted == ["a"]
    assert list(cache.runs) == ["b", "c"]
    cache.clear()
    assert evicted == ["a", "b", "c"]
    assert not cache.runs


def test_a_cache_without_room_keeps_nothing() -> None:
    cache, evicted = RunCache(0), list[str]()
    cache.put(run("a", evicted))
    assert evicted == ["a"]
    assert cache.take(WorkflowInstance("a", "wf")) is None


def test_a_cached_run_is_taken_once() -> None:
    cache, evicted = RunCache(2), list[str]()
    cache.put(run("a", evicted))
    assert cache.take(WorkflowInstance("a", "wf")) is not None
    assert cache.take(WorkflowInstance("a", "wf")) is None
    assert not evicted


@pytest.mark.parametrize(
    "row",
    [
        WorkflowInstance("a", "wf", status=WorkflowStatus.COMPENSATING),
        WorkflowInstance("a", "wf", continued_from="a~1"),
    ],
)
def test_a_run_that_is_compensated_or_has_recurred_is_evicted(row: WorkflowInstance) -> None:
    cache, evicted = RunCache(2), list[str]()
    cache.put(run("a", evicted))
    assert cache.take(row) is None
    assert evicted == ["a"]
