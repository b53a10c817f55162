"""Throwaway servers, small enough for a small disk, whose syncs can be made to fail."""

from pathlib import Path

from perdure.testing.servers import MySQLServer, PostgresServer, Server

_SMALL_POSTGRES = {"max_wal_size": "32MB", "min_wal_size": "32MB", "shared_buffers": "32MB"}
_SMALL_MYSQL = {"innodb_buffer_pool_size": "32M", "loose_innodb_log_file_size": "16M", "innodb_flush_method": "fsync"}


class FailingServer(Server):
    """Once `fails_at` is set, every so manieth sync of each of its processes fails, from the next start on."""

    fails_at = 0

    def _command(self) -> list[str | Path]:
        """The tracer is a grandchild, so that the server itself is the process that was started."""
        command = super()._command()
        return [*failing(self._trace, self.fails_at), *command] if self.fails_at else command

    @property
    def failed(self) -> int:
        """How many syncs have failed."""
        return injected(self._trace)

    @property
    def _trace(self) -> Path:
        return self.home / "tmp" / "trace"


class FailingPostgres(FailingServer, PostgresServer):
    def __init__(self, *, durable: bool) -> None:
        super().__init__(_SMALL_POSTGRES, durable=durable)


class FailingMySQL(FailingServer, MySQLServer):
    def __init__(self, *, durable: bool) -> None:
        super().__init__(_SMALL_MYSQL, durable=durable)


def failing(trace: Path, at: int) -> list[str | Path]:
    """The command that makes every so manieth sync of a command's threads fail, and writes down which."""
    calls = "fsync,fdatasync"
    inject = f"inject={calls}:error=EIO:when={at}+{at}"
    return ["/usr/bin/strace", "-D", "-f", "-A", "-qq", "-o", trace, "-e", f"trace={calls}", "-e", inject]


def injected(trace: Path) -> int:
    """How many calls were made to fail."""
    return trace.read_text(errors="replace").count("(INJECTED)") if trace.exists() else 0
