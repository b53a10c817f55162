"""On SQLite, other frameworks write times in other formats at the same time; paging must still end."""

from pathlib import Path

import pytest

from perdure.model.records import ListInstancesOptions
from perdure.storage.stores import open_storage

TIMES = [
    "2026-03-01 12:00:00",
    "2026-03-01 12:00:00.000000",
    "2026-03-01 12:00:01",
    "2026-03-01T12:00:00Z",
    "2026-03-01T12:00:00.123456789Z",
    "2026-03-01T21:00:00+09:00",
    "2026-03-01 12:00:00.500",
]


@pytest.mark.parametrize("limit", [1, 2, 3, 20])
async def test_pages_list_every_instance_once_and_end(tmp_path: Path, limit: int) -> None:
    async with open_storage(f"sqlite:///{tmp_path / 'family.db'}") as storage:
        await storage.db().execute(
            "INSERT INTO workflow_definitions (workflow_name, source_hash, source_code) VALUES ('wf', '', '')"
        )
        for n, at in enumerate(TIMES * 2):
            await storage.db().execute(
                "INSERT INTO workflow_instances (instance_id, workflow_name, source_hash, owner_service, framework, "
                "started_at, input_data) VALUES (?, 'wf', '', '', 'python', ?, '{}')",
                f"i-{n:02}",
                at,
            )
        found, token = [], None
        for _ in range(len(TIMES) * 2):
            options = ListInstancesOptions(limit=limit, framework="python", page_token=token)
            page = await storage.list_instances(options)
            found += [instance.instance_id for instance in page.instances]
            token = page.next_page_token
            if token is None:
                break
    stored = {f"i-{n:02}": at for n, at in enumerate(TIMES * 2)}
    assert found == sorted(stored, key=lambda key: (stored[key], key), reverse=True)
