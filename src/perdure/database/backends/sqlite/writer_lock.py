"""Queue the processes that write to one SQLite file, in a fair order.

SQLite's busy handler polls, and the process that polls at the right moment wins: of eight writers one made 1 commit
while another made 7,575. Here writers queue at two file locks: the writer holds the second, and the next one in line
holds the first (the turn). A writer that releases the second has to wait for the turn again, which the next writer
already holds, so no writer overtakes another twice. The locks belong to open files, so the kernel releases them when a
process dies, for whatever reason.

The locks are on files of their own. Opening and closing the database's files would drop SQLite's locks on them.
"""

import sys
from contextlib import nullcontext
from io import FileIO

if sys.platform == "win32":

    class WriterLock(nullcontext[None]):
        """Do nothing: without these file locks SQLite's busy handler alone decides, which is unfair but correct."""

        def close(self) -> None:
            return

else:
    import fcntl

    class WriterLock:
        """Admit one writer among all processes; entering blocks the thread."""

        def __init__(self, path: str) -> None:
            self._turn, self._lock = (FileIO(path + suffix, "a") for suffix in ("-turn", "-gate"))

        def __enter__(self) -> None:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            finally:
                fcntl.flock(self._turn, fcntl.LOCK_UN)

        def __exit__(self, *_: object) -> None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

        def close(self) -> None:
            """Close the files."""
            self._lock.close()
            self._turn.close()
