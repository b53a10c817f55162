"""The path of a run through the blocks of its source: which recorded step belongs to which call.

A step id says where in the task tree a call was made, and its name, but not the line. In the order of their ids, steps
come as the calls are written: those of concurrent tasks one task after the other. So the source is an automaton that
reads the names of the steps, and the path is the cheapest way through it. A step that no call explains costs most, and
a call that was left out costs less, so the path also survives changes of the source. Where two ways are equally good,
the calls in question are marked as uncertain.

All that the search knows after a step is a layer: the nodes where it may be, with their costs. Layers repeat in loops,
and what follows a layer is remembered, so that a run with 10,000 steps takes little longer than one with a hundred.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from perdure.engine.api.step_info import StepInfo, StepKind, StepStatus
from perdure.engine.history import ids
from perdure.model.states import WorkflowStatus
from perdure.views.source_blocks import Block, BlockKind
from perdure.views.source_ways import BEAM, DYNAMIC, OTHER_TASK, STRAY, UNUSUAL, Automaton, Entered, Way

WAYS_MAX = 24  # that are followed at the same time


class Mark(StrEnum):
    """What a run did with a block."""

    TAKEN = "taken"
    FAILED = "failed"
    NOW = "now"  # the run waits here, or executes this
    NEXT = "next"  # one of the calls that may be executed now: none of them is recorded yet
    NOT_TAKEN = "not_taken"


@dataclass(slots=True)
class Passed:
    """What a run did with a block: how often it was passed, with which steps, and how sure that is.

    `parts` has how often each part was entered, `last` the last step, `names` the names of all steps.
    """

    count: int = 0
    failed: int = 0
    waiting: int = 0
    compensated: int = 0
    is_next: bool = False
    is_uncertain: bool = False
    last: StepInfo | None = None
    names: Counter[str] = field(default_factory=Counter)
    parts: Counter[int] = field(default_factory=Counter)

    @property
    def mark(self) -> Mark:
        """Return the state of the block, the most urgent one first."""
        if self.waiting:
            return Mark.NOW
        if self.failed:
            return Mark.FAILED
        if self.is_next:
            return Mark.NEXT
        return Mark.TAKEN if self.count else Mark.NOT_TAKEN


@dataclass(frozen=True, slots=True)
class Path:
    """The path of a run: what it did with each block, by its id, and the steps that belong to no call."""

    blocks: dict[int, Passed] = field(default_factory=dict)
    strays: Sequence[StepInfo] = ()

    def of(self, block: Block) -> Passed:
        """Return what was done with a block."""
        return self.blocks.get(block.id) or Passed()


def path_of(
    blocks: Sequence[Block],
    steps: Sequence[StepInfo],
    status: WorkflowStatus | None,
    *,
    is_executed: bool = False,
    compensated: frozenset[str] = frozenset(),
    topics: Mapping[str, str] | None = None,
) -> Path:
    """Return the path of a run.

    - `status`: where the path ends; None if these are not all steps.
    - `is_executed`: a worker executes the run now.
    - `compensated`: the ids of steps whose compensation was executed.
    - `topics`: event types and channels of steps that waited, by their ids, as far as they are known.
    """
    called = sorted((each for each in steps if _is_call(each)), key=lambda each: _place(each.id))
    path = _Search(Automaton(blocks), called, topics or {}).path(status, is_executed, compensated)
    _doubt(blocks, path)
    return path


def _doubt(blocks: Sequence[Block], path: Path) -> None:
    """Mark as uncertain what may be executed without a step: dynamic blocks, and rounds that have nothing else."""
    for block in blocks:
        passed = path.of(block)
        if block.kind is BlockKind.LOOP and passed.count:
            passed.is_uncertain = _is_silent(block.parts[block.body].blocks)
        for number, part in enumerate(block.parts):
            if passed.parts[number]:
                _doubt(part.blocks, path)
            elif passed.count and _is_silent(part.blocks):
                for each in part.blocks:
                    path.blocks.setdefault(each.id, Passed()).is_uncertain = True


def _is_silent(blocks: Sequence[Block]) -> bool:
    """Return whether code may be executed to its end without a step."""
    return all(each.kind is BlockKind.DYNAMIC for each in blocks)


def _is_call(step: StepInfo) -> bool:
    others = (StepKind.VALUE, StepKind.COMPENSATION, StepKind.FAILURE_HANDLER)
    return step.kind not in others and not step.id.startswith(ids.OWN)


def _place(id: str) -> tuple[int, ...]:
    parts = ids.path_of(id).split(".")
    return tuple(map(int, parts)) if all(each.isdecimal() for each in parts) else (1 << 30,)


class _Symbol(NamedTuple):
    """What distinguishes a step from others for the automaton."""

    name: str
    kind: StepKind
    topic: str | None
    is_in_task: bool
    is_failed: bool

    def cost(self, block: Block, is_concurrent: bool) -> int | None:
        """Return what it costs to read such a step at a block; None if it cannot be this call."""
        if block.kind is BlockKind.DYNAMIC:
            return DYNAMIC + (UNUSUAL if self.is_in_task is not is_concurrent else 0)
        if (self.kind is StepKind.CHILD) != (block.what == "child"):
            return None
        if self.name != block.step and not (block.what == "child" and self.name == ids.CHILD):
            return None
        if block.topic and self.topic not in (None, block.topic):
            return None
        return OTHER_TASK if block.what == "activity" and self.is_in_task else 0


@dataclass(slots=True)
class _Layer:
    """The nodes where the search may be after a step, and where it came from: a node, and whether it read the step."""

    costs: tuple[tuple[int, int], ...]  # nodes and costs, the cheapest first and with the cost 0
    is_failed: bool = False
    before: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    following: dict[_Symbol, "_Layer"] = field(default_factory=dict)


class _Search:
    """Finds the cheapest way that reads all steps."""

    def __init__(self, automaton: Automaton, steps: Sequence[StepInfo], topics: Mapping[str, str]) -> None:
        self._automaton, self._steps = automaton, steps
        self._known: dict[object, _Layer] = {}
        self._layers = [_Layer(((automaton.start, 0),))]
        for step in steps:
            in_task, failed = "." in ids.path_of(step.id), step.status is StepStatus.FAILED
            symbol = _Symbol(step.name, step.kind, topics.get(step.id), in_task, failed)
            layer = self._layers[-1]
            if symbol not in layer.following:
                layer.following[symbol] = self._read(layer, symbol)
            self._layers.append(layer.following[symbol])

    def _read(self, layer: _Layer, symbol: _Symbol) -> _Layer:
        costs: dict[int, int] = {}
        before: dict[int, list[tuple[int, bool]]] = {}

        def offer(node: int, cost: int, origin: int, is_read: bool) -> None:
            if cost < costs.get(node, cost + 1):
                costs[node], before[node] = cost, [(origin, is_read)]
            elif cost == costs[node]:
                before[node].append((origin, is_read))

        for node, cost in layer.costs:
            for target, way in self._automaton.ways(node, layer.is_failed).items():
                place = self._automaton.nodes[target]
                if place.reads is not None and (more := symbol.cost(place.reads, place.is_concurrent)) is not None:
                    offer(target, cost + way.cost + more, node, True)
            offer(node, cost + (UNUSUAL if symbol.kind is StepKind.TIMER else STRAY), node, False)
        cheapest = sorted(costs.items(), key=lambda each: (each[1], each[0]))[:WAYS_MAX]
        best = cheapest[0][1]
        kept = tuple((node, cost - best) for node, cost in cheapest if cost <= best + BEAM)
        # Two layers are the same if the same follows from them and they came from the same nodes.
        key = (kept, symbol.is_failed, tuple((node, tuple(before[node])) for node, _ in kept))
        return self._known.setdefault(key, _Layer(kept, symbol.is_failed, before))

    def path(self, status: WorkflowStatus | None, is_executed: bool, compensated: frozenset[str]) -> Path:
        """Return the path that ends where the run is."""
        blocks = defaultdict[int, Passed](Passed)
        strays: list[StepInfo] = []
        end, possible = self._end(status, blocks)
        chosen = end
        for number in range(len(self._steps), 0, -1):
            step, layer, earlier = self._steps[number - 1], self._layers[number], self._layers[number - 1]
            origin, is_read = layer.before[chosen][0]
            if is_read:
                self._enter(blocks, self._automaton.ways(origin, earlier.is_failed)[chosen].entered)
                for node in possible:
                    block = self._automaton.nodes[node].reads
                    if block is not None:
                        passed = blocks[block.id]
                        passed.is_uncertain |= len(possible) > 1
                        if node == chosen:
                            passed.count += block.kind is BlockKind.STEP
                            _count(passed, step, step.id in compensated)
            elif step.kind is not StepKind.TIMER:
                strays.append(step)
            possible = {node for each in possible for node, _ in layer.before[each]}
            chosen = origin
        if is_executed and status is WorkflowStatus.RUNNING:
            self._mark_next(blocks, end)
        return Path(blocks, strays[::-1])

    def _end(self, status: WorkflowStatus | None, blocks: dict[int, Passed]) -> tuple[int, set[int]]:
        """Return the node of the last step and all equally good ones, and enter what follows up to the end."""
        automaton, last = self._automaton, self._layers[-1]
        ends = {
            WorkflowStatus.COMPLETED: automaton.completed,
            WorkflowStatus.RECURRED: automaton.completed,
            WorkflowStatus.FAILED: automaton.failed,
        }
        target = -1 if status is None else ends.get(status, -1)
        ways = {node: automaton.ways(node, last.is_failed).get(target, Way(BEAM, ())) for node, _ in last.costs}
        totals = {node: cost + ways[node].cost for node, cost in last.costs}
        best = min(totals, key=totals.__getitem__)
        self._enter(blocks, ways[best].entered)
        return best, {node for node, total in totals.items() if total == totals[best]}

    @staticmethod
    def _enter(blocks: dict[int, Passed], entered: Sequence[Entered]) -> None:
        for id, part in entered:
            passed = blocks[id]
            if part < 0:
                passed.count += 1
            else:
                passed.parts[part] += 1

    def _mark_next(self, blocks: dict[int, Passed], end: int) -> None:
        """Mark the calls that a worker may execute now, unless a recorded step says which."""
        if any(each.waiting for each in blocks.values()):
            return
        certain: set[Entered] | None = None  # what all ways to these calls enter
        for node, way in self._automaton.ways(end, self._layers[-1].is_failed).items():
            block = self._automaton.nodes[node].reads
            if block is not None and way.cost == 0:
                blocks[block.id].is_next = True
                certain = set(way.entered) if certain is None else certain.intersection(way.entered)
        self._enter(blocks, [each for each in certain or () if each[0] not in blocks])


def _count(passed: Passed, step: StepInfo, is_compensated: bool) -> None:
    passed.failed += step.status is StepStatus.FAILED
    passed.waiting += step.status in (StepStatus.RUNNING, StepStatus.RETRYING, StepStatus.WAITING)
    passed.compensated += is_compensated
    passed.last = passed.last or step  # the steps come from the last to the first
    passed.names[step.name] += 1
