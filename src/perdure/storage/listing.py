"""List instances, newest first, a page at a time.

Every page is served by an index, whatever its number: a token holds the position of the last row, not a count. A
statement is composed of the fragments in listing.sql, one for each filter given.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

from perdure.database.dialects.base import Rendering
from perdure.database.operation import Operation, utc
from perdure.database.statements import Statement
from perdure.errors import InvalidPageTokenError, LimitError
from perdure.model import limits
from perdure.model.json_paths import Value
from perdure.model.records import EndedInstance, ListInstancesOptions, PaginationResult
from perdure.model.states import WorkflowStatus
from perdure.storage import filters
from perdure.storage.instances import QUICK_PAGE, from_row
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

S = load_statements("listing")

PAGE = 50
FRAMEWORK_MAX = 50
_LAST = (datetime(9999, 12, 31, tzinfo=UTC), "")  # no instance ends later
OWN_FORM = len("2026-01-31T23:59:59.123456+00:00")

_FOLD = str.maketrans(ascii_uppercase, ascii_lowercase)
_TOKEN = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.:+Z-]{0,16})\|\|([^\0\ud800-\udfff]+)", re.ASCII | re.DOTALL
)
_SCANNING = {"workflow_name", "instance_id"}  # conditions without an index
_ID, _INPUT, _STARTED = 0, 2, 15  # columns of `select`


class Listing(Transactions):
    """Implement the listing of InstanceManager."""

    async def list_instances(self, options: ListInstancesOptions | None = None) -> PaginationResult:
        """Return a page of the instances for which every filter holds, by start time and id, both descending.

        Names and ids match by a part of them, ignoring the case of ASCII letters; times are exclusive. Raise
        `InvalidPageTokenError`, `InvalidJSONPathError`, or `LimitError` for any other invalid value.
        """
        search = _search(options or ListInstancesOptions(), self._backend.driver)
        return await (self._scan if search.reads_much else self._read)(_page, search)

    async def count_instances(
        self, options: ListInstancesOptions | None = None, *, limit: int = limits.COUNT_MAX
    ) -> int:
        """Return the number of instances that match these filters, at most `limit`."""
        most = limits.count(limit, "limit", limits.COUNT_MAX)
        search = _search(options or ListInstancesOptions(), self._backend.driver)._replace(place={})
        return await self._scan(_count, search, most)

    async def list_ended(self, limit: int = 0, *, before: tuple[datetime, str] | None = None) -> list[EndedInstance]:
        """Return own instances that have ended, the last one first; `before` is the last one's `ended_at` and id."""
        at, instance_id = before or _LAST
        return await self._scan(_ended, limits.page(limit, PAGE), limits.moment(at, "before"), instance_id)

    async def list_workflow_names(self) -> list[str]:
        """Return the names of the workflows of own instances, sorted."""
        return sorted(await self._scan(_names))


class _Search(NamedTuple):
    """Hold checked options: fragments with their parameters, and the filters that Python decides."""

    dialect: str
    limit: int
    framework: str | None
    statuses: tuple[str | None, ...]
    fragments: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...]
    params: Mapping[str, object]
    inputs: Mapping[str, Value]
    place: Mapping[str, object]
    payloads: bool

    @property
    def begin(self) -> str:
        """Return the fragment that names the columns; filters of the input need it."""
        return "select" if self.payloads or self.inputs else "select_bare"

    @property
    def reads_much(self) -> bool:
        return bool(self.inputs) or not _SCANNING.isdisjoint(self.fragments) or self.limit > QUICK_PAGE


def _search(options: ListInstancesOptions, driver: Rendering) -> _Search:
    if options.framework is not None:
        limits.name(options.framework, "framework", FRAMEWORK_MAX)
    status, before = _status(options.status_filter), limits.moment(options.started_before, "started_before")
    workflow = options.workflow_name and limits.name(options.workflow_name, "workflow_name")
    several = _several(options.statuses, status)
    base = "of_one_workflow" if workflow else "in_one_state" if status or several else "in_any_state"
    given = {
        "started_after": limits.moment(options.started_after, "started_after"),
        "started_before": before,
        "workflow_name": _part(options.workflow_name_filter, "workflow_name_filter"),
        "instance_id": _part(options.instance_id_filter, "instance_id_filter"),
    }
    params = {key: value for key, value in given.items() if value is not None}
    place = {} if options.page_token is None else _place(options.page_token)
    if place and before is not None and place["last_at"] >= before:
        place = {}  # all remaining rows are below both
    inputs, conditions, args = filters.checked(options.input_filters), list[str](), list[object]()
    if inputs:
        conditions, args = filters.InputFilterBuilder(driver.naming("input")).build_filter_query(inputs)
    return _Search(
        dialect=driver.name,
        limit=limits.page(options.limit, PAGE),
        framework=options.framework,
        statuses=several or (tuple(each.value for each in WorkflowStatus) if workflow and not status else (status,)),
        fragments=(base, *params),
        conditions=tuple(zip(inputs, conditions, strict=True)),
        params={**params, "workflow": workflow, **{f"input_{n}": arg for n, arg in enumerate(args, 1)}},
        inputs=inputs,
        place=place,
        payloads=options.payloads,
    )


def _part(value: str | None, kind: str) -> str | None:
    """Return a part of a name to search for, as the statements expect it; an empty one is in every name."""
    return limits.searchable(value, kind).translate(_FOLD) if value else None


def _status(value: WorkflowStatus | None) -> str | None:
    return None if value is None else limits.choice(WorkflowStatus, value, "status_filter").value


def _several(values: tuple[WorkflowStatus, ...], one: str | None) -> tuple[str, ...]:
    if values and one is not None:
        raise LimitError("a listing takes status_filter or statuses, not both")
    return tuple(dict.fromkeys(limits.choice(WorkflowStatus, each, "statuses").value for each in values))


def _place(token: str) -> dict[str, Any]:
    """Return the row that a token names, as parameters of `after`."""
    try:
        found = _TOKEN.fullmatch(token)
        at = utc(found[1]) if found else None
    except (TypeError, ValueError, OverflowError):  # no text, or no time
        found = at = None
    if found is None or at is None:
        raise InvalidPageTokenError("the page token is invalid: pass the next token of the previous page unchanged")
    text = found[1]
    if len(text) == OWN_FORM and text[10] == "T" and text.endswith("+00:00"):
        text = f"{text[:10]} {text[11:26]}"  # as we store it
    return {"last_at": at, "last_text": text, "last_id": found[2]}


def _token(row: tuple[Any, ...]) -> str:
    """Return the position of a row. A time that SQLite has in another format than ours is kept as stored."""
    stored, at = row[_STARTED], utc(row[_STARTED])
    foreign = isinstance(stored, str) and stored != _text(at)
    return f"{stored if foreign else at.isoformat(timespec='microseconds')}||{row[_ID]}"


def _text(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(" ", "microseconds")


def _page(search: _Search) -> Operation[PaginationResult]:
    branches = yield from _branches(search)
    rows: list[tuple[Any, ...]] = []
    if len(search.statuses) > 1 and search.framework is not None and not search.inputs:
        rows = yield from _rows_of_all_states(search, search.framework)
    else:
        for framework, status in branches:
            rows += yield from _rows(search, framework, status)
    if len(branches) > 1:
        rows.sort(key=lambda row: (row[_STARTED], row[_ID]), reverse=True)
    page, more = rows[: search.limit], len(rows) > search.limit
    found = [from_row(row) for row in page]
    if search.inputs and not search.payloads:
        found = [replace(each, input_data=b"{}", output_data=None) for each in found]
    return PaginationResult(found, _token(page[-1]) if more else None, more)


def _branches(search: _Search) -> Operation[list[tuple[str, str | None]]]:
    """Return what an index has in order: a framework, or one state of a workflow."""
    frameworks = yield from _frameworks_of(search)
    return [(framework, status) for framework in frameworks for status in search.statuses]


def _count(search: _Search, limit: int) -> Operation[int]:
    found = 0
    if search.inputs:
        for framework, status in (yield from _branches(search)):
            if found < limit:
                found += yield from _count_filtered(search, framework, status, limit - found)
        return found
    for framework in (yield from _frameworks_of(search)):
        if found < limit:
            found += yield from _count_states(search, framework, limit - found)
    return found


def _count_states(search: _Search, framework: str, limit: int) -> Operation[int]:
    """Count the instances in every state at one moment: otherwise one could count in two states, or in none."""
    statement = _counted(search.dialect, search.fragments, len(search.statuses))
    ((count,),) = yield statement(**search.params, **_numbered(search.statuses), framework=framework, limit=limit)
    return int(count)


def _count_filtered(search: _Search, framework: str, status: str | None, limit: int) -> Operation[int]:
    """Count the instances in one state whose input matches, which only Python can decide."""
    count, search = 0, search._replace(limit=limits.PAGE_MAX)
    while True:
        rows = yield from _rows(search, framework, status)
        count = min(count + len(rows[: search.limit]), limit)
        if len(rows) <= search.limit or count == limit:
            return count
        search = search._replace(place=_place(_token(rows[search.limit - 1])))


def _ended(limit: int, at: datetime | None, instance_id: str) -> Operation[list[EndedInstance]]:
    rows = yield S.ended(limit=limit, at=at, instance_id=instance_id)
    return [EndedInstance(row[0], row[1], WorkflowStatus(row[2]), utc(row[3]), utc(row[4])) for row in rows]


def _names() -> Operation[list[str]]:
    """Return the names with one index lookup each."""
    found = [""]
    while rows := (yield S.workflow(workflow=found[-1])):
        found.append(rows[0][0])
    return found[1:]


def _frameworks_of(search: _Search) -> Operation[list[str]]:
    return [search.framework] if search.framework is not None else (yield from _frameworks())


def _frameworks() -> Operation[list[str]]:
    """Return every framework that has instances; an index orders the rows of each, so that no sort is needed."""
    found = [""]
    while rows := (yield S.framework(framework=found[-1])):
        found.append(rows[0][0])
    return found


def _rows(search: _Search, framework: str, status: str | None) -> Operation[list[tuple[Any, ...]]]:
    """Return the page and, if there is more, one row. Rows that Python rejects are replaced by reading on."""
    wanted = batch = search.limit + 1
    place = search.place
    found: list[tuple[Any, ...]] = []
    while True:
        statement = _statement(
            search.dialect, _from_place(search.fragments, place), search.conditions, (search.begin, "order")
        )
        rows = yield statement(**search.params, **place, framework=framework, status=status, limit=batch)
        found += [row for row in rows if filters.matches(row[_INPUT], search.inputs)] if search.inputs else rows
        if len(rows) < batch or len(found) >= wanted:
            return found[:wanted]
        place, batch = _place(_token(rows[-1])), min(2 * batch, limits.PAGE_MAX)


def _from_place(fragments: tuple[str, ...], place: Mapping[str, object]) -> tuple[str, ...]:
    """Return the fragments with the place as the upper bound, if there is one.

    It is the lower of the two bounds, and with both SQLite may begin at the wrong one.
    """
    return (*(name for name in fragments if name != "started_before"), "after") if place else fragments


def _rows_of_all_states(search: _Search, framework: str) -> Operation[list[tuple[Any, ...]]]:
    """Return the first rows of every state, read at one moment: otherwise an instance could be found in two states."""
    fragments = _from_place(search.fragments, search.place)
    statement = _union(search.dialect, fragments, len(search.statuses), search.begin)
    params = {
        **search.params,
        **search.place,
        **_numbered(search.statuses),
        "framework": framework,
        "limit": search.limit + 1,
    }
    return (yield statement(**params))  # type: ignore[no-any-return]


@lru_cache(64)
def _union(dialect: str, fragments: tuple[str, ...], count: int, begin: str) -> Statement:
    """Return the statement for the rows of a page in each of several states, each by its own index range."""
    page = _statement(dialect, fragments, (), (begin, "order"))
    union = Statement("listing.union", page.columns)
    union.texts[dialect] = (_united(page, dialect, count),)
    return union


@lru_cache(64)
def _counted(dialect: str, fragments: tuple[str, ...], count: int) -> Statement:
    """Return the statement for the number of instances in several states together, each by its own index range."""
    rows = _statement(dialect, fragments, (), ("one", "up_to"))
    (text,), (up_to,) = S.count.parts(dialect), S.up_to.parts(dialect)
    union = f"{_united(rows, dialect, count)}\n{up_to}" if count > 1 else _in_state(rows, dialect, 0)
    counted = Statement("listing.counted", S.count.columns)
    counted.texts[dialect] = (text.replace(":rows", union),)
    return counted


def _united(statement: Statement, dialect: str, count: int) -> str:
    """Return the union of a statement in several states, as branches; `_numbered` are the states' parameters."""
    (branch,) = S.branch.parts(dialect)
    return " UNION ALL ".join(branch.replace(":page", _in_state(statement, dialect, n)) for n in range(count))


def _in_state(statement: Statement, dialect: str, number: int) -> str:
    return statement.parts(dialect)[0].replace(":status", f":status_{number}")


def _numbered(statuses: tuple[str | None, ...]) -> dict[str, str | None]:
    return {f"status_{n}": status for n, status in enumerate(statuses)}


@lru_cache(256)
def _statement(
    dialect: str,
    fragments: tuple[str, ...],
    conditions: tuple[tuple[str, str], ...],
    ends: tuple[str, str] = ("select", "order"),
) -> Statement:
    """Return the fragments as one statement of a dialect, between two more: for a page, or for the rows of a count."""

    def fragment(name: str) -> str:
        return getattr(S, name).parts(dialect)[0]  # type: ignore[no-any-return]

    inputs = [
        fragment("input").replace("path", path).replace(":condition", condition) for path, condition in conditions
    ]
    first, last = ends
    statement = Statement("listing.page", getattr(S, first).columns)
    texts = [fragment(first), *map(fragment, fragments), *inputs, fragment(last)]
    statement.texts[dialect] = ("\n".join(texts),)
    return statement
