"""`perdure outbox list` and `perdure outbox retry`."""

from typing import Annotated

from cyclopts import Parameter

from perdure.cli import exits
from perdure.cli.opening import reading, writing
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Column, Output, times
from perdure.engine.api.client import Client
from perdure.inspection import event_document, list_events, requeue_event
from perdure.model.records import OutboxStatus

COLUMNS = (
    Column("id", is_whole=True),
    Column("type"),
    Column("source", rank=3),
    Column("status", is_whole=True),
    Column("attempts", rank=2),
    times("created_at"),
    Column("last_error"),
)
PARKED = OutboxStatus.INVALID
PAGE = 1000


async def show(
    *,
    status: Annotated[
        OutboxStatus | None, Parameter(show_default=False, name_transform=str.lower, help="invalid means parked.")
    ] = None,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="Maximum number of events.")] = 50,
    after: Annotated[str | None, Parameter(show_default=False, help="Continue after the event with this id.")] = None,
    common: Common = COMMON,
) -> None:
    """List events of the outbox, oldest first."""
    if not 1 <= limit < PAGE:
        raise exits.UsageError(f"--limit must be 1 to {PAGE - 1}, not {limit}")
    async with reading(common) as client:
        found = await list_events(client, status, limit + 1, after=after)
    more = found[limit - 1].event_id if len(found) > limit else None
    Output(common).listing("events", map(event_document, found[:limit]), COLUMNS, next=more)


async def retry(
    *ids: Annotated[str, Parameter(help="Ids of parked events.")],
    all: Annotated[bool, Parameter(negative="", help="All parked events.")] = False,
    common: Common = COMMON,
) -> int:
    """Publish parked events again, after all others of their source."""
    if bool(ids) == all:
        raise exits.UsageError("give the ids of parked events, or --all")
    async with writing(common) as client:
        wanted = list(ids) or await _parked(client)
        found = [{"id": id, "is_requeued": await requeue_event(client, id)} for id in wanted]
    columns = [Column("id", is_whole=True), Column("requeued", lambda _, each: "yes" if each["is_requeued"] else "no")]
    Output(common).listing("events", found, columns, empty="no event is parked")
    lost = [str(each["id"]) for each in found if not each["is_requeued"]]
    if lost and not all:
        raise exits.NotFoundError(f"not parked: {', '.join(lost)}; see `perdure outbox list --status invalid`")
    return exits.OK


async def _parked(client: Client) -> list[str]:
    """Return the ids of all events that are parked now; one that is parked again later is not among them."""
    ids: list[str] = []
    while page := await list_events(client, PARKED, PAGE, after=ids[-1] if ids else None):
        ids += [event.event_id for event in page]
    return ids
