"""The short form of `python -m tests.dashboard.scale`: every page works among many runs, with few and small reads."""

from typing import Any

import pytest

from perdure import Client
from perdure.model.records import ListInstancesOptions, PaginationResult
from tests.conftest import BackendDatabase
from tests.dashboard import scale
from tests.support.databases import DATABASES

READS_MAX = 2 * 48  # of a page and its JSON; a list has fifty rows, so a read for each of them is noticed


@pytest.mark.parametrize("kind", DATABASES)
async def test_pages_need_few_reads_among_many_runs(kind: str, backend_database: BackendDatabase) -> None:
    async with backend_database(kind) as database:
        await scale.fill(database.url, 2_000)
        storage = await database.storage()
        backend, reads = storage._backend, 0
        read, list_instances = backend.read, storage.list_instances
        reads_payloads, with_payloads = False, list[str]()

        async def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*args, **kwargs)

        async def noting(options: ListInstancesOptions) -> PaginationResult:
            nonlocal reads_payloads
            reads_payloads = reads_payloads or options.payloads
            return await list_instances(options)

        backend.read = counting  # type: ignore[method-assign]
        storage.list_instances = noting  # type: ignore[assignment, method-assign]
        found = dict[str, int]()
        async with Client(storage) as client:
            reads = 0
            async for each in scale.measure(client, times=1):
                found[each.path], reads = reads, 0
                if reads_payloads and "stuck" not in each.path and each.path.startswith("/runs?"):
                    with_payloads.append(each.path)
                reads_payloads = False
    assert list(found)[: len(scale.PAGES)] == list(scale.PAGES)
    assert with_payloads == [], "a list reads inputs and results"
    assert {path: count for path, count in found.items() if count > READS_MAX} == {}
