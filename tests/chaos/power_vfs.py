"""Files for SQLite that record what is asked of them, and connections on them that look like Python's own.

Only for a process that has no other SQLite on the same files: two libraries in one process drop each other's locks.
The index of the log (`-shm`) is memory and never survives a reboot; SQLite's own files keep it, unrecorded.
"""

import os
import sqlite3
from collections.abc import Iterable, Sequence
from random import Random
from threading import RLock
from typing import Any

import apsw

from tests.chaos.power_log import Kind, Log

_NAME = "recorded"
_RECORDED = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL


class RecordedDisk(apsw.VFS):
    """All files of one database; a share of syncs fails once `failing` is set."""

    def __init__(self, database: str, log: Log, chance: Random) -> None:
        super().__init__(_NAME, "unix")
        self.database, self.log, self.chance = database, log, chance
        self.failing = 0.0
        self.unsynced: set[str] = set()  # files written since their last sync

    def suffix(self, name: str) -> str:
        return name.removeprefix(self.database)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None or not flags[0] & _RECORDED:
            return apsw.VFSFile("unix", name, flags)
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self.log.add(Kind.DELETE, self.suffix(filename), int(syncdir))


class _File(apsw.VFSFile):
    def __init__(self, disk: RecordedDisk, name: str | apsw.URIFilename, flags: list[int]) -> None:
        path = name if isinstance(name, str) else name.filename()
        new = not os.path.exists(path)
        super().__init__("unix", name, flags)
        self._disk, self._suffix = disk, disk.suffix(path)
        if new:
            disk.log.add(Kind.CREATE, self._suffix)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._disk.log.add(Kind.WRITE, self._suffix, offset, bytes(data))
        self._disk.unsynced.add(self._suffix)

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._disk.log.add(Kind.TRUNCATE, self._suffix, newsize)

    def xSync(self, flags: int) -> None:
        """The real files need none: the power of this machine is not cut."""
        disk, suffix = self._disk, self._suffix
        if suffix in disk.unsynced and disk.chance.random() < disk.failing:
            disk.log.add(Kind.FAILED_SYNC, suffix)
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC) if suffix else _CheckpointFailed
        disk.log.add(Kind.SYNC, suffix)
        disk.unsynced.discard(suffix)


class _CheckpointFailed(apsw.IOError):
    """The database's own file is synced by checkpoints, whose failure SQLite ignores after a commit.

    apsw raises it nevertheless. The log has nothing left to sync by then, so that one never fails there.
    """


class Cursor:
    """What the backend uses of `sqlite3.Cursor`."""

    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows, self.rowcount = rows, rowcount

    def fetchall(self) -> list[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None


class Connection:
    """What the backend uses of `sqlite3.Connection`; where that waits for another thread, apsw would refuse."""

    def __init__(self, path: str) -> None:
        self._own = apsw.Connection(path, vfs=_NAME, statementcachesize=512)
        self._lock = RLock()

    @property
    def in_transaction(self) -> bool:
        with self._lock:
            return self._own.in_transaction

    @property
    def total_changes(self) -> int:
        with self._lock:
            return self._own.total_changes()

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        with self._lock:
            rows: list[Any] = []
            try:
                rows = self._own.execute(sql, values).fetchall()
            except _CheckpointFailed:
                pass
            except apsw.Error as error:
                raise _as_python(error) from error
            return Cursor(rows, self._own.changes())

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> Cursor:
        with self._lock:
            return Cursor([], sum(self.execute(sql, values).rowcount for values in rows))

    def close(self) -> None:
        with self._lock:
            self._own.close()


def _as_python(error: apsw.Error) -> sqlite3.Error:
    kind = sqlite3.IntegrityError if isinstance(error, apsw.ConstraintError) else sqlite3.OperationalError
    own = kind(str(error))
    code: int = getattr(error, "extendedresult", apsw.SQLITE_ERROR)
    known = {**apsw.mapping_result_codes, **apsw.mapping_extended_result_codes}
    own.sqlite_errorcode, own.sqlite_errorname = code, str(known.get(code, "SQLITE_ERROR"))
    return own
