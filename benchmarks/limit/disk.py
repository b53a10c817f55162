"""The disk: how often it can sync what was appended to a file."""

import os
import tempfile
import time

from benchmarks.engine.measures import Figures

BLOCK = b"x" * 4096


async def syncs(url: str, size: int) -> Figures:
    """Append a block to a file and sync it, so many times; the folder is that of the throwaway databases."""
    with tempfile.TemporaryFile(buffering=0) as file:
        before = time.perf_counter()
        for _ in range(size):
            file.write(BLOCK)
            os.fdatasync(file.fileno())
        return {"value": size / (time.perf_counter() - before)}
