"""Opening the database of a command. Nothing here migrates it: `perdure migrate up` does, and workers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from perdure.cli.apps import codec_of
from perdure.cli.options import Common
from perdure.cli.settings import database_url
from perdure.cli.sqlite_file import require_file
from perdure.engine.api.client import Client
from perdure.storage.stores import open_migrated, open_read_only


@asynccontextmanager
async def reading(common: Common) -> AsyncIterator[Client]:
    """Open a client that can only read."""
    url = database_url(common)
    require_file(url)
    async with open_read_only(url) as storage, Client(storage, codec=codec_of(common)) as client:
        yield client


@asynccontextmanager
async def writing(common: Common) -> AsyncIterator[Client]:
    """Open a client on a database that has all migrations."""
    url = database_url(common)
    require_file(url)
    async with open_migrated(url) as storage, Client(storage, codec=codec_of(common)) as client:
        client.url = url  # a worker for an action on many runs needs connections of its own
        yield client
