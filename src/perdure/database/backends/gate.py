"""Queue the processes that write to one SQLite file, in a fair order.

SQLite's busy handler polls, and the process that polls at the right moment wins: of eight writers one made 1 commit
while another made 7,575. Here writers queue at two file locks, a turnstile and the gate itself. A writer that leaves
the gate has to pass the turnstile again, which the next writer already holds, so no writer overtakes another twice.
The locks belong to open files, so the kernel releases them when a process dies, for whatever reason.

The locks are on files of their own. Opening and closing the database's files would drop SQLite's locks on them.
"""

import os
import sys
from contextlib import nullcontext

if sys.platform == "win32":

    class Gate(nullcontext[None]):
        """Do nothing: without these file locks SQLite's busy handler alone decides, which is unfair but correct."""

        def close(self) -> None:
            return

else:
    import fcntl

    class Gate:
        """Admit one writer among all processes; entering blocks the thread."""

        def __init__(self, path: str) -> None:
            self._turnstile, self._gate = (
                os.open(path + suffix, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666) for suffix in ("-turn", "-gate")
            )

        def __enter__(self) -> None:
            fcntl.flock(self._turnstile, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._gate, fcntl.LOCK_EX)
            finally:
                fcntl.flock(self._turnstile, fcntl.LOCK_UN)

        def __exit__(self, *_: object) -> None:
            fcntl.flock(self._gate, fcntl.LOCK_UN)

        def close(self) -> None:
            """Close the files."""
            os.close(self._gate)
            os.close(self._turnstile)
