"""Start a run in the caller's transaction: it begins if and when that transaction commits.

Everything is written under a savepoint, on the caller's connection alone: after an error the caller's transaction
continues unchanged. The driver's own errors are not translated.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from perdure.database.dialects import PostgresDriver
from perdure.database.operation import Operation, Work
from perdure.database.statements import Call
from perdure.engine.api import current
from perdure.engine.api.handles import RunHandle, Runs
from perdure.engine.api.run_info import RunInfo
from perdure.engine.api.step_info import HistoryEntry, StepInfo
from perdure.engine.history.codec import encode
from perdure.engine.starting import BEGIN, DEADLINE, StartRequest, first_generation, new_id
from perdure.errors import EngineError, InstanceExistsError, SchemaError, StorageError, TransactionError
from perdure.integrations.foreign import Foreign, at_once, drive, recognised
from perdure.model import names
from perdure.model.records import HistoryEvent, TimerSubscription, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage import history, instances, timers, wakeups
from perdure.storage.sql import statements
from perdure.storage.stores import SQLStorage

T = TypeVar("T")
R = TypeVar("R")

DEFINE_SEC = 1.0

S = statements(
    "starts",
    """
-- schemas
-- PostgreSQL: the schemas that have our tables, the best first: as `find_schema` chooses, then any other (2).
SELECT n.nspname::text, CASE WHEN n.nspname = 'perdure' THEN 0
                             WHEN n.nspname = 'public' OR n.nspname = ANY (current_schemas(false)) THEN 1 ELSE 2 END
  FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
 WHERE t.relname = 'perdure_waits' AND t.relkind IN ('r', 'p')
 ORDER BY 2, array_position(current_schemas(false), n.nspname), 1

-- mark
SAVEPOINT perdure_start

-- keep
RELEASE SAVEPOINT perdure_start

-- undo
ROLLBACK TO SAVEPOINT perdure_start

-- find
SELECT instance_id, framework, workflow_name, input_data, continued_from
  FROM workflow_instances WHERE instance_id = :instance_id

-- find [mysql]
-- Differs because bytes are the same in every character set that a session may use.
SELECT CAST(instance_id AS BINARY), framework, CAST(workflow_name AS BINARY), CAST(input_data AS BINARY),
       CAST(continued_from AS BINARY)
  FROM workflow_instances WHERE instance_id = :instance_id

-- find_again
-- After an insert that found the id taken.
SELECT instance_id, framework, workflow_name, input_data, continued_from
  FROM workflow_instances WHERE instance_id = :instance_id

-- find_again [mysql]
-- Differs because the transaction's snapshot may be older than the row: only a locking read sees it.
SELECT CAST(instance_id AS BINARY), framework, CAST(workflow_name AS BINARY), CAST(input_data AS BINARY),
       CAST(continued_from AS BINARY)
  FROM workflow_instances WHERE instance_id = :instance_id LOCK IN SHARE MODE

-- find_first
-- The input of the first generation of a run, while it is kept.
SELECT input_data FROM workflow_instances WHERE instance_id = :instance_id AND status = 'recurred'

-- find_first [mysql]
-- Differs like find.
SELECT CAST(input_data AS BINARY) FROM workflow_instances WHERE instance_id = :instance_id AND status = 'recurred'

-- defined
-- The known versions of some workflows.
SELECT workflow_name, source_hash FROM workflow_definitions WHERE workflow_name {any(:names)}

-- define
-- A definition. On MySQL it is inserted before the instance: in a session with REPEATABLE READ, checking whether it
-- exists locks the gap where it will be, and no other transaction could insert a definition there until the commit.
INSERT INTO workflow_definitions (workflow_name, source_hash, source_code, created_at)
VALUES (:workflow_name, :source_hash, :source_code, {now}) {on_conflict_do_nothing(workflow_name, source_hash)}
""",
)

_NO_TABLES = (
    "the connection given as in_transaction= is to a database without perdure's tables: open an App or Client on that "
    "database once to create them, or give a connection to the database of your App"
)
_MISSING_TABLE = re.compile(r"no such table: workflow_|workflow_\w+' doesn't exist")  # of SQLite and MySQL


async def start_in(connection: object, request: StartRequest, decode: Callable[[bytes], R]) -> RunHandle[R]:
    """Write a start into the open transaction of an asynchronous connection."""
    foreign = recognised(connection)
    if foreign.blocking:
        raise TypeError(_use(connection, "a blocking connection", "start_sync(…)"))
    return RunHandle((_runs(foreign), await _start(foreign, request)), decode)


def start_in_sync(connection: object, request: StartRequest, decode: Callable[[bytes], R]) -> RunHandle[R]:
    """Write a start into the open transaction of a blocking connection."""
    foreign = recognised(connection)
    if not foreign.blocking:
        raise TypeError(_use(connection, "an async connection", "`await start(…)`"))
    return RunHandle((_runs(foreign), at_once(_start(foreign, request))), decode)


def _use(connection: object, kind: str, call: str) -> str:
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    return f"the {name} given as in_transaction= is {kind}: use {call} with it"


def _runs(foreign: Foreign) -> Runs:
    """Return what the handle queries: the open app, whose database must be of the connection's kind."""
    try:
        app = current.current_app()
    except EngineError:
        return LATER
    ours, theirs = app.dialect(), foreign.driver.name
    if ours != theirs:
        raise EngineError(
            f"the connection given as in_transaction= is one of {theirs}, but the app's database is {ours}: "
            "start the run in the database that the app uses"
        )
    foreign.use_schema(app.schema())
    return app


async def _start(foreign: Foreign, request: StartRequest) -> str:
    if not foreign.in_transaction():
        raise TransactionError(
            "the connection given as in_transaction= has no open transaction, so no commit would start the run: "
            f"{foreign.how}"
        )
    operation = _marked(_beginning(request, foreign.driver.name))
    await foreign.prepare()
    if isinstance(foreign.driver, PostgresDriver) and not foreign.driver.schema:
        foreign.use_schema(await _schema(foreign))
    try:
        return await drive(foreign, operation)
    except Exception as error:
        if _MISSING_TABLE.search(str(error)):
            raise SchemaError(_NO_TABLES) from error
        raise


async def _schema(foreign: Foreign) -> str:
    """Return the schema of our tables on PostgreSQL, for a process without an open app or client."""
    found = await foreign.run(S.schemas())
    if not found:
        raise SchemaError(_NO_TABLES)
    if len(found) > 1 and found[0][1] == 2:
        names = ", ".join(repr(name) for name, _ in found)
        raise SchemaError(
            "the connection given as in_transaction= is to a database with perdure's tables in several schemas, "
            f"{names}: open a Client with ?schema= in its URL to choose one"
        )
    return str(found[0][0])


def _marked(operation: Operation[T]) -> Operation[T]:
    """Run the operation under a savepoint."""
    yield S.mark()
    try:
        result = yield from operation
    except GeneratorExit:
        raise
    except BaseException:
        with suppress(Exception):  # the savepoint may have ended with the transaction
            yield S.undo()
            yield S.keep()
        raise
    yield S.keep()
    return result


def _beginning(request: StartRequest, dialect: str) -> Operation[str]:
    """Store the run, or find the one that has its id."""
    names.run_id(request.id)
    later = request.at is not None or request.after is not None
    instance = WorkflowInstance(
        new_id() if request.id is None else request.id,
        request.workflow_name,
        request.input_data,
        status=WorkflowStatus.WAITING_FOR_TIMER if later else WorkflowStatus.RUNNING,
        source_hash=request.source_hash,
        owner_service="perdure",
    )
    params = instances._creation(instance, None, 1, "")
    if request.id is not None and (yield from _is_there(request, S.find(instance_id=request.id))):
        return request.id
    if dialect == "mysql":
        yield S.define(**{name: params[name] for name in ("workflow_name", "source_hash", "source_code")})
    try:
        yield from instances.create(params)
    except InstanceExistsError:
        if request.id is None or not (yield from _is_there(request, S.find_again(instance_id=request.id))):
            raise
        return request.id
    yield from _times(instance.instance_id, request)
    if dialect == "postgresql":
        yield _news(instance, later)
    return instance.instance_id


def _is_there(request: StartRequest, find: Call) -> Operation[bool]:
    """Return whether the run exists; raise `InstanceExistsError` if the id belongs to a different run."""
    rows = yield find
    if not rows or rows[0][0] != request.id:
        return False
    id, framework, name, data, recurred = rows[0]
    inputs = [data.encode()]
    if recurred is not None:
        first = yield S.find_first(instance_id=first_generation(str(request.id)))
        inputs.append(first[0][0].encode() if first else request.input_data)
    if (error := request.differs_from(id, framework, name, inputs)) is not None:
        raise error
    return True


def _times(instance_id: str, request: StartRequest) -> Operation[None]:
    """Store the timers of a run that begins later, or has a deadline."""
    if request.timeout is not None:
        event = HistoryEvent(
            instance_id, DEADLINE, "Deadline", encode({"timeout_sec": request.timeout.total_seconds()})
        )
        answer = yield from history.append(history.event_params(event), None)
        if isinstance(answer, StorageError):
            raise answer
    if request.at is not None or request.after is not None:
        timer = TimerSubscription(instance_id, BEGIN, request.at, BEGIN)
        yield timers.S.register(**timers._params(timer, request.after))


def _news(instance: WorkflowInstance, later: bool) -> Call:
    """Notify PostgreSQL's listeners when the transaction commits."""
    about: wakeups.Payload = {"instance_id": instance.instance_id, "timer_id": BEGIN}
    if not later:
        about = wakeups.resumable(instance.instance_id, instance.workflow_name, "created")
    kind = wakeups.TIMER if later else wakeups.RESUMABLE
    return wakeups.S.notify(kind=kind, payload=json.dumps(about, ensure_ascii=False))


async def define(storage: SQLStorage, versions: Mapping[str, str]) -> None:
    """Store workflow definitions, by name and hash, before a caller starts a run in a transaction of its own.

    Otherwise that transaction would insert the definition, and every other start of the workflow would wait for its
    commit.
    """
    with suppress(TimeoutError, StorageError):  # such a transaction may be open, and the app does not wait for it
        async with asyncio.timeout(DEFINE_SEC):
            await storage._run(Work(lambda: _define(versions), repeat=True))


def _define(versions: Mapping[str, str]) -> Operation[None]:
    known = {tuple(row) for row in (yield S.defined(names=list(versions)))}
    for name, source_hash in sorted(versions.items()):
        if (name, source_hash) not in known:
            yield S.define(workflow_name=name, source_hash=source_hash, source_code="")


class Later:
    """Query the app that is open at the time of the call; for handles created without one."""

    async def finished(self, instance_id: str, timeout: timedelta | None) -> bytes:
        return await current.current_app().finished(instance_id, timeout)

    async def info(self, instance_id: str) -> RunInfo:
        return await current.current_app().info(instance_id)

    async def steps(self, instance_id: str) -> list[StepInfo]:
        return await current.current_app().steps(instance_id)

    async def state(self, instance_id: str) -> Any:
        return await current.current_app().state(instance_id)

    async def cancel(self, instance_id: str, reason: str = "") -> None:
        await current.current_app().cancel(instance_id, reason)

    def history(self, instance_id: str) -> AsyncIterator[HistoryEntry]:
        return current.current_app().history(instance_id)


LATER = Later()
