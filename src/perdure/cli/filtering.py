"""The filters of a command, as terms and as options."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.exits import UsageError
from perdure.cli.inputs import json_value
from perdure.engine.api.queries import ANY_WAIT
from perdure.inspection.filters import FilterError, RunFilter, parse_filter, parse_time
from perdure.model.states import WorkflowStatus


class Status(StrEnum):
    """The statuses of runs, and `waiting` for any wait."""

    RUNNING = WorkflowStatus.RUNNING
    COMPLETED = WorkflowStatus.COMPLETED
    FAILED = WorkflowStatus.FAILED
    CANCELLED = WorkflowStatus.CANCELLED
    WAITING_FOR_EVENT = WorkflowStatus.WAITING_FOR_EVENT
    WAITING_FOR_TIMER = WorkflowStatus.WAITING_FOR_TIMER
    WAITING_FOR_MESSAGE = WorkflowStatus.WAITING_FOR_MESSAGE
    WAITING = ANY_WAIT
    RECURRED = WorkflowStatus.RECURRED
    COMPENSATING = WorkflowStatus.COMPENSATING

    @property
    def meaning(self) -> WorkflowStatus | str:
        """Return the status, or `waiting`, as filters have it."""
        return self.value if self is Status.WAITING else WorkflowStatus(self.value)


@Parameter(name="*")
@dataclass(frozen=True)
class Filters:
    """The filters of `Client.runs` as options; terms such as `state:failed` do the same."""

    status: Annotated[
        Status | None,
        Parameter(
            name=("--status", "--state"),
            show_default=False,
            name_transform=str.lower,
            help="Status of the run; waiting is any wait.",
        ),
    ] = None
    workflow: Annotated[str | None, Parameter(show_default=False, help="Name of the workflow.")] = None
    stuck: Annotated[bool, Parameter(negative="", help="Only stuck runs.")] = False
    started_after: Annotated[
        str | None, Parameter(show_default=False, help="Started after a time, or less than an age (1h) ago.")
    ] = None
    started_before: Annotated[
        str | None, Parameter(show_default=False, help="Started before a time, or more than an age (1h) ago.")
    ] = None
    where: Annotated[
        str | None, Parameter(show_default=False, help='JSON object of values in the input: {"order.id": "A-1"}.')
    ] = None


FILTERS = Filters()


def filter_of(terms: Sequence[str], options: Filters, now: datetime) -> RunFilter:
    """Return the filter of terms and options together; raise `UsageError` if they cannot be read or combined."""
    try:
        found = parse_filter(" ".join(terms), now)
        given = RunFilter(
            options.workflow,
            None if options.status is None else options.status.meaning,
            options.stuck,
            {} if options.where is None else json_value(options.where, "--where"),
            None if options.started_after is None else parse_time(options.started_after, now),
            None if options.started_before is None else parse_time(options.started_before, now),
        )
    except FilterError as error:
        raise UsageError(str(error)) from error
    if not isinstance(given.where, dict):
        raise UsageError('--where must be a JSON object, such as {"order.id": "A-1"}')
    return _together(found, given)


def _together(terms: RunFilter, options: RunFilter) -> RunFilter:
    for name in ("workflow", "status", "started_after", "started_before"):
        if getattr(terms, name) is not None and getattr(options, name) is not None:
            raise UsageError(f"the filter and --{name.replace('_', '-')} say the same: use one of them")
    return RunFilter(
        terms.workflow or options.workflow,
        terms.status or options.status,
        terms.stuck or options.stuck,
        {**options.where, **terms.where},
        terms.started_after or options.started_after,
        terms.started_before or options.started_before,
    )
