"""Single fields that codecs encode and decode: rows of other frameworks, texts, sizes and threads."""

import json
import threading
from pathlib import Path

import pytest

from perdure.codecs import Compressed, Encrypted, FileBlobs, Offloaded, new_key
from perdure.codecs.pipeline import Pipeline
from perdure.errors import LimitError
from perdure.model.envelopes import PREFIX, message_place
from perdure.model.limits import PAYLOAD_MAX
from perdure.model.records import HistoryEvent, HistoryEventType
from perdure.storage.encoding import encoding
from perdure.storage.encoding.fields import Fields
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import leased

ENCRYPTED = Pipeline([Encrypted({"k": new_key()})])
COMPRESSED = Pipeline([Compressed(above=500)])


def test_binary_row_without_bytes_is_returned_as_it_is() -> None:
    row = HistoryEvent("i-1", "s:1", "ActivityCompleted", None, None, "binary")
    fields = Fields(ENCRYPTED)
    assert fields.decoded_event(fields.encoded_event(row)) == row


@pytest.mark.parametrize("key", ["channel", "channel_name"])
def test_message_is_decoded_by_either_name_of_its_channel(key: str) -> None:
    """Compatible frameworks write one of the names only."""
    data = ENCRYPTED.encode(b'{"n":1}', message_place("news"), "data")
    received = b'{"id": 1, "%s": "news", "data": %s}' % (key.encode(), data)
    row = HistoryEvent("i-1", "receive:1", HistoryEventType.CHANNEL_MESSAGE_RECEIVED, received)
    found = Fields(ENCRYPTED).decoded_event(row)
    assert json.loads(found.event_data or b"") == {"id": 1, key: "news", "data": {"n": 1}}


@pytest.mark.parametrize(
    ("text", "plain"),
    [("declined", True), (f"{PREFIX} like an envelope", False), ("x" * 1000, False), (PREFIX + "x" * 1000, False)],
)
def test_text_that_no_codec_changes_is_stored_as_it_is(text: str, plain: bool) -> None:
    """Unless it could be taken for one that a codec has changed."""
    fields = Fields(COMPRESSED)
    stored = fields.encoded_text(text, "place", "reason")
    assert (stored == text) is plain
    assert fields.decoded_text(stored, "place") == text


async def test_error_of_an_event_that_is_too_large_is_named(storage: SQLStorage) -> None:
    encoded, error = encoding(storage, ENCRYPTED), "x" * PAYLOAD_MAX  # and two quotation marks
    with pytest.raises(LimitError, match=r"^error "):
        await encoded.mark_outbox_event_failed("e-1", error=error)
    with pytest.raises(LimitError, match=r"^error "):
        await encoded.increment_outbox_attempts("e-1", error=error)


class WatchedBlobs(FileBlobs):
    """Notes the threads that store blobs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.threads: list[threading.Thread] = []

    def put(self, name: str, data: bytes) -> None:
        self.threads.append(threading.current_thread())
        super().put(name, data)


async def test_large_value_between_small_ones_does_not_block_the_event_loop(
    storage: SQLStorage, tmp_path: Path
) -> None:
    blobs = WatchedBlobs(tmp_path / "blobs")
    lease = await leased(storage, "i-1")
    sizes = (1, 1000, 1)
    events = [HistoryEvent("i-1", f"s:{n}", "ActivityCompleted", b"1" * size) for n, size in enumerate(sizes)]
    answers = await encoding(storage, Pipeline([Offloaded(blobs, above=500)])).append_histories(
        [(event, lease) for event in events]
    )
    assert all(isinstance(answer, int) for answer in answers)
    assert len(blobs.threads) == 1
    assert threading.current_thread() not in blobs.threads
