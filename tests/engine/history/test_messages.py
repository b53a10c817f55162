"""Messages as rows of a history."""

import json

from perdure.engine.history.messages import HEADERS, headers_in
from perdure.model.records import HistoryEvent, HistoryEventType

DATA = json.dumps({"data": 1, "metadata": {HEADERS: {"trace": "t-1"}}}).encode()


def test_only_messages_have_headers() -> None:
    """The result of an activity may look like a message."""
    for kind in (HistoryEventType.CHANNEL_MESSAGE_RECEIVED, HistoryEventType.EVENT_RECEIVED):
        assert headers_in(HistoryEvent("i-1", "receive:1", kind, DATA)) == {"trace": "t-1"}
    assert not headers_in(HistoryEvent("i-1", "1:charge", HistoryEventType.ACTIVITY_COMPLETED, DATA))
