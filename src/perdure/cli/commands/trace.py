"""`perdure trace`."""

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.apps import import_workflows
from perdure.cli.commands.runs import doing_text, status_text
from perdure.cli.exits import UsageError
from perdure.cli.opening import reading
from perdure.cli.options import COMMON, WATCHING, Common, Watching
from perdure.cli.output import Output, cut, width_of
from perdure.cli.watching import repeat
from perdure.engine.api.step_info import StepInfo, StepStatus
from perdure.inspection import RunTree, read_tree, run_document, tree_document
from perdure.inspection.documents import plain, stamp
from perdure.model.states import TERMINAL

MARKS = {
    StepStatus.COMPLETED: "✓",
    StepStatus.FAILED: "✗",
    StepStatus.RETRYING: "↻",
    StepStatus.RUNNING: "▶",
    StepStatus.WAITING: "…",
    StepStatus.CANCELLED: "⊘",
}
FOLD = 20  # more equal steps in a row than this are folded
RESULT_MAX = 60


async def trace(
    id: Annotated[str, Parameter(help="Id of the run.")],
    /,
    *,
    depth: Annotated[int, Parameter(help="Generations of children.")] = 10,
    watching: Watching = WATCHING,
    common: Common = COMMON,
) -> None:
    """Show a run as a tree of its steps and children; with --watch until it has ended."""
    if depth < 0:
        raise UsageError(f"--depth must be at least 0, not {depth}")
    import_workflows(common)
    async with reading(common) as client:

        async def show(output: Output) -> bool:
            tree = await read_tree(client, id, depth=depth)
            output.single(tree_document(tree), lambda: "\n".join(_lines(output, tree, "", "")))
            return tree.run.status not in TERMINAL

        await repeat(watching, common, show, keep_end=True)


def _lines(output: Output, tree: RunTree, first: str, rest: str) -> Iterator[str]:
    """Yield the lines of a tree: `first` stands before the run, `rest` before what is below it."""
    run = run_document(tree.run)
    about = doing_text(output, run)
    shown = f"{output.cell(run['workflow'])} {output.paint(output.cell(run['id']), 'bold')} "
    yield _fit(
        output, f"{first}{shown}{output.paint(status_text(output, run))}", f" {output.cell(about)}" if about else ""
    )
    nodes = _folded(tree)
    for place, (step, child, more) in enumerate(nodes):
        last = place == len(nodes) - 1 and not tree.is_cut
        line, below = (f"{rest}└─ ", f"{rest}   ") if last else (f"{rest}├─ ", f"{rest}│  ")
        if child is not None:
            yield from _lines(output, child, f"{line}{MARKS[step.status]} child ", below)
        else:
            yield _fit(output, f"{line}{_step(output, step)}", _outcome(output, step))
        if more:
            yield f"{rest}{'   ' if last else '│  '}… {more} more {output.cell(step.name)} steps"
    if tree.is_cut:
        yield f"{rest}└─ further children: perdure trace CHILD, or --depth"


def _step(output: Output, step: StepInfo) -> str:
    colour = {StepStatus.FAILED: "red", StepStatus.COMPLETED: "green", StepStatus.RETRYING: "yellow"}.get(step.status)
    mark = output.paint(MARKS[step.status], colour)
    attempts = f" ({step.attempts} attempts)" if step.attempts > 1 else ""
    kind = "" if step.kind.value in ("activity", "child") else f" [{step.kind.value}]"
    return f"{mark} {output.cell(step.name)}{kind}{attempts}"


def _outcome(output: Output, step: StepInfo) -> str:
    at = output.time(stamp(step.finished_at))
    if step.error is not None:
        told: str | None = f"{step.error.type.rpartition('.')[2]}: {step.error.message}"
    elif step.status is StepStatus.COMPLETED and step.result is not None:
        told = output.cell(plain(step.result))
        told = told if len(told) <= RESULT_MAX else f"{told[:RESULT_MAX]}…"
    else:
        told = None if step.status is StepStatus.COMPLETED else step.status.value
    return "".join(f"  {output.cell(each)}" for each in (told, at) if each is not None)


def _fit(output: Output, line: str, rest: str) -> str:
    """Return a line with as much of the rest as the terminal has room for, and a mark where that is cut."""
    width = output.width()
    if width is None:
        return line + rest
    room = width - width_of(line)
    return line + (cut(rest, room) if room > 0 else "")


def _folded(tree: RunTree) -> list[tuple[StepInfo, RunTree | None, int]]:
    """Return the steps; of many equal ones in a row only the first is left, with the number of those left out."""
    nodes: list[tuple[StepInfo, RunTree | None, int]] = []
    row: list[tuple[StepInfo, RunTree | None]] = []

    def end_row() -> None:
        kept = row if len(row) <= FOLD else row[:1]
        nodes.extend((step, child, 0) for step, child in kept)
        if len(row) > FOLD:
            step, child, _ = nodes.pop()
            nodes.append((step, child, len(row) - 1))
        row.clear()

    for step, child in tree.steps:
        if row and (row[-1][0].name, row[-1][0].status) != (step.name, step.status):
            end_row()
        row.append((step, child))
    end_row()
    return nodes
