"""`perdure workers`."""

from typing import Annotated

from cyclopts import Parameter

from perdure.cli.opening import reading
from perdure.cli.options import COMMON, WATCHING, Common, Watching
from perdure.cli.output import Column, Output, times
from perdure.cli.watching import repeat
from perdure.inspection import list_workers, worker_document

COLUMNS = (
    Column("id", is_whole=True),
    Column("state", lambda _, worker: "live" if worker["is_live"] else "dead", is_whole=True),
    times("started_at", rank=2),
    times("beat_at", title="heartbeat"),
    Column("lease", lambda _, worker: None if worker["lease_sec"] is None else f"{worker['lease_sec']:g} s"),
    Column("workflows", lambda _, it: "all" if it["workflows"] is None else ", ".join(it["workflows"])),
)


async def workers(
    *,
    live: Annotated[bool, Parameter(negative="", help="Only live workers.")] = False,
    watching: Watching = WATCHING,
    common: Common = COMMON,
) -> None:
    """List the workers with their last heartbeats. A worker that died without notice is listed for a week."""
    async with reading(common) as client:

        async def show(output: Output) -> bool:
            found = [worker for worker in await list_workers(client) if worker.is_live or not live]
            output.listing("workers", map(worker_document, found), COLUMNS)
            return True

        await repeat(watching, common, show)
