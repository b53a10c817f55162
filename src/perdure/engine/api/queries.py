"""Queries for runs by workflow, status, start time and input, page by page, and bulk operations on the results.

Runs are sorted newest first; stuck runs, those that have been stuck longest first. Every filter is served by an index,
except that `where` reads the inputs of the runs that the other filters leave, so it needs one of them.
"""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from perdure.engine.api.reading import read_runs
from perdure.engine.api.retries import without_retried
from perdure.engine.api.run_info import RunInfo
from perdure.engine.worker.stuck import UNSERVED, served_names, unclaimed_for
from perdure.errors import InvalidPageTokenError, LimitError, PerdureError, WorkflowNotCancellableError
from perdure.model.durations import moment
from perdure.model.limits import PAGE_MAX, searchable
from perdure.model.records import ListInstancesOptions, WorkflowInstance
from perdure.model.states import RESUMABLE, TERMINAL, WAITING, WorkflowStatus
from perdure.storage import filters
from perdure.storage.contract import Storage

PAGE = 100
COUNT_MAX = 10_000
ANY_WAIT = "waiting"

Where = Mapping[str, str | bool | int | float | None]


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of runs. Pass `next_token` to `RunQuery.page()` for the next page; it is None on the last one."""

    runs: tuple[RunInfo, ...]
    next_token: str | None


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of an operation on all runs of a query.

    - `done`: the number of runs that were changed, or in a dry run would be changed.
    - `skipped`: the number of runs to which the operation does not apply, such as ended runs for `cancel()`.
    - `failed`: the ids of the runs for which the operation failed, each with the reason.
    - `dry_run`: whether nothing was changed.
    """

    done: int
    skipped: int
    failed: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False


class Source(Protocol):
    """What a query needs of an App or Client."""

    @property
    def _storage(self) -> Storage: ...

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        """Cancel a run."""

    async def _retry_once(self, instance_id: str) -> bool:
        """Start a failed or cancelled run again unless that was done before."""


class RunQuery:
    """A query for runs, made by `app.runs()`. Nothing is read until it is used.

    Iterate over the runs with `async for`, read them with `first()`, `page()` and `count()`, or change all of them with
    `cancel()`, `retry()` and `delete()`.
    """

    def __init__(
        self,
        source: Source,
        *,
        workflow: str | None,
        status: WorkflowStatus | str | None,
        stuck: bool,
        where: Where | None,
        started_after: datetime | None,
        started_before: datetime | None,
    ) -> None:
        self._source = source
        self._stuck = stuck
        self._where = filters.checked(where or {})
        for name, value in (("started_after", started_after), ("started_before", started_before)):
            if value is not None:
                moment(value, f"runs({name}=)")
        if workflow is not None and not isinstance(workflow, str):
            raise TypeError(f"runs(workflow=) must be a workflow or its name, not {workflow!r}")
        if where and workflow is None and status is None and started_after is None and not stuck:
            raise ValueError(
                "runs(where=) reads the input of every run that the other filters leave, and there is none: pass "
                "workflow=, status=, started_after= or stuck=True as well"
            )
        self._options = ListInstancesOptions(
            statuses=_statuses(status),
            workflow_name=workflow,
            started_after=started_after,
            started_before=started_before,
            input_filters=where or {},
        )

    # Reading.

    async def __aiter__(self) -> AsyncIterator[RunInfo]:
        token, more = None, True
        while more:
            page = await self.page(PAGE, token)
            for run in page.runs:
                yield run
            token, more = page.next_token, page.next_token is not None

    async def first(self) -> RunInfo | None:
        """Return the first run, or None if there is none."""
        page = await self.page(1)
        return page.runs[0] if page.runs else None

    async def page(self, limit: int = PAGE, token: str | None = None, *, payloads: bool = True) -> RunPage:
        """Return a page of at most `limit` runs (default: 100).

        `token` is the `next_token` of the page before (default: None, the first page). With `payloads=False` inputs and
        results are not read, which may be large: `input` is empty, and `result` is None. Raises `ValueError` for a
        limit out of range, and `InvalidPageTokenError` for an invalid token.
        """
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= PAGE_MAX:
            raise ValueError(f"a page has 1 to {PAGE_MAX} runs, not {limit!r}")
        rows, following = await self._rows(limit, token, payloads)
        if not payloads:
            rows = [replace(row, input_data=b"{}", output_data=None) for row in rows]
        return RunPage(tuple(await read_runs(self._source._storage, rows)), following)

    async def count(self, limit: int = COUNT_MAX) -> int:
        """Return the number of runs, counted up to `limit` (default: 10,000); `limit` means that many or more."""
        if not self._stuck:
            return await self._source._storage.count_instances(self._options, limit=limit)
        found = 0
        async for rows in self._pages():
            found += len(rows)
            if found >= limit:
                return limit
        return found

    # Changing.

    async def cancel(self, reason: str = "", *, dry_run: bool = False) -> BulkResult:
        """Cancel all runs of the query that have not ended, with `reason` (default: empty).

        With `dry_run` only count them (default: False).
        """

        async def cancel(id: str) -> bool:
            try:
                await self._source.cancel(id, reason)
            except WorkflowNotCancellableError:
                return False  # the run has ended in the meantime
            return True

        async def not_ended(rows: list[WorkflowInstance]) -> list[str]:
            return [row.instance_id for row in rows if row.status not in TERMINAL]

        return await self._each(not_ended, cancel, dry_run)

    async def retry(self, *, dry_run: bool = False) -> BulkResult:
        """Start all failed and cancelled runs of the query again, each as a new run; see `Client.retry`.

        A run that has been retried stays failed or cancelled. It is skipped, so that no work is done twice if this is
        called again, or by two processes: of the attempts at one run only the last is retried. With `dry_run` only
        count the runs (default: False).
        """

        async def ended_badly(rows: list[WorkflowInstance]) -> list[str]:
            states = (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)
            failed = [row.instance_id for row in rows if row.status in states]
            return await without_retried(self._source._storage, failed)

        return await self._each(ended_badly, self._source._retry_once, dry_run)

    async def delete(self, *, dry_run: bool = False) -> BulkResult:
        """Delete all runs of the query that have ended, with their histories.

        With `dry_run` only count them (default: False).
        """
        done = skipped = 0
        failed: dict[str, str] = {}
        async for rows in self._pages():
            ids = [row.instance_id for row in rows if row.status in TERMINAL]
            skipped += len(rows) - len(ids)
            deleted = [True] * len(ids) if dry_run else await self._source._storage.delete_ended(ids)
            done += sum(deleted)
            why = "a run that has not ended continues from it, or another process is changing it"
            failed.update({id: why for id, gone in zip(ids, deleted, strict=True) if not gone})
        return BulkResult(done, skipped, failed, dry_run)

    async def _each(
        self,
        chosen: Callable[[list[WorkflowInstance]], Awaitable[list[str]]],
        act: Callable[[str], Awaitable[bool]],
        dry_run: bool,
    ) -> BulkResult:
        done = skipped = 0
        failed: dict[str, str] = {}
        async for rows in self._pages():
            ids = await chosen(rows)
            skipped += len(rows) - len(ids)
            for id in ids:
                try:
                    if dry_run or await act(id):
                        done += 1
                    else:
                        skipped += 1
                except PerdureError as error:
                    failed[id] = f"{type(error).__name__}: {error}"
        return BulkResult(done, skipped, failed, dry_run)

    # Rows.

    async def _pages(self) -> AsyncIterator[list[WorkflowInstance]]:
        """Yield all rows, page by page; changing runs does not move them to another page."""
        token, more = None, True
        while more:
            rows, token = await self._rows(PAGE, token)
            more = token is not None
            yield rows

    async def _rows(
        self, limit: int, token: str | None, payloads: bool = True
    ) -> tuple[list[WorkflowInstance], str | None]:
        if self._stuck:
            return await self._stuck_rows(limit, _Place.read(token))
        asked = replace(self._options, limit=limit, page_token=token, payloads=payloads)
        page = await self._source._storage.list_instances(asked)
        return page.instances, page.next_page_token

    async def _stuck_rows(self, limit: int, place: "_Place") -> tuple[list[WorkflowInstance], str | None]:
        """Return a page of stuck runs: first those in back-off, then those whose workflow no live worker executes."""
        found: list[WorkflowInstance] = []
        while place.since is not None:
            found += await self._backed_off(limit - len(found), place)
            if len(found) == limit:
                return found, place.text()
        storage = self._source._storage
        now, unserved = await storage.now(), await self._unserved()
        for name, status in unserved:
            if (name, status) < (place.workflow, place.status):
                continue
            token: str | None = place.token if (name, status) == (place.workflow, place.status) else ""
            options = replace(self._options, workflow_name=name, statuses=(WorkflowStatus(status),))
            while token is not None:
                if len(found) == limit:
                    return found, _Place(None, "", name, status, token).text()
                asked = replace(options, limit=limit - len(found), page_token=token or None)
                page = await storage.list_instances(asked)
                found += await self._untaken(page.instances, now)
                token = page.next_page_token
        return found, None

    async def _backed_off(self, limit: int, place: "_Place") -> list[WorkflowInstance]:
        """Return the next runs in back-off that match the filters, and advance `place` past them."""
        storage = self._source._storage
        after = (place.since, place.id) if place.id and place.since is not None else None
        page = await storage.list_stuck(limit, after=after)
        if page:
            place.since, place.id = page[-1].since, page[-1].instance_id
        if len(page) < limit:
            place.since = None
        rows = await storage.get_instances([each.instance_id for each in page])
        return [row for row in rows if row is not None and self._fits(row)]

    async def _unserved(self) -> list[tuple[str, str]]:
        """Return the workflows that have runs but no live worker, each with each status that needs a worker."""
        storage, options = self._source._storage, self._options
        served = await served_names(storage)
        if served is None:
            return []
        wanted = options.statuses
        states = sorted(status.value for status in RESUMABLE if not wanted or status in wanted)
        known = await storage.list_workflow_names() if options.workflow_name is None else [options.workflow_name]
        return [(name, status) for name in sorted(set(known) - set(served)) for status in states]

    async def _untaken(self, rows: list[WorkflowInstance], now: datetime) -> list[WorkflowInstance]:
        """Return the runs that have been due for a while without being leased, and are not in back-off."""
        waiting = [row for row in rows if unclaimed_for(row, now) >= UNSERVED]
        backed_off = await self._source._storage.get_stuck([row.instance_id for row in waiting])
        return [row for row, known in zip(waiting, backed_off, strict=True) if known is None]

    def _fits(self, row: WorkflowInstance) -> bool:
        asked, started = self._options, row.started_at
        return (
            asked.workflow_name in (None, row.workflow_name)
            and (not asked.statuses or row.status in asked.statuses)
            and (asked.started_after is None or (started is not None and started > asked.started_after))
            and (asked.started_before is None or (started is not None and started < asked.started_before))
            and (not self._where or filters.matches(row.input_data.decode(), self._where))
        )


@dataclass(slots=True)
class _Place:
    """Where the next page of stuck runs starts: after a run in back-off or, if `since` is None, among the others."""

    since: datetime | None
    id: str = ""
    workflow: str = ""
    status: str = ""
    token: str = ""

    @staticmethod
    def read(text: str | None) -> "_Place":
        if text is None:
            return _Place(datetime.min)
        try:
            since, *rest = json.loads(base64.urlsafe_b64decode(text.encode("ascii")))
            place = _Place(None if since is None else datetime.fromisoformat(since), *rest)
            if [type(each) for each in rest] == [str] * 4 and (place.since is None or place.since.tzinfo):
                searchable(place.id, "the id in a page token")
                return place
        except (ValueError, TypeError, AttributeError, RecursionError, LimitError):
            pass
        raise InvalidPageTokenError("this is no page token of stuck runs: pass next_token unchanged, to the same query")

    def text(self) -> str:
        since = None if self.since is None else self.since.isoformat()
        whole: list[Any] = [since, self.id, self.workflow, self.status, self.token]
        return base64.urlsafe_b64encode(json.dumps(whole).encode()).decode()


def _statuses(value: WorkflowStatus | str | None) -> tuple[WorkflowStatus, ...]:
    """Return the states that a query asks for; none means any."""
    if value == ANY_WAIT:
        return tuple(sorted(WAITING))
    try:
        return () if value is None else (WorkflowStatus(value),)
    except ValueError:
        known = ", ".join(repr(status.value) for status in WorkflowStatus)
        raise ValueError(f"runs(status=) is one of {known}, or {ANY_WAIT!r} for any wait, not {value!r}") from None
