"""The outbox: events that wait to be published, were published, or are parked because a publisher rejected them."""

from perdure.engine.api.client import Client, storage_of
from perdure.model.records import OutboxEvent, OutboxStatus

PAGE = 100


async def list_events(
    client: Client, status: OutboxStatus | str | None = None, limit: int = PAGE, *, after: str | None = None
) -> list[OutboxEvent]:
    """Return the events of the outbox, oldest first, of one status or all (default).

    `after` is the id of the last event of the page before. A parked event has the status `invalid`.
    """
    return await storage_of(client).list_outbox_events(status, limit, after=after)


async def requeue_event(client: Client, event_id: str) -> bool:
    """Publish a parked event again, after all others of its source. Return False if no event with this id is parked."""
    return await storage_of(client).requeue_outbox_event(event_id)
