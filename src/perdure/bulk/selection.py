"""Which runs an action was confirmed for, read page by page.

The runs are read a moment after the confirmation, and after a crash perhaps much later. So a selection has the time of
the confirmation, and leaves out what has happened since: runs that were started later and, of actions on ended runs,
runs that ended later. Neither was there to be confirmed.

A run that was retried stays failed or cancelled, beside the run that replaced it. `retry` leaves it out, because its
work would be done twice: of the attempts at one run only the last is retried.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from perdure.engine.api.client import Client, storage_of
from perdure.engine.api.queries import ANY_WAIT
from perdure.engine.api.retries import without_retried
from perdure.inspection.filters import RunFilter, Scalar
from perdure.model.records import ListInstancesOptions
from perdure.model.states import TERMINAL, WAITING, WorkflowStatus

NAME = "perdure.bulk"
PAGE = 500
RUNS_MAX = 100_000  # runs that one action changes: their ids are in the history of its run
EXACT_MAX = 2_000  # runs of which `count` looks whether they have been retried, unless the caller has more time

Action = Literal["cancel", "retry", "delete"]

STATUSES: dict[Action, frozenset[WorkflowStatus]] = {
    "cancel": frozenset(WorkflowStatus) - TERMINAL,
    "retry": frozenset({WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}),
    "delete": frozenset(TERMINAL),
}

_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Selection:
    """The runs that an action was confirmed for.

    - `at`: when it was confirmed, by the clock of the database.
    - `ids`: the runs themselves, at most 500; or None, and all runs that match the other fields are meant, which are
      those of `RunFilter`.
    - `most`: how many runs are changed at most (default and maximum: 100,000).
    """

    at: datetime
    workflow: str | None = None
    status: str | None = None
    stuck: bool = False
    where: dict[str, Scalar] = field(default_factory=dict)
    started_after: datetime | None = None
    started_before: datetime | None = None
    ids: list[str] | None = None
    most: int = RUNS_MAX

    @staticmethod
    def of(filter: RunFilter, at: datetime, most: int = RUNS_MAX) -> "Selection":
        """Return the runs that match a filter at a time."""
        return Selection(
            at,
            filter.workflow,
            None if filter.status is None else str(filter.status),
            filter.stuck,
            dict(filter.where),
            filter.started_after,
            filter.started_before,
            None,
            min(most, RUNS_MAX),
        )

    @property
    def filter(self) -> RunFilter:
        """Return the filter, without runs that were started after the confirmation."""
        known = self.at + _INSTANT  # times of filters are exclusive
        before = known if self.started_before is None else min(known, self.started_before)
        return RunFilter(self.workflow, self.status, self.stuck, self.where, self.started_after, before)


async def read_page(
    client: Client, action: Action, selection: Selection, token: str | None = None, limit: int = PAGE
) -> tuple[list[str], str | None]:
    """Return the ids of a page of the runs that an action applies to, and the token of the next page.

    `retry` leaves out runs that have been retried; those that a selection names by their ids are skipped later. Runs of
    `perdure.bulk` are left out unless the selection names this workflow: an action does not cancel itself, and the runs
    of earlier actions are the record of what was done.
    """
    if selection.ids is not None:
        return selection.ids, None
    if selection.stuck:  # none of them has failed, so `retry` applies to none
        return await _stuck_page(client, action, selection, token, limit)
    options = _options(action, selection)
    if not options.statuses:
        return [], None
    asked = replace(options, limit=limit, page_token=token, payloads=False)
    page = await storage_of(client).list_instances(asked)
    found = [
        row.instance_id
        for row in page.instances
        if _is_meant(selection, row.workflow_name) and _was_there(selection, row.status, row.updated_at)
    ]
    return await without_retried(storage_of(client), found) if action == "retry" else found, page.next_page_token


async def _stuck_page(
    client: Client, action: Action, selection: Selection, token: str | None, limit: int
) -> tuple[list[str], str | None]:
    page = await selection.filter.query(client).page(limit, token, payloads=False)
    wanted = STATUSES[action]
    found = [run.id for run in page.runs if run.status in wanted and _is_meant(selection, run.workflow)]
    return found, page.next_token


async def count(client: Client, action: Action, selection: Selection, *, exact_max: int = EXACT_MAX) -> int:
    """Return to how many runs an action applies, counted up to `selection.most`.

    Of `retry`, runs that have been retried are left out if the others and they are at most `exact_max` together.
    """
    most = selection.most
    if selection.ids is not None:
        return min(len(selection.ids), most)
    if selection.stuck:
        return len(await sample(client, action, selection, most))
    options, storage = _options(action, selection), storage_of(client)
    if not options.statuses:
        return 0
    found = await storage.count_instances(options, limit=most)
    if action == "retry" and 0 < found <= exact_max:
        return len(await sample(client, action, selection, most))
    if options.workflow_name is not None or found == most:
        return found
    return found - await storage.count_instances(replace(options, workflow_name=NAME), limit=most)


async def sample(client: Client, action: Action, selection: Selection, most: int) -> list[str]:
    """Return the first runs that an action applies to."""
    found: list[str] = []
    token: str | None = None
    while len(found) < most:
        ids, token = await read_page(client, action, selection, token, min(PAGE, most))
        found += ids
        if token is None:
            break
    return found[:most]


def _options(action: Action, selection: Selection) -> ListInstancesOptions:
    """Return what selects the runs; without a status if the action applies to none of them."""
    filter = selection.filter
    wanted = STATUSES[action]
    if filter.status == ANY_WAIT:
        wanted &= WAITING
    elif filter.status is not None:
        wanted &= {WorkflowStatus(filter.status)}
    return ListInstancesOptions(
        statuses=tuple(sorted(wanted)),
        workflow_name=filter.workflow,
        started_after=filter.started_after,
        started_before=filter.started_before,
        input_filters=filter.where,
    )


def _is_meant(selection: Selection, workflow: str) -> bool:
    return workflow != NAME or selection.workflow == NAME


def _was_there(selection: Selection, status: WorkflowStatus, updated_at: datetime | None) -> bool:
    """Return whether a run had this status at the time of the confirmation; one that has not ended changes often."""
    return status not in TERMINAL or updated_at is None or updated_at <= selection.at
