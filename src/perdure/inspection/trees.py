"""Trees of runs: a run with its steps, and the runs that it called as children."""

from dataclasses import dataclass, field

from perdure.engine.api.client import Client
from perdure.engine.api.run_info import RunInfo
from perdure.engine.api.step_info import StepInfo
from perdure.errors import RunNotFoundError

DEPTH = 10
RUNS_MAX = 200


@dataclass(frozen=True, slots=True)
class RunTree:
    """A run with its steps in the order of its history.

    - `steps`: each step with the tree of the child that it called, or None.
    - `is_cut`: whether children are left out, because the tree would be too deep or too large.
    """

    run: RunInfo
    steps: tuple[tuple[StepInfo, "RunTree | None"], ...] = ()
    is_cut: bool = False


@dataclass(slots=True)
class _Left:
    """How many more runs a tree may have."""

    runs: int = field(default=RUNS_MAX)


async def read_tree(client: Client, run_id: str, *, depth: int = DEPTH, runs_max: int = RUNS_MAX) -> RunTree:
    """Return the tree of a run. Raise `RunNotFoundError` if no run has this id.

    - `depth`: how many generations of children are read (default: 10).
    - `runs_max`: how many runs are read in total (default: 200).
    """
    return await _read(client, run_id, depth, _Left(runs_max - 1))


async def _read(client: Client, run_id: str, depth: int, left: _Left) -> RunTree:
    run, steps = await client.info(run_id), await client.steps(run_id)
    nodes: list[tuple[StepInfo, RunTree | None]] = []
    is_cut = False
    for step in steps:
        child = step.child
        if child is None:
            nodes.append((step, None))
        elif depth > 0 and left.runs > 0:
            left.runs -= 1
            nodes.append((step, await _child(client, child, depth - 1, left)))
        else:
            is_cut = True
            nodes.append((step, None))
    return RunTree(run, tuple(nodes), is_cut)


async def _child(client: Client, run_id: str, depth: int, left: _Left) -> RunTree | None:
    try:
        return await _read(client, run_id, depth, left)
    except RunNotFoundError:
        return None  # retention has removed it
