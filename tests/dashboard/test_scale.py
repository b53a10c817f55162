"""The short form of `python -m tests.dashboard.scale`: every page works among many runs, with few reads."""

from typing import Any

import pytest

from perdure import Client
from tests.conftest import BackendDatabase
from tests.dashboard import scale
from tests.support.databases import DATABASES

READS_MAX = 40  # of one page; a list has fifty rows, so a read for each of them is noticed


@pytest.mark.parametrize("kind", DATABASES)
async def test_pages_need_few_reads_among_many_runs(kind: str, backend_database: BackendDatabase) -> None:
    async with backend_database(kind) as database:
        await scale.fill(database.url, 2_000)
        storage = await database.storage()
        backend, reads = storage._backend, 0
        read = backend.read

        async def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*args, **kwargs)

        backend.read = counting  # type: ignore[method-assign]
        found = dict[str, int]()
        async with Client(storage) as client:
            reads = 0
            async for each in scale.measure(client, times=1):
                found[each.path], reads = reads, 0
    assert list(found) == list(scale.PAGES)
    assert {path: count for path, count in found.items() if count > READS_MAX} == {}
