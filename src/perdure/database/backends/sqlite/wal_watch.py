"""Detect commits on SQLite: every commit of any process writes to the write-ahead log, so that file is watched.

This takes no SQL and no open file: opening and closing the log would drop SQLite's locks on it. Linux reports writes
(inotify), so that idling costs nothing; elsewhere the file's stat is polled. Either is seen when the log is written,
which is before the commit is durable and visible. So every hint is followed by others, after growing pauses.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

from perdure.model.records import WakeUp

PAUSE_SEC = 0.002  # between hints while the log is being written
AFTERTHOUGHTS_SEC = (0.002, 0.004, 0.008, 0.016, 0.032)  # before the hints after its last write: an fsync takes time
STAT_SEC = 0.01
MEMORY_SEC = 1.0

SCAN = WakeUp("scan")

_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_MODIFY_OR_GONE = 0x002 | 0x400 | 0x800  # IN_MODIFY, IN_DELETE_SELF, IN_MOVE_SELF


async def watch_log(path: str | None) -> AsyncIterator[WakeUp]:
    """Yield a hint at once, then whenever the log changes; for a database in memory, after fixed pauses."""
    yield SCAN
    if path is None:
        while True:
            await asyncio.sleep(MEMORY_SEC)
            yield SCAN
    with _changes(path) as changed:
        while True:
            await changed.wait()
            while changed.is_set():
                changed.clear()
                yield SCAN
                await asyncio.sleep(PAUSE_SEC)
            for pause in AFTERTHOUGHTS_SEC:
                yield SCAN
                try:
                    async with asyncio.timeout(pause):
                        await changed.wait()
                    break
                except TimeoutError:
                    continue
            else:
                yield SCAN


@contextmanager
def _changes(path: str) -> Iterator[asyncio.Event]:
    """Provide an event that is set whenever the file changes, while the block lasts."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    descriptor = _inotify(path)
    if descriptor is None:
        task = loop.create_task(_poll(path, changed))
        try:
            yield changed
        finally:
            task.cancel()
        return

    def read() -> None:
        with suppress(BlockingIOError):  # an earlier call has read everything
            os.read(descriptor, 65536)
        changed.set()

    loop.add_reader(descriptor, read)
    try:
        yield changed
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _inotify(path: str) -> int | None:
    """Return a descriptor that becomes readable when the file is written, or None without inotify."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(_NONBLOCK_CLOEXEC)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _MODIFY_OR_GONE) < 0:
        os.close(descriptor)
        return None
    return descriptor


async def _poll(path: str, changed: asyncio.Event) -> None:
    """Set the event whenever the file's stat changes."""
    seen = _stat(path)
    while True:
        await asyncio.sleep(STAT_SEC)
        now = _stat(path)
        if now != seen:
            seen = now
            changed.set()


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
