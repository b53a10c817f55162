"""The ways through the blocks of a source, as an automaton that reads the steps of a run."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from perdure.views.source_blocks import Block, BlockKind

# What a way costs.
STRAY = 10  # a step that no call explains
SKIPPED = 6  # a call without its step
OTHER_TASK = 4  # an activity in a task that this source does not create: rather a step of a function that it calls
DYNAMIC = 3  # a step of a dynamic block
HIDDEN = 3  # an error that no step shows, or a failed step after which the code continues
UNUSUAL = 1  # a dynamic block without steps; a timer of a timeout; a concurrent step not recorded yet; and the like
BEAM = 2 * STRAY  # ways that cost so much more than the best one are given up

Entered = tuple[int, int]  # a block, and the number of its part; -1 for the block itself


@dataclass(slots=True)
class Node:
    """A place in the source. A step is read at a node with `reads`; the others are passed without one.

    `is_concurrent` says whether other code may run at the same time, so that the step belongs to another task.
    """

    reads: Block | None = None
    enters: Entered | None = None
    is_concurrent: bool = False
    edges: list[tuple[int, int, int]] = field(default_factory=list)  # target, cost, cost after a failed step


class _Exits(NamedTuple):
    """Where code that leaves its block continues; -1 where that is impossible."""

    error: int
    returned: int
    broken: int = -1
    continued: int = -1


class Way(NamedTuple):
    """The cheapest way from a node to another one, and what is entered on it."""

    cost: int
    entered: tuple[Entered, ...]


class Automaton:
    """The ways through the blocks."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.nodes: list[Node] = []
        self._ways: dict[tuple[int, bool], Mapping[int, Way]] = {}
        self._is_concurrent = False  # whether nodes are added that are
        self.start, self.completed, self.failed = self._node(), self._node(), self._node()
        self._edge(self._sequence(blocks, self.start, _Exits(self.failed, self.completed)), self.completed)

    def _node(self, enters: Entered | None = None, reads: Block | None = None) -> int:
        self.nodes.append(Node(reads, enters, self._is_concurrent))
        return len(self.nodes) - 1

    def _edge(self, source: int, target: int, cost: int = 0, after_error: int | None = None) -> None:
        if source >= 0 and target >= 0:
            self.nodes[source].edges.append((target, cost, cost if after_error is None else after_error))

    def _sequence(self, blocks: Sequence[Block], at: int, exits: _Exits) -> int:
        """Add blocks behind a node, and return the node behind them; -1 if none is reached."""
        for block in blocks:
            at = self._block(block, at, exits)
        return at

    def _part(self, block: Block, number: int, at: int, exits: _Exits) -> int:
        entry = self._node((block.id, number))
        self._edge(at, entry)
        return self._sequence(block.parts[number].blocks, entry, exits)

    def _block(self, block: Block, at: int, exits: _Exits) -> int:
        match block.kind:
            case BlockKind.STEP | BlockKind.DYNAMIC:
                return self._step(block, at, exits)
            case BlockKind.CHOICE:
                fork, join = self._node((block.id, -1)), self._node()
                self._edge(at, fork)
                for number in range(len(block.parts)):
                    self._edge(self._part(block, number, fork, exits), join)
                return join
            case BlockKind.LOOP:
                return self._loop(block, at, exits)
            case BlockKind.TRY:
                return self._try(block, at, exits)
            case BlockKind.PARALLEL:
                return self._parallel(block, at, exits)
        node = self._node((block.id, -1))
        self._edge(at, node)
        targets = {BlockKind.RAISE: exits.error, BlockKind.BREAK: exits.broken, BlockKind.CONTINUE: exits.continued}
        self._edge(node, targets.get(block.kind, exits.returned))
        return -1

    def _step(self, block: Block, at: int, exits: _Exits) -> int:
        read, after = self._node(reads=block), self._node()
        self._edge(read, after, 0, HIDDEN)
        self._edge(read, exits.error, HIDDEN, 0)
        if block.kind is BlockKind.DYNAMIC:  # any number of steps, also none
            fork = self._node((block.id, -1))
            self._edge(at, fork)
            self._edge(fork, read)
            self._edge(read, read)
            self._edge(fork, after, UNUSUAL)
        else:
            self._edge(at, read)
            self._edge(at, after, UNUSUAL if self._is_concurrent else SKIPPED)
        return after

    def _loop(self, block: Block, at: int, exits: _Exits) -> int:
        fork, head, after = self._node((block.id, -1)), self._node(), self._node()
        self._edge(at, fork)
        self._edge(fork, head)
        inside = exits._replace(broken=after, continued=head)
        tested = self._part(block, 0, head, inside) if block.body else head
        self._edge(self._part(block, block.body, tested, inside), head)
        can_end = len(block.parts) > block.body + 1  # `while True` cannot: such a step is a stray
        self._edge(tested, after, 0 if can_end else STRAY)
        return after

    def _try(self, block: Block, at: int, exits: _Exits) -> int:
        labels = [part.label for part in block.parts]
        fork, caught, after = self._node((block.id, -1)), self._node(), self._node()
        self._edge(at, fork)
        end = after
        if labels[-1] == "finally":  # one for all ways out of the block: the steps tell which it was
            end = self._node()
            done = self._part(block, len(labels) - 1, end, exits)
            self._edge(done, after)
            for target in set(exits):
                self._edge(done, target, UNUSUAL)
            exits = _Exits(*(end if target >= 0 else -1 for target in exits))
        self._edge(fork, caught, HIDDEN)
        last = self._part(block, 0, fork, exits._replace(error=caught))
        for number, label in enumerate(labels):
            if label.startswith("except"):
                self._edge(self._part(block, number, caught, exits), end)
            elif label == "else":
                last = self._part(block, number, last, exits)
        self._edge(last, end)
        self._edge(caught, exits.error, UNUSUAL)
        return after

    def _parallel(self, block: Block, at: int, exits: _Exits) -> int:
        fork = self._node((block.id, -1))
        self._edge(at, fork)
        outside, self._is_concurrent = self._is_concurrent, True
        at = fork
        for number in range(len(block.parts)):
            done = self._node()
            self._edge(self._part(block, number, at, exits._replace(error=done)), done)
            at = done
        self._is_concurrent = outside
        self._edge(at, exits.error, UNUSUAL)
        return at

    def ways(self, node: int, is_failed: bool) -> Mapping[int, Way]:
        """Return the cheapest ways to the nodes where the next step may be read, and to the ends."""
        if (known := self._ways.get((node, is_failed))) is not None:
            return known
        found: dict[int, Way] = {}
        queue: list[tuple[int, int, int, tuple[Entered, ...]]] = [(0, 0, node, ())]
        seen: set[int] = set()
        order = 0  # of two equally good ways, the one that was found first
        while queue:
            cost, _, at, entered = heapq.heappop(queue)
            place = self.nodes[at]
            if order:  # not the node itself
                if at in seen:
                    continue
                seen.add(at)
                if place.reads is not None or at in (self.completed, self.failed):
                    found[at] = Way(cost, entered)
                    continue
            more = entered if place.enters is None else (*entered, place.enters)
            for target, usual, after_error in place.edges:
                order += 1
                total = cost + (after_error if is_failed and at == node else usual)
                if total <= BEAM:
                    heapq.heappush(queue, (total, order, target, more))
            order += 1
        self._ways[(node, is_failed)] = found
        return found
