"""Starts in a transaction of the caller: the run begins if and when that transaction commits.

`perdure.integrations` registers how to recognise a caller's connection.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from perdure.codecs.pipeline import Pipeline
from perdure.engine.api import current
from perdure.engine.api.handles import IN_OPEN_APP, Runs
from perdure.engine.interception import Interception
from perdure.engine.starting import StartRequest
from perdure.errors import ConfigurationError, EngineError

T = TypeVar("T")


class CallerConnection(Protocol):
    """A connection of the caller."""

    blocking: bool

    @property
    def dialect(self) -> str:
        """Return the kind of database: sqlite, postgresql or mysql."""

    def use_schema(self, schema: str) -> None:
        """Use the tables of this schema, on PostgreSQL."""

    def use_codec(self, pipeline: Pipeline | None) -> None:
        """Encode what is written with these codecs."""

    async def start(self, request: StartRequest, interception: Interception | None = None) -> str:
        """Write a start into the open transaction and return the id; never suspend if the connection is blocking."""


class SyncDatabase(Protocol):
    """What a start on a blocking connection needs of a SyncClient."""

    dialect: str
    pipeline: Pipeline | None
    interception: Interception | None

    def schema(self) -> str:
        """Return the schema that holds the tables, on PostgreSQL."""


Recognise = Callable[[object], CallerConnection]


def _recognise_nothing(connection: object) -> CallerConnection:
    raise ConfigurationError("in_transaction= needs perdure.integrations, which is not imported")


_recognise: Recognise = _recognise_nothing


def recognise_with(recognise: Recognise) -> None:
    """Register the function that returns the wrapper of a caller's connection, or raises `ConfigurationError`."""
    global _recognise
    _recognise = recognise


async def start_in(connection: object, request: StartRequest) -> tuple[Runs, str]:
    """Write a start into the open transaction of an asynchronous connection."""
    caller = _recognise(connection)
    if caller.blocking:
        raise TypeError(_use(connection, "a blocking connection", "start_sync(…)"))
    runs, interception = _open_app(caller)
    return runs, await caller.start(request, interception)


def start_in_sync(connection: object, request: StartRequest, client: SyncDatabase | None) -> str:
    """Write a start into the open transaction of a blocking connection and return the id of the run.

    The connection must be to the database of the client or, without one, of the open app, if there is one.
    """
    caller = _recognise(connection)
    if not caller.blocking:
        raise TypeError(_use(connection, "an async connection", "`await start(…)`"))
    if client is None:
        _, interception = _open_app(caller)
    else:
        _check_dialect(caller, client.dialect, "the SyncClient")
        caller.use_schema(client.schema())
        caller.use_codec(client.pipeline)
        interception = client.interception
    return _run_at_once(caller.start(request, interception))


def _use(connection: object, kind: str, call: str) -> str:
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    return f"the {name} given as in_transaction= is {kind}: use {call} with it"


def _open_app(caller: CallerConnection) -> tuple[Runs, Interception | None]:
    """Return what the handle queries, and its interceptors: the open app; the connection must fit its database."""
    try:
        app = current.current_app()
    except EngineError:
        return IN_OPEN_APP, None
    _check_dialect(caller, app.dialect(), "the app")
    caller.use_schema(app.schema())
    caller.use_codec(app.pipeline)
    return app, app.interception


def _check_dialect(caller: CallerConnection, ours: str | None, owner: str) -> None:
    if ours != caller.dialect:
        raise EngineError(
            f"the connection given as in_transaction= is one of {caller.dialect}, but {owner}'s database is {ours}: "
            f"start the run in the database that {owner} uses"
        )


def _run_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise AssertionError("the coroutine of a blocking connection suspended")
