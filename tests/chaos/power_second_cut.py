"""A second power cut, during the recovery from the first.

What the first cut left is opened on recorded files, set up as perdure does it, written to and closed: SQLite rolls a
journal back or reads its log, and carries the log over to the database. The recording is cut anywhere in between.
"""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import apsw

from perdure.database.backends.sqlite.backend import _PRAGMAS
from tests.chaos.power_checks import Acknowledgements
from tests.chaos.power_disk import Disk
from tests.chaos.power_log import Kind, MemoryLog
from tests.chaos.power_vfs import Connection, RecordedDisk

WRITES = 3
THERE = "SELECT 1 FROM sqlite_master WHERE name = 'workflow_instances'"
TOKENS = "SELECT instance_id, lock_token FROM workflow_instances ORDER BY instance_id"
GROW = "UPDATE workflow_instances SET lock_token = lock_token + 1 WHERE instance_id = ?"


class Recovery:
    """Recovers what a cut has left of a database, and cuts again."""

    def __init__(
        self, database: Path, chance: Random, acknowledged: Acknowledgements, synchronous: int, *, ignores_sync: bool
    ) -> None:
        self._database, self._chance, self._acknowledged = database, chance, acknowledged
        self._synchronous, self._ignores_sync = synchronous, ignores_sync
        self._recorded = RecordedDisk(str(database), MemoryLog(), chance)

    @contextmanager
    def cut(self) -> Iterator[str]:
        """Leave the files as the second cut might; what was acknowledged between the two counts within the block."""
        disk, log = Disk(self._chance, ignores_sync=self._ignores_sync), MemoryLog()
        disk.hold(self._database)
        self._recorded.log = log
        try:
            self._recover(log)
        except apsw.Error as error:  # else our connection's are Python's own
            raise ValueError(f"cannot be recovered: {error!r}") from error
        moment = self._chance.randint(0, len(log.records))
        tokens = dict(self._acknowledged.tokens)
        for record in log.records[:moment]:
            if record.kind is Kind.ACKNOWLEDGED:
                about = json.loads(record.data)
                self._acknowledged.acknowledge(about.pop("what"), **about)
            else:
                disk.apply(record)
        yield f"again at {moment} of {len(log.records)} records: {disk.cut(self._database)}"
        self._acknowledged.tokens = tokens

    def _recover(self, log: MemoryLog) -> None:
        """Some tokens grow, each in a commit of its own, with checkpoints in between; closing is another."""
        with closing(Connection(str(self._database))) as connection:
            for pragma, value in (_PRAGMAS | {"synchronous": self._synchronous}).items():
                connection.execute(f"PRAGMA {pragma} = {value}")
            if not connection.execute(THERE).fetchall():
                return
            rows = connection.execute(TOKENS).fetchall()
            for run, token in self._chance.sample(rows, min(WRITES, len(rows))):
                connection.execute(GROW, (run,))
                log.acknowledge("token", run=run, token=token + 1)
                if self._chance.random() < 0.5:
                    connection.execute(f"PRAGMA wal_checkpoint({self._chance.choice(('PASSIVE', 'TRUNCATE'))})")
