"""Exit codes, and the errors that lead to them."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EEXIST, EISDIR, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR, EPERM, EROFS
from typing import NamedTuple

from perdure.cli.extras import extra_with, installation
from perdure.error_pages import page_address
from perdure.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    InstanceNotFoundError,
    InvalidJSONPathError,
    InvalidPageTokenError,
    LimitError,
    PerdureError,
    RunNotFoundError,
    SchemaError,
    SerializationError,
    StorageError,
    UnknownWorkflowError,
)

OK = 0
FAILED = 1  # the command did not succeed: a run failed, a check found problems, or the database refused
USAGE = 2  # wrong arguments, options, filters, settings or URLs
NOT_FOUND = 3  # no run, workflow or event of that name
UNAVAILABLE = 4  # the database cannot be reached, or lacks migrations
INTERRUPTED = 130  # Ctrl-C

_PASSWORD = re.compile(r"(?<=://)[^\s/?#@]*:[^\s/?#]*(?=@)")
UNEXPECTED = "cli.unexpected"
DRIVERS = ("asyncpg", "asyncmy", "pymysql")  # packages whose errors are what a database said
_NO_RIGHT = "42501"  # of PostgreSQL
_NO_RIGHTS_MYSQL = (1044, 1142, 1143, 1227, 1370)
RIGHTS_PAGE = "https://github.com/perdure/perdure/blob/main/docs/deployment/database-rights.md"
# What the file system says about files that the command line reads and writes.
_FILE_ERRORS = (EACCES, EPERM, ENOENT, EEXIST, ENOTDIR, EISDIR, EROFS, ENOSPC, EDQUOT, ENAMETOOLONG)


class CommandError(Exception):
    """An error with a message for people, an exit code, and a stable code for programs."""

    def __init__(self, message: str, exit_code: int = FAILED, code: str = "cli.failed") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code


class UsageError(CommandError):
    """Wrong arguments, options or settings."""

    def __init__(self, message: str) -> None:
        super().__init__(message, USAGE, "cli.usage")


class NotFoundError(CommandError):
    """There is nothing of that name."""

    def __init__(self, message: str) -> None:
        super().__init__(message, NOT_FOUND, "cli.not_found")


class Problem(NamedTuple):
    """What is printed about an error."""

    exit_code: int
    code: str
    title: str
    detail: str


_EXITS: tuple[tuple[type[Exception], int], ...] = (
    (RunNotFoundError, NOT_FOUND),
    (InstanceNotFoundError, NOT_FOUND),
    (UnknownWorkflowError, NOT_FOUND),
    (DatabaseUnavailableError, UNAVAILABLE),
    (SchemaError, UNAVAILABLE),
    (ConfigurationError, USAGE),
    (InvalidJSONPathError, USAGE),
    (InvalidPageTokenError, USAGE),
    (LimitError, USAGE),
    (SerializationError, USAGE),
)


def problem_of(error: Exception) -> Problem:
    """Return what to print about an error, and the exit code."""
    title = type(error).__name__
    if isinstance(error, CommandError):
        return Problem(error.exit_code, error.code, title, str(error))
    if isinstance(error, PerdureError):
        found = next((code for kind, code in _EXITS if isinstance(error, kind)), FAILED)
        return Problem(found, error.code, title, str(error) + _disk_advice(error) + _rights_advice(error))
    missing = error.__cause__ if isinstance(error.__cause__, ImportError) else error  # of a command's module
    if isinstance(missing, ImportError) and (extra := extra_with(missing.name)) is not None:
        detail = f"this command needs the package {missing.name}, which is not installed: {installation(extra)}"
        return Problem(FAILED, "cli.missing_extra", title, detail)
    if isinstance(error, sqlite3.Error) or type(error).__module__.partition(".")[0] in DRIVERS:
        detail = f"the database refused a statement: {error}{_rights_advice(error)}"
        return Problem(FAILED, StorageError.code, title, detail)
    if isinstance(error, OSError) and error.errno in _FILE_ERRORS:
        place = f"{error.filename} cannot be used" if error.filename else "the output cannot be written"
        return Problem(FAILED, "cli.failed", title, f"{place}: {error.strerror}")
    detail = f"unexpected {title}: {error}; --debug shows the traceback"
    return Problem(FAILED, UNEXPECTED, title, detail)


def error_line(problem: Problem, *, as_json: bool) -> str:
    """Return the line about an error, without the password of a URL that was given where none belongs."""
    detail = _PASSWORD.sub("***", problem.detail)
    if not as_json:
        return f"perdure: {detail}"
    found = {
        "type": page_address(problem.code),
        "title": problem.title,
        "detail": detail,
        "code": problem.code,
        "exit_code": problem.exit_code,
    }
    return json.dumps(found, ensure_ascii=False)


def _disk_advice(error: PerdureError) -> str:
    """Return what to do about an error of the disk below SQLite; nothing for other errors."""
    name = error.__cause__.sqlite_errorname if isinstance(error.__cause__, sqlite3.OperationalError) else ""
    if name == "SQLITE_FULL":
        return ". The disk of the database is full: free some space, then run the command again"
    if name.startswith("SQLITE_IOERR"):
        return f". The disk may be full or broken ({name}): see `df -h` and the system log, then run the command again"
    return ""


def _rights_advice(error: Exception) -> str:
    """Return what to do if the user of the database may not do this; nothing for other errors."""
    for each in (error, error.__cause__):
        number = each.args[0] if each is not None and each.args else None
        if getattr(each, "sqlstate", None) == _NO_RIGHT or number in _NO_RIGHTS_MYSQL:
            return f". The user in the URL lacks a right: {RIGHTS_PAGE} lists those that each command needs"
    return ""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Report values that perdure rejects (`ValueError`, `TypeError`) as mistakes in the arguments of the command."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
