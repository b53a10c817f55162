"""Worker rows with real connections; the test goes on only when the rival is really blocked."""

import asyncio

from perdure.storage.stores import SQLStorage
from tests.races.blocking import blocked


async def test_of_two_first_beats_neither_is_lost(storage: SQLStorage, peer: SQLStorage) -> None:
    async with peer.transaction():
        await peer.beat_worker("w1")
        beat = asyncio.create_task(storage.beat_worker("w1", b'{"n": 1}'))
        await blocked(peer, beat)
    await beat
    assert [(worker.worker_id, worker.info) for worker in await storage.list_workers()] == [("w1", b'{"n": 1}')]
