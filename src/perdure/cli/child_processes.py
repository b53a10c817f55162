"""Processes that end with the command that started them, also if that was killed or its terminal was closed.

Each has a session of its own, because Ctrl-C is meant for the command, which then lets them drain. So the system does
not end them. They get one end of a pipe instead: the other one is closed when the command ends.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread


@contextmanager
def pipe_to_children() -> Iterator[int]:
    """Yield the end of a pipe that child processes inherit; nothing is ever written to the other end."""
    for_children, kept = os.pipe()
    try:
        yield for_children
    finally:
        os.close(for_children)
        os.close(kept)


def end_with_parent(pipe: int) -> None:
    """Let this process drain, as at SIGTERM, when the other end of the pipe is closed."""
    Thread(target=_wait_for_end, args=(pipe,), name="perdure parent process", daemon=True).start()


def _wait_for_end(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
