"""The recording of a disk: everything that was asked of its files, and every acknowledgement, in one order."""

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("<BqB I")


class Kind(IntEnum):
    """What was asked of a file; or, without a file, what was acknowledged to a client."""

    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC = 4
    FAILED_SYNC = 5
    DELETE = 6
    ACKNOWLEDGED = 7


class Record(NamedTuple):
    """One line of a recording; a file goes by what its name has beyond that of the database."""

    kind: Kind
    file: str
    at: int  # an offset or a size; of a deletion 1 if the folder was synced after it
    data: bytes


class Log:
    """Where a recording is written: one call of `write` a record, so that threads need no lock."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def add(self, kind: Kind, file: str = "", at: int = 0, data: bytes = b"") -> None:
        name = file.encode()
        self._file.write(_HEAD.pack(kind, at, len(name), len(data)) + name + data)

    def acknowledge(self, what: str, **about: object) -> None:
        """Record that a client got an acknowledgement: from here on a power cut may not undo it."""
        self.add(Kind.ACKNOWLEDGED, data=json.dumps({"what": what, **about}).encode())

    def close(self) -> None:
        self._file.close()


class MemoryLog(Log):
    """A recording that is only kept in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, kind: Kind, file: str = "", at: int = 0, data: bytes = b"") -> None:
        self.records.append(Record(kind, file, at, data))

    def close(self) -> None:
        pass


def read(path: Path) -> Iterator[Record]:
    """The records of a recording."""
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            kind, at, name, size = _HEAD.unpack(head)
            yield Record(Kind(kind), file.read(name).decode(), at, file.read(size))
