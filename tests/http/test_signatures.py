"""Signatures of Standard Webhooks on the endpoints that receive events."""

import base64
import hmac
import json
import time
from typing import Any

import httpx
import pytest

from perdure import App
from perdure.http.problems import Problem
from perdure.http.signatures import Signatures
from tests.http.conftest import connected

KEY, OTHER = (b"k" * 24, b"o" * 32)
SECRET, OTHER_SECRET = (f"whsec_{base64.b64encode(key).decode()}" for key in (KEY, OTHER))
EVENT = json.dumps({"specversion": "1.0", "id": "1", "source": "s", "type": "http.go"}).encode()
STRUCTURED = "application/cloudevents+json"


def signature(body: bytes, key: bytes = KEY, id: str = "msg_1", stamp: str = "") -> str:
    signed = f"{id}.{stamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, "sha256").digest()).decode()


def headers(body: bytes, *signatures: str, stamp: float | str | None = None, id: str = "msg_1") -> dict[str, str]:
    at = stamp if isinstance(stamp, str) else str(int(time.time() if stamp is None else stamp))
    given = " ".join(signatures) or signature(body, stamp=at, id=id)
    return {"webhook-id": id, "webhook-timestamp": at, "webhook-signature": given, "content-type": STRUCTURED}


# From the specification: https://github.com/standard-webhooks/standard-webhooks
VECTOR = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def test_signature_of_the_published_example_is_accepted() -> None:
    signatures = Signatures("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", now=lambda: 1614265330.0)
    assert signatures.verify(VECTOR, b'{"test": 2432232314}') == VECTOR["webhook-id"]
    with pytest.raises(Problem, match="does not fit"):
        signatures.verify(VECTOR, b'{"test": 2432232315}')


async def post(http: httpx.AsyncClient, body: bytes, given: dict[str, str], path: str = "/v1/cloudevents") -> int:
    answer = await http.post(path, content=body, headers=given)
    if answer.status_code != 202:
        assert answer.json()["code"] == "http.signature", answer.text
    return answer.status_code


async def test_signed_events_are_accepted_from_anywhere_and_others_refused(app: App) -> None:
    async with connected(app, "http://public.example", webhook_keys=SECRET) as http:
        assert await post(http, EVENT, headers(EVENT)) == 202
        assert await post(http, EVENT, {"content-type": STRUCTURED}) == 401
        assert await post(http, EVENT + b" ", headers(EVENT)) == 401
        assert await post(http, EVENT, {**headers(EVENT), "webhook-id": "msg_2"}) == 401
        assert await post(http, EVENT, {**headers(EVENT), "webhook-timestamp": str(int(time.time()) + 1)}) == 401
        assert await post(http, EVENT, headers(EVENT, "v1,", "v2,x", "nonsense", "v1")) == 401
        assert await post(http, EVENT, headers(EVENT, stamp="soon")) == 401
        assert await post(http, EVENT, headers(EVENT, stamp="9" * 400)) == 401
        assert (await http.get("/v1/runs")).status_code == 403  # a signature is for events only
    async with connected(app, webhook_keys=SECRET) as http:  # also from this machine
        assert await post(http, EVENT, {"content-type": STRUCTURED}) == 401


@pytest.mark.parametrize(("age", "status"), [(290, 202), (-290, 202), (310, 401), (-310, 401)])
async def test_old_requests_cannot_be_replayed(app: App, age: float, status: int) -> None:
    async with connected(app, webhook_keys=SECRET) as http:
        assert await post(http, EVENT, headers(EVENT, stamp=time.time() - age)) == status


async def test_keys_can_be_rotated(app: App) -> None:
    stamp = str(int(time.time()))
    by_both = [signature(EVENT, OTHER, stamp=stamp), signature(EVENT, KEY, stamp=stamp)]
    async with connected(app, webhook_keys=[SECRET]) as http:
        assert await post(http, EVENT, headers(EVENT, *by_both, stamp=stamp)) == 202
        assert await post(http, EVENT, headers(EVENT, by_both[0], stamp=stamp)) == 401
    async with connected(app, webhook_keys=[SECRET, OTHER_SECRET]) as http:
        assert await post(http, EVENT, headers(EVENT, by_both[0], stamp=stamp)) == 202


async def test_repeated_webhook_stores_its_event_once(app: App) -> None:
    body = json.dumps({"type": "http.go", "data": 1}).encode()
    async with connected(app, webhook_keys=SECRET) as http:
        for id in ("msg_1", "msg_1", "msg_2"):
            given: dict[str, Any] = {**headers(body, id=id), "content-type": "application/json"}
            assert await post(http, body, given, "/v1/events") == 202
    assert len(await app._storage.get_pending_channel_messages("http.go")) == 2
