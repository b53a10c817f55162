"""Three MariaDB servers in a Galera cluster, of which one at a time takes writes: the others are read-only."""

import os
import re
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pymysql

from perdure.testing.servers import HOST, MySQLServer, _find, _free_port
from tests.chaos.clusters import DATABASE, Death, wait_for
from tests.engine.crashes.rig.databases import USER

NODES = 3
LIBRARY = Path("/usr/lib/galera/libgalera_smm.so")
# A member that is silent for a second is given up; by default it has five.
PATIENCE = (
    "evs.keepalive_period=PT0.3S;evs.join_retrans_period=PT0.3S;evs.suspect_timeout=PT1S;evs.inactive_timeout=PT5S;"
    "evs.install_timeout=PT5S"
)
# Run at every change of the group, which waits for it. A node that was given up, and comes back, is no writer any more:
# no other node could tell it so in time. A node that was just left alone refuses connections, and then asks again.
FENCE = """\
case "$*" in
    *"--primary no"*) timeout 1 {client} --no-defaults --host={host} --port={port} --user=root \\
        --execute="SET GLOBAL read_only = ON" ;;
esac
"""


class GaleraNode(MySQLServer):
    """A member. It starts read-only, and has its data from the others unless it is the first of all."""

    def __init__(self, name: str, others: Sequence["GaleraNode"]) -> None:
        cluster = {"wsrep_on": "ON", "wsrep_provider": LIBRARY, "wsrep_cluster_name": "rig", "wsrep_node_name": name}
        required = {"binlog_format": "ROW", "innodb_autoinc_lock_mode": 2, "wsrep_sst_method": "rsync"}
        super().__init__({**cluster, **required, "read_only": 1})
        self.name, self.others = name, others
        self.silent = False
        self._group_port = 0

    def _create(self) -> None:
        if not self.others:
            super()._create()
        self._group_port, changes, copy = _free_port(), _free_port(), _free_port()
        address = f"{HOST}:{self._group_port}"
        client = _find("mariadb", "mysql", package="mariadb-client")
        fence = self._write("fence.sh", FENCE.format(client=client, host=HOST, port=self.port))
        options = f"gmcast.listen_addr=tcp://{address};ist.recv_addr={HOST}:{changes};gcache.size=64M;{PATIENCE}"
        self.settings |= {
            "wsrep_node_address": address,
            "wsrep_sst_receive_address": f"{HOST}:{copy}",
            "wsrep_provider_options": f"base_port={self._group_port};{options}",
            "wsrep_notify_cmd": f"/bin/sh {fence}",
        }

    def _command(self) -> list[str | Path]:
        if any(other.pid for other in self.others):
            self.settings["init_file"] = "/dev/null"  # whom the first let in is known to all
        members = ",".join(f"{HOST}:{other._group_port}" for other in self.others if other.pid)
        command = [*super()._command(), f"--wsrep_cluster_address=gcomm://{members}"]
        if (self.home / "data/grastate.dat").exists():
            command.append(f"--wsrep_start_position={self._position(command)}")
        return command

    def _position(self, command: Sequence[str | Path]) -> str:
        """Where a killed server stands, so that it is sent only what it missed."""
        self._run([*command, "--wsrep_recover"])
        found: list[str] = re.findall(r"Recovered position:\s*(\S+)", (self.home / "log").read_text(errors="replace"))
        return found[-1]

    def fall_silent(self) -> None:
        """Stop it where it stands."""
        assert self.pid is not None, f"{self.name} is not running"
        os.kill(self.pid, signal.SIGSTOP)
        self.silent = True

    def wake(self) -> None:
        if self.silent and self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)
        self.silent = False

    def _end(self, how: signal.Signals) -> None:
        self.wake()
        super()._end(how)

    def _answers(self) -> bool:
        return super()._answers() and self.is_synced()

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement as root, who may write everywhere."""
        connection = pymysql.connect(host=HOST, port=self.port, user="root", connect_timeout=5, read_timeout=30)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def status(self) -> dict[str, str]:
        """What it knows of the group; nothing while it does not answer."""
        with suppress(OSError, pymysql.MySQLError):
            return {name: str(value) for name, value in self.ask("SHOW STATUS LIKE 'wsrep_%'")}
        return {}

    def is_synced(self) -> bool:
        status = self.status()
        return (status.get("wsrep_local_state_comment"), status.get("wsrep_cluster_status")) == ("Synced", "Primary")


class GaleraCluster:
    """The three of them; `url` names all."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.nodes: list[GaleraNode] = []
        self.primary: GaleraNode

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        return f"mysql://{USER}@{hosts}/{DATABASE}?connect_timeout=2&read_timeout=15"

    def __enter__(self) -> Self:
        try:
            for number in range(NODES):
                self.nodes.append(GaleraNode(f"node{number + 1}", []))
                self.nodes[number].others = self.nodes[:number]
                self._stack.enter_context(self.nodes[number])
            for node in self.nodes:
                node.others = [other for other in self.nodes if other is not node]
            self.primary = self.nodes[0]
            self.primary.ask(f"CREATE DATABASE {DATABASE}")
            self.primary.ask(f"CREATE USER {USER}@'{HOST}'")
            self.primary.ask(f"GRANT ALL PRIVILEGES ON {DATABASE}.* TO {USER}@'{HOST}'")
            self.primary.ask("SET GLOBAL read_only = 0")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill_primary(self, death: Death) -> None:
        """It dies or falls silent; it has a single process, and no other process monitors it."""
        if death is Death.SILENCE:
            self.primary.fall_silent()
        else:
            self.primary.kill()

    def replace(self) -> None:
        """Once the group has given the dead or silent one up, the first of the others takes writes."""
        left = [node for node in self.nodes if node.pid and not node.silent]
        wait_for(lambda: all(_sees(node, len(left)) for node in left), "the others to continue without it")
        self.primary = left[0]
        self.primary.ask("SET GLOBAL read_only = 0")

    def wake(self) -> None:
        for node in self.nodes:
            node.wake()

    def heal(self) -> None:
        """Bring back what was killed: it is sent what it missed, or everything. One takes writes."""
        for node in self.nodes:
            if node.pid is None:
                node.start()
        wait_for(lambda: all(_sees(node, NODES) for node in self.nodes), "the cluster to be whole")
        writers = [node.name for node in self.nodes if node.ask("SELECT @@read_only") == [(0,)]]
        assert writers == [self.primary.name], f"{writers} take writes"


def _sees(node: GaleraNode, count: int) -> bool:
    return node.is_synced() and node.status().get("wsrep_cluster_size") == str(count)
