"""Measure the cost and the access paths of each statement while an operation really runs.

Costs are counted, not timed: SQLite's loop iterations in the statement's program, PostgreSQL's rows out of scans and
pages touched, MySQL's row reads. Each is of one statement, those that a foreign key runs included.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from perdure.database.dialects.base import Part
from perdure.database.statements import Call
from perdure.storage.stores import SQLStorage

Costs = dict[tuple[str, str], Counter[str]]


class Meter:
    """The costs by operation and statement, and the plans that look wrong."""

    def __init__(self) -> None:
        self.costs: Costs = defaultdict(Counter)
        self.plans: dict[tuple[str, str], None] = {}
        self._operation: str | None = None

    @contextmanager
    def __call__(self, operation: str) -> Iterator[None]:
        """Measure the block under this name."""
        self._operation = operation
        try:
            yield
        finally:
            self._operation = None

    def take(self) -> Costs:
        """The costs since the last time."""
        taken, self.costs = self.costs, defaultdict(Counter)
        return taken

    def note(self, statement: str, counts: Mapping[str, int], plan: Sequence[str] = ()) -> None:
        if self._operation is not None:
            self.costs[self._operation, statement].update(counts)
            self.plans |= {(statement, line): None for line in plan}

    def attach(self, storage: SQLStorage) -> None:
        """Look over the shoulder of this storage from now on."""
        raise NotImplementedError


class SQLiteMeter(Meter):
    """Counts with the progress handler, and explains every statement before it runs."""

    def attach(self, storage: SQLStorage) -> None:
        backend: Any = storage._backend
        plain = backend._operations.run_part
        explainer = backend._connect()  # one of its own: an explained write counts as one, and some ask changes()
        backend._scanners.append(explainer)  # closed with the storage

        def run(connection: Any, part: Part, call: Call) -> Any:
            if self._operation is None:
                return plain(connection, part, call)
            steps = 0

            def tick() -> None:
                nonlocal steps
                steps += 1

            plan = explainer.execute(f"EXPLAIN QUERY PLAN {part.text}", [None] * len(part.names)).fetchall()
            connection.set_progress_handler(tick, 1)
            try:
                return plain(connection, part, call)
            finally:
                connection.set_progress_handler(None, 1)
                self.note(call.statement.name, {"steps": steps}, [row[3] for row in plan if _looks_wrong(row[3])])

        backend._operations.run_part = run


def _looks_wrong(line: str) -> bool:
    """A look at every row, or a sort. The list of a parameter is looked at whole, of course."""
    scans = line.startswith("SCAN ") and not line.startswith(("SCAN CONSTANT ROW", "SCAN json_each"))
    return scans or "TEMP B-TREE" in line or "AUTOMATIC" in line


_EXPLAIN = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_analyze = on;
SET auto_explain.log_timing = off;
SET auto_explain.log_buffers = on;
SET auto_explain.log_nested_statements = on;
SET auto_explain.log_format = json;
SET auto_explain.log_level = notice
"""


class PostgresMeter(Meter):
    """Has the server explain each statement after it ran, in a notice."""

    def attach(self, storage: SQLStorage) -> None:
        backend: Any = storage._backend
        plain, known = backend._do, set[Any]()

        def hear(_: Any, message: Any) -> None:
            explained = json.loads(message.message.partition("plan:")[2] or "{}")
            if explained:
                self._explained(explained, _names(backend))

        async def do(connection: Any, part: Part, params: Mapping[str, object]) -> Any:
            if connection not in known:
                known.add(connection)
                connection.add_log_listener(hear)
                await connection.execute(_EXPLAIN)
            return await plain(connection, part, params)

        backend._do = do

    def _explained(self, explained: Mapping[str, Any], names: Mapping[str, str]) -> None:
        text, nodes = explained["Query Text"], list(_nodes(explained["Plan"]))
        scans = [node for node in nodes if "Scan" in node["Node Type"] and "Relation Name" in node]
        top = explained["Plan"]
        counts = {
            "rows": sum(map(_rows, scans)),
            "pages": top.get("Shared Hit Blocks", 0) + top.get("Shared Read Blocks", 0),
        }
        plan = [f"Seq Scan on {node['Relation Name']}" for node in nodes if node["Node Type"] == "Seq Scan"]
        if text in names or ' ONLY "public"' in text:  # not what asyncpg asks about types
            self.note(names.get(text, f"foreign key: {text[:90]}"), counts, plan)


def _names(backend: Any) -> dict[str, str]:
    return {part.text: statement.name for statement, parts in backend.driver._rendered.items() for part in parts}


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _rows(scan: Mapping[str, Any]) -> int:
    removed = scan.get("Rows Removed by Filter", 0) + scan.get("Rows Removed by Index Recheck", 0)
    return int(scan["Actual Loops"] * (scan["Actual Rows"] + removed))


class MySQLMeter(Meter):
    """Reads the session's counters around each statement."""

    # Rows that the engine itself drops would not be counted; where the condition is judged changes no plan.
    _SHOWING = "SHOW SESSION STATUS LIKE 'Handler\\_read%'"
    _COUNT_ALL = "SET SESSION optimizer_switch = 'index_condition_pushdown=off'"

    def attach(self, storage: SQLStorage) -> None:
        backend: Any = storage._backend
        plain, known = backend._run, dict[Any, int]()

        async def reads(connection: Any) -> int:
            *_, result = await backend._ask(connection, (self._SHOWING,), [])
            return sum(int(row[1]) for row in result.rows)

        async def run(connection: Any, call: Call, *around: Sequence[str], **more: Any) -> Any:
            if self._operation is None:
                return await plain(connection, call, *around, **more)
            if connection not in known:
                await backend._ask(connection, (self._COUNT_ALL,), [])
                first, second = await reads(connection), await reads(connection)
                known[connection] = second - first
            before = await reads(connection)
            try:
                return await plain(connection, call, *around, **more)
            finally:
                self.note(call.statement.name, {"reads": await reads(connection) - before - known[connection]})

        async def run_one_by_one(connection: Any, calls: Sequence[Call], *, begin: bool, commit: bool) -> Any:
            """Run what would be one packet in several, because each statement has a cost of its own."""
            answer = None
            if begin:
                await backend.begin_on(connection)
            for call in calls:
                answer = await run(connection, call)
            if commit:
                await backend.commit_on(connection)
            return answer

        backend._run, backend.run_together = run, run_one_by_one
