"""Reading the history of a run from its database, and exporting it to a file."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from perdure.codecs.pipeline import Codecs, Pipeline
from perdure.database.secret import Secret
from perdure.engine import starting
from perdure.engine.api import current
from perdure.engine.api.client import Client, storage_of
from perdure.engine.api.handles import RunHandle, runs_of
from perdure.engine.api.history_rows import rows_of
from perdure.engine.history.records import check_row
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.errors import EngineError
from perdure.model import headers
from perdure.model.envelopes import check_readable
from perdure.model.records import RegisteredWait, WorkflowInstance
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage
from perdure.storage.encoding import encoding
from perdure.storage.stores import open_read_only
from perdure.testing.history import History, HistoryRow
from perdure.testing.redaction import Redact, redacted

Database = str | Storage

T = TypeVar("T")

TRIES = 100  # how often a history is read again because its run recurred or changed its status meanwhile
_GENERATION = re.compile(r"~\d+\Z")


async def history_of(
    run: RunHandle[Any] | str,
    *,
    redact: Redact | None = None,
    database: Database | None = None,
    codec: Codecs | None = None,
) -> History:
    """Return the recorded history of a run, given by its handle or id.

    - `redact`: see `export_history` (default: values are kept).
    - `database`: a URL or an open storage (default: that of the handle, or of the open App or Client). A URL is opened
      read-only.
    - `codec`: the codec of the runs in `database`, as `App(codec=)` (default: that of the open App or Client).

    The id of a generation that has ended, `<id>~<n>`, returns the history of the run before its n-th `recur()`. Raises
    `RunNotFoundError` if the run does not exist.
    """
    async with _opened(run, database := hidden(database)) as opened:
        storage = opened if codec is None else encoding(opened, Pipeline(codec, "history_of(codec=)"))
        found = await read_recorded(storage, run if isinstance(run, str) else run.id)
    return found if redact is None else redacted(found, redact, WORKFLOWS.get(found.workflow))


async def export_history(
    run: RunHandle[Any] | str,
    path: str | Path,
    *,
    redact: Redact | None = None,
    database: Database | None = None,
    codec: Codecs | None = None,
) -> History:
    """Write the recorded history of a run to a file, for `replay()` and `@pytest.mark.replay`, and return it.

    `redact` is called with the place and the value of every string, number and boolean, and returns the value to write:
    `redact("input.order.email", "ann@example.org")`. Places are `input`, `headers`, `result`, `state` and the ids of
    rows, such as `2:charge.card`. Return a value of the same type that leads to the same steps, and equal values for
    equal ones. Stack traces and messages that are not JSON are left out then. Run ids, names of channels, names of
    error classes, keys of objects, and values of `now()`, `random()` and `uuid4()` are kept.

    If the workflow is defined in this process, the digests of its calls are made again, so a later replay still
    compares arguments; raises `SerializationError` if the redacted values lead the code elsewhere. Otherwise a replay
    compares the steps and not the arguments of calls that may depend on a redacted value.

    The file has plain values, also of a run that is stored with a codec: redact what must not leave the database.
    """
    history = await history_of(run, redact=redact, database=(database := hidden(database)), codec=codec)
    history.save(path)
    return history


def hidden(database: T) -> T:
    """Return a database whose URL, with a password, does not show in tracebacks."""
    return cast(T, Secret(database)) if isinstance(database, str) else database


@asynccontextmanager
async def _opened(run: RunHandle[Any] | str, database: Database | None) -> AsyncIterator[Storage]:
    if isinstance(database, str):
        async with open_read_only(database) as storage:
            yield storage
    elif database is not None:
        yield database
    else:
        runs = None if isinstance(run, str) else runs_of(run)
        yield storage_of(runs if isinstance(runs, Client) else current.current_app())


async def read_recorded(storage: Storage, id: str) -> History:
    """Return the history of a run as it is stored now. Raises `RunNotFoundError` if the run does not exist."""
    for _ in range(TRIES):
        row = await _instance(storage, id)
        rows = [each async for each in _rows(storage, row)]
        waits = await storage.get_waits([id])
        again = await _instance(storage, id)
        if (again.status, again.continued_from) == (row.status, row.continued_from):
            return _history(again, rows, waits)
    raise EngineError(f"run {id!r} changed each time its history was read: try again when it is less busy")


async def _instance(storage: Storage, id: str) -> WorkflowInstance:
    row = await storage.get_instance(id)
    if row is None:
        raise starting.not_found(id)
    check_readable(row.input_data, f"the input of run {id!r}")
    check_readable(row.output_data, f"the result of run {id!r}")
    return row


async def _rows(storage: Storage, row: WorkflowInstance) -> AsyncIterator[HistoryRow]:
    async for event in rows_of(storage, row):
        check_row(event)
        yield HistoryRow.of(event)


def _history(row: WorkflowInstance, rows: list[HistoryRow], waits: list[RegisteredWait]) -> History:
    recurred = row.status is WorkflowStatus.RECURRED
    return History(
        row.workflow_name,
        _GENERATION.sub("", row.instance_id) if recurred else row.instance_id,  # the id that the body had
        row.status,
        json.loads(row.input_data),
        tuple(rows),
        None if row.output_data is None else json.loads(row.output_data),
        row.started_at,
        row.continued_from,
        tuple(waits),
        headers.decode(row.headers),
    )
