"""The endpoints for messages and events."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.engine.api import messages
from perdure.errors import SerializationError
from perdure.http.api import API, answer, path_of, route, run_id_of
from perdure.http.bodies import Query, check_media_type, media_type, parse, read_body, read_json
from perdure.http.cloud_events import Received, read_events
from perdure.http.documents import DirectMessage, EventBody, MessageBody, StoredDocument
from perdure.http.problems import Problem
from perdure.model import headers

WEBHOOK_SOURCE = "webhook"  # the source of a signed event that has neither source nor id


def routes(api: API) -> Sequence[Route]:
    """Return the routes of messages and events."""
    return [
        route(api, "POST", "/v1/channels/{channel}/messages", publish_message),
        route(api, "POST", "/v1/runs/{id}/messages", send_message),
        route(api, "POST", "/v1/events", send_event, signed=True),
        route(api, "POST", "/v1/cloudevents", receive_cloud_events, signed=True),
    ]


async def publish_message(api: API, request: Request) -> Response:
    """Send a message to all runs that are subscribed to a channel."""
    Query(request, ())
    channel = path_of(request, "channel")
    body = await read_json(request, MessageBody, api.max_body)
    await api.client.publish(channel, body.data, metadata=body.metadata)
    return answer(StoredDocument(1), 202)


async def send_message(api: API, request: Request) -> Response:
    """Send a message to one run."""
    Query(request, ())
    id, body = run_id_of(request), await read_json(request, DirectMessage, api.max_body)
    await api.client.send_to(id, body.channel, body.data, metadata=body.metadata)
    return answer(StoredDocument(1), 202)


async def send_event(api: API, request: Request) -> Response:
    """Send an event to the runs that wait for its type, or to one run, and start those workflows that it starts."""
    Query(request, ())
    body = await read_body(request, api.max_body)
    signed_as = api.signatures.verify(request.headers, body) if api.signatures else None
    check_media_type(request)
    event: EventBody = parse(body, EventBody)
    id, source = event.id, event.source
    if id is None and signed_as is not None:  # a request that is sent again has the same id
        id, source = signed_as, source or WEBHOOK_SOURCE
    outgoing = messages.event(
        event.type,
        event.data,
        to=event.to,
        source=source,
        id=id,
        subject=event.subject,
        outbox_stored=api.client.outbox_stored,
        headers=headers.checked(event.headers, "the event"),
    )
    await api.client.send(outgoing)
    return answer(StoredDocument(1), 202)


async def receive_cloud_events(api: API, request: Request) -> Response:
    """Store CloudEvents, all of them in one transaction, and start the workflows that they start."""
    to = Query(request, ("to",)).text("to")
    body = await read_body(request, api.max_body)
    if api.signatures:
        api.signatures.verify(request.headers, body)
    events = read_events(request.headers, media_type(request), body)
    outgoing = [_outgoing(each, to) for each in events]
    if outgoing:
        await api.client.send(*outgoing)
    return answer(StoredDocument(len(outgoing)), 202)


def _outgoing(event: Received, to: str | None) -> messages.Outgoing:
    """Return a received event as it is stored; not in the outbox, which is for events that are sent from here."""
    if to is not None and event.to not in (None, to):
        raise Problem(422, f"event {event.id!r} is for run {event.to!r}, and the query parameter `to` names {to!r}")
    try:
        return messages.event(
            event.type,
            event.data,
            to=event.to if to is None else to,
            source=event.source,
            id=event.id,
            subject=event.subject,
            time=event.time,
            extensions=event.extensions,
            headers=event.headers,
        )
    except SerializationError as error:
        raise Problem(422, f"event {event.id!r}: {error}", code=error.code) from None
