"""Define what a storage's author provides, and make the fixtures of the tests from it."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Protocol

import pytest_asyncio

from perdure.storage.contract import Storage
from perdure.testing.conformance.tools import Shift


class Harness(Protocol):
    """Open the storages of one test.

    Every test gets a harness of its own, from the fixture `harness`. Its database is empty before the test.
    """

    async def open(self) -> Storage:
        """Return an open storage on the database of this test.

        A test calls this again for a second storage on the same data, as another process would open it. If only one
        storage can use a database, return the first one again.
        """

    def shift_clock(self, storage: Storage, shift: timedelta) -> None:
        """Set how far the clock that this storage's operations use is ahead of the real time.

        `shift` is counted from the real time, not from the previous shift. It concerns this storage only.
        """

    async def close(self) -> None:
        """Close the storages and remove the database. This is called once, after the test."""


@pytest_asyncio.fixture
async def opened_harness(harness: Harness) -> AsyncIterator[Harness]:
    """Close the harness after the test."""
    try:
        yield harness
    finally:
        await harness.close()


@pytest_asyncio.fixture
async def storage(opened_harness: Harness) -> Storage:
    """Open the storage under test."""
    return await opened_harness.open()


@pytest_asyncio.fixture
async def peer(storage: Storage, opened_harness: Harness) -> Storage:
    """Open a second storage on the same data."""
    return await opened_harness.open()


@pytest_asyncio.fixture
async def shift(opened_harness: Harness) -> Shift:
    """Return the function that moves the clock of a storage to so many seconds ahead of the real time."""
    return lambda storage, seconds: opened_harness.shift_clock(storage, timedelta(seconds=seconds))
