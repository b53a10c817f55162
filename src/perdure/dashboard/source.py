"""The source of a run's workflow on the page of the run: its lines, its blocks, and the path that the run took."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from perdure.engine.api.reading import wait_info
from perdure.engine.api.step_info import StepInfo
from perdure.engine.history import ids
from perdure.engine.history.records import Compensated, MessageReceived, WaitTimedOut, record_of
from perdure.engine.replay.definitions import WORKFLOWS, WorkflowDefinition
from perdure.model import names
from perdure.model.records import HistoryEvent, RegisteredWait, WorkflowInstance
from perdure.views.path_taken import Mark, Path, path_of
from perdure.views.source_blocks import Block, BlockKind, Source, source_of

LINES_MAX = 2_500
STRAYS_MAX = 20  # steps without a call that are listed
NAMES_MAX = 5  # of the steps of a dynamic block
_URGENT = (Mark.NOW, Mark.FAILED, Mark.NEXT, Mark.TAKEN, Mark.NOT_TAKEN)
_WAITS = (MessageReceived.kind, WaitTimedOut.kind)
Document = dict[str, Any]
_log = logging.getLogger(__name__)


def source_view(
    row: WorkflowInstance,
    steps: Sequence[StepInfo],
    history: Iterable[HistoryEvent],
    waits: Iterable[RegisteredWait],
    *,
    is_whole: bool,
    is_executed: bool,
    redact: Callable[[Any, str], Any],
) -> Document:
    """Return the source of a run's workflow with the path that the run took; `notes` say what is missing, and why.

    `is_whole` says whether `steps` and `history` are all that is recorded. An error is logged: the rest of the page is
    more important.
    """
    try:
        return _source_view(row, steps, history, waits, is_whole, is_executed, redact)
    except Exception:
        names = {"workflow": row.workflow_name, "run": row.instance_id}
        _log.exception("cannot draw the source of workflow %(workflow)s for run %(run)s", names, extra=names)
        return _view("The source cannot be drawn: an error occurred, which the log of this process describes.")


def _source_view(
    row: WorkflowInstance,
    steps: Sequence[StepInfo],
    history: Iterable[HistoryEvent],
    waits: Iterable[RegisteredWait],
    is_whole: bool,
    is_executed: bool,
    redact: Callable[[Any, str], Any],
) -> Document:
    workflow = WORKFLOWS.get(row.workflow_name)
    if workflow is None:
        return _view(
            f"The source is not known here: no module that this process has imported defines workflow "
            f"{row.workflow_name!r}. Serve the dashboard from the program that defines it, or with "
            "`perdure dashboard --app`."
        )
    source = _source(workflow)
    if redact(source.text, "source") != source.text:
        return _view("The source is hidden by redact=.")
    topics, compensated = _recorded(row.instance_id, history, waits)
    path = Path()
    if source.blocks:
        status = row.status if is_whole else None
        path = path_of(source.blocks, steps, status, is_executed=is_executed, compensated=compensated, topics=topics)
    same = row.source_hash == workflow.source_hash if row.source_hash and workflow.source else None
    notes = [source.problem] if source.problem else []
    if same is False:
        notes.append("The code may have changed: the run was not started with this version of the source.")
    elif same is None and source.text:
        notes.append(
            "The code may have changed: it is not recorded with which version of the source the run was started."
        )
    if not is_whole:
        notes.append("The history is long: the path has only the steps that were read.")
    if any(passed.is_uncertain for passed in path.blocks.values()):
        notes.append("≈ marks what is not certain: a history has the names of calls, not their lines.")
    return _view(
        *notes,
        module=source.module,
        same_version=same,
        lines=_lines(source, path),
        blocks=[_block(each, path, source.first_line - 1) for each in source.blocks],
        unmatched=[each.id for each in path.strays[:STRAYS_MAX]],
        unmatched_in_all=len(path.strays),
    )


def _view(*notes: str, **more: Any) -> Document:
    empty: Document = {"module": "", "same_version": None, "lines": [], "blocks": [], "unmatched": []}
    return {**empty, "unmatched_in_all": 0, **more, "notes": list(notes)}


@lru_cache(maxsize=256)
def _source(workflow: WorkflowDefinition) -> Source:
    return source_of(workflow)


def _recorded(
    run_id: str, history: Iterable[HistoryEvent], waits: Iterable[RegisteredWait]
) -> tuple[dict[str, str], frozenset[str]]:
    """Return the event types and channels of waits by their steps, and the steps that were compensated."""
    topics: dict[str, str] = {}
    compensated: set[str] = set()
    for event in history:
        if event.event_type in _WAITS or event.activity_id.startswith(ids.UNDO):
            match record_of(event):
                case MessageReceived(step=step, channel=str(channel)) | WaitTimedOut(step=step, channel=str(channel)):
                    topics[step] = names.public(channel.removesuffix(f":{run_id}"))
                case Compensated(step=step, failure=None):
                    compensated.add(step)
    for wait in waits:
        if wait.channel is not None:
            topics[ids.step_of(wait.activity_id)] = wait_info(run_id, wait).name
    return topics, frozenset(compensated)


def _lines(source: Source, path: Path) -> list[Document]:
    """Return the lines with the most urgent of the marks of their calls."""
    marks: dict[int, Mark] = {}
    for first, last, mark in chain.from_iterable(_marked(each, path) for each in _every(source.blocks)):
        for number in range(first, last + 1):
            marks[number] = min(mark, marks.get(number, mark), key=_URGENT.index)
    if not source.text:
        return []
    texts = source.text.rstrip("\n").split("\n")  # as Python counts lines: not at a form feed in a text
    first = source.first_line
    lines = [
        {"number": first + number - 1, "text": text, "mark": marks.get(number, "")}
        for number, text in enumerate(texts[:LINES_MAX], 1)
    ]
    if len(texts) > LINES_MAX:
        lines.append({"number": first + LINES_MAX, "text": f"… {len(texts) - LINES_MAX:,} more lines", "mark": ""})
    return lines


def _marked(block: Block, path: Path) -> Iterable[tuple[int, int, Mark]]:
    """Yield lines with a mark: those of a block, and those where its parts begin."""
    passed = path.of(block)
    yield block.line, block.end_line, passed.mark
    for number, part in enumerate(block.parts):
        if part.line:
            yield part.line, part.line, _mark(passed.parts[number])


def _mark(count: int) -> Mark:
    return Mark.TAKEN if count else Mark.NOT_TAKEN


def _every(blocks: Iterable[Block]) -> Iterable[Block]:
    return chain.from_iterable(
        (each, *_every(chain.from_iterable(part.blocks for part in each.parts))) for each in blocks
    )


def _block(block: Block, path: Path, offset: int) -> Document:
    passed = path.of(block)
    rounds = passed.parts[block.body] if block.kind is BlockKind.LOOP else passed.count
    return {
        "kind": block.kind,
        "what": block.what,
        "label": block.label,
        "line": block.line + offset,
        "mark": passed.mark,
        "times": rounds,
        "failed": passed.failed,
        "compensated": passed.compensated,
        "uncertain": passed.is_uncertain,
        "steps": dict(passed.names.most_common(NAMES_MAX)) if block.kind is BlockKind.DYNAMIC else {},
        "last_step": None if passed.last is None else passed.last.id,
        "parts": [
            {
                "label": part.label,
                "times": passed.parts[number],
                "mark": _mark(passed.parts[number]),
                "blocks": [_block(each, path, offset) for each in part.blocks],
            }
            for number, part in enumerate(block.parts)
            if block.kind is not BlockKind.LOOP or part.blocks
        ],
    }
