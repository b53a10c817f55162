"""A disk that forgets what was not synced, played from a recording, and the files that a power cut leaves of it.

What was synced is there. Of each later write, any sector may be there or not: a sector that was written twice
has any of its versions, which is also what writing back in any order would leave. A file may be longer than what was
written to it, with zeros or rubbish in between. Names are kept by the folder, whose changes come in order: a new or
removed file may not be, until the folder is synced. SQLite does that with the first sync of a journal or log.

After a sync that failed the kernel takes its pages for clean: each sector was written or is lost for good, though the
program continues to read it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.power_log import Kind, Record

SECTORS = (512, 4096)
SUFFIXES = ("", "-wal", "-journal", "-shm")


@dataclass(frozen=True, slots=True)
class CutBehaviour:
    """How one power cut treats what was not synced."""

    chance: Random
    sector: int
    kept: float  # the share of sectors that made it
    rubbish: bool

    @classmethod
    def of(cls, chance: Random) -> "CutBehaviour":
        kept = chance.choice((0.0, 1.0, chance.random(), chance.random()))
        return cls(chance, chance.choice(SECTORS), kept, chance.random() < 0.5)

    def keeps(self) -> bool:
        return self.chance.random() < self.kept

    def fill(self, size: int) -> bytes:
        return self.chance.randbytes(size) if self.rubbish else bytes(size)


@dataclass(slots=True, eq=False)
class File:
    """What of a file is surely on the disk, and what was asked of it since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Record] = field(default_factory=list)
    named: bool = False  # its folder was synced since it was made

    def sync(self) -> None:
        self.durable, self.pending = self.after(None), []

    def fail(self, behaviour: CutBehaviour) -> None:
        self.durable, self.pending = self.after(behaviour), []

    def after(self, behaviour: CutBehaviour | None) -> bytearray:
        """The bytes with what is pending: all of it, or what a cut leaves; only the latter is a copy."""
        content = self.durable if behaviour is None else bytearray(self.durable)
        for record in self.pending:
            if record.kind is Kind.TRUNCATE:
                if behaviour is None or behaviour.keeps():
                    _resize(content, record.at, behaviour)
            elif behaviour is None:
                _put(content, record.at, record.data, behaviour)
            else:
                _tear(content, record.at, record.data, behaviour)
        return content


def _tear(content: bytearray, at: int, data: bytes, behaviour: CutBehaviour) -> None:
    end = at + len(data)
    start = at
    while start < end:
        stop = min(end, (start // behaviour.sector + 1) * behaviour.sector)
        if behaviour.keeps():
            _put(content, start, data[start - at : stop - at], behaviour)
        start = stop


def _put(content: bytearray, at: int, data: bytes, behaviour: CutBehaviour | None) -> None:
    if at > len(content):
        _resize(content, at, behaviour)
    content[at : at + len(data)] = data


def _resize(content: bytearray, size: int, behaviour: CutBehaviour | None) -> None:
    missing = size - len(content)
    if missing > 0:
        content += bytes(missing) if behaviour is None else behaviour.fill(missing)
    else:
        del content[size:]


class Disk:
    """The files of one database by what their names have beyond its own."""

    def __init__(self, chance: Random, *, ignores_sync: bool = False) -> None:
        self._chance = chance
        self._ignores_sync = ignores_sync  # a disk that lies: it says that it synced
        self._files: dict[str, File] = {}
        self._names: list[dict[str, File]] = [{}]  # of the folder: what is durable, and every change since

    def hold(self, database: Path) -> None:
        """Begin with the files that are there, as after a reboot: what can be read is on the disk."""
        for suffix in SUFFIXES[:-1]:
            path = database.with_name(database.name + suffix)
            if path.exists():
                self._files[suffix] = File(bytearray(path.read_bytes()), named=True)
        self._names = [dict(self._files)]

    def apply(self, record: Record) -> None:
        match record.kind:
            case Kind.CREATE:
                self._files[record.file] = File()
                self._names.append(dict(self._files))
            case Kind.DELETE:
                del self._files[record.file]
                self._names.append(dict(self._files))
                if record.at:
                    self._sync_folder()
            case Kind.WRITE | Kind.TRUNCATE:
                self._files[record.file].pending.append(record)
            case Kind.SYNC if not self._ignores_sync:
                file = self._files[record.file]
                file.sync()
                if record.file and not file.named:
                    file.named = True
                    self._sync_folder()
            case Kind.FAILED_SYNC:
                self._files[record.file].fail(CutBehaviour.of(self._chance))

    def _sync_folder(self) -> None:
        del self._names[:-1]

    def cut(self, database: Path) -> str:
        """Write the files that a power cut now might leave; says in words how it went."""
        behaviour = CutBehaviour.of(self._chance)
        names = self._chance.choice(self._names)
        for suffix in SUFFIXES:
            path = database.with_name(database.name + suffix)
            if suffix in names:
                path.write_bytes(names[suffix].after(behaviour))
            else:
                path.unlink(missing_ok=True)
        pending = {suffix or "db": len(file.pending) for suffix, file in names.items()}
        return f"{behaviour.kept:.2f} of sectors of {behaviour.sector} bytes kept, not synced: {pending}"
