"""The whole contract on a storage that encrypts: it behaves as the storage behind it, except for filters on inputs.

It runs on SQLite, and with PERDURE_CODEC=all on every database.
"""

import os
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from perdure.codecs import Compressed, Encrypted, new_key
from perdure.codecs.pipeline import Pipeline
from perdure.model.envelopes import decoding_messages
from perdure.storage.contract import Storage
from perdure.storage.encoding import encoding
from perdure.testing.conformance.suite import *  # noqa: F403
from perdure.testing.conformance.suite import contract_tests
from tests.conftest import BackendDatabase
from tests.support.storages import BACKENDS, Database
from tests.support.storages import shift as shift_storage

DATABASES = BACKENDS if os.environ.get("PERDURE_CODEC") == "all" else ("memory",)

# The database cannot read inputs that are encrypted, so filters on them are refused; `test_refusals.py` checks how.
FILTERS = (
    "input",
    "path",
    "filter_value",
    "false_matches",
    "count_is_exact",
    "lists_what_it_wrote",
    "cannot_parse",
)
for _name in contract_tests():
    if _name.startswith("test_listing_") and any(word in _name for word in FILTERS):
        del globals()[_name]


class EncodingHarness:
    """Opens storages with one codec on one database."""

    def __init__(self, database: Database, pipeline: Pipeline) -> None:
        self._database, self._pipeline = database, pipeline
        self._opened: dict[int, Storage] = {}

    async def open(self) -> Storage:
        behind = await self._database.storage()
        return self._opened.setdefault(id(behind), encoding(behind, self._pipeline))

    def shift_clock(self, storage: Storage, shift: timedelta) -> None:
        shift_storage(storage, shift.total_seconds())

    async def close(self) -> None:
        await self._database.close()


@pytest.fixture(params=DATABASES)
async def harness(request: pytest.FixtureRequest, backend_database: BackendDatabase) -> AsyncIterator[EncodingHarness]:
    pipeline = Pipeline([Compressed(above=100), Encrypted({"k1": new_key()})])
    async with backend_database(request.param) as database:
        with decoding_messages(pipeline.decode):
            yield EncodingHarness(database, pipeline)
