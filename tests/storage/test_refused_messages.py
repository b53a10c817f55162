"""Messages that cannot be stored: the error says which part of them."""

import pytest

from perdure.errors import LimitError
from perdure.model.limits import METADATA_MAX
from perdure.storage.stores import SQLStorage


@pytest.mark.parametrize("metadata", [b"{", b"NaN", b'"\xff"', b'"%s"' % (b"x" * METADATA_MAX)])
async def test_metadata_that_cannot_be_stored_is_named(storage: SQLStorage, metadata: bytes) -> None:
    with pytest.raises(LimitError, match=r"^metadata "):
        await storage.publish_to_channel("c", b"{}", metadata)
    assert await storage.get_pending_channel_messages("c") == []
