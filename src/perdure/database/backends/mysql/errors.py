"""Classify and translate the errors of asyncmy and the server."""

from collections.abc import Mapping
from ssl import SSLError
from typing import Any

from perdure.database.backends.mysql.native import asyncmy
from perdure.database.backends.server.retries import Fault
from perdure.errors import ConfigurationError, DatabaseUnavailableError, SchemaError, StorageError

DUPLICATE = 1062
# Deadlock, lock timeout, changed since it was read, refused by the cluster: nothing was written. 1467 is a deadlock
# over an auto-increment value: the transaction has ended, although the server reports it as open.
_CONFLICTS = {1213, 1205, 1020, 1047, 1467}
# The session was ended from outside, or its server lost the cluster. After such an answer to a COMMIT it is unknown
# whether the transaction was committed.
_ENDED = {1053, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1927, 3169, 4031}
_ABSENT = {1146, 1054}
_READ_ONLY = {1290, 1792, 1836}
_FULL = {1021, 1114}
_DAMAGED = {126, 1034}  # of a temporary table, which means that the disk is full, too
_CROWDED = {1040, 1203, 1226}
_LOGIN = {1045, 1698, 1044, 1130, 1251, 1862, 2059, 3118}
NO_SUCH_THREAD = 1094
LEAVE = {1047, *_READ_ONLY}  # this host cannot serve us: the next connection may reach a better one
DEMOTED = {1290, 1836}


def code_of(error: BaseException) -> int | None:
    """Return the server's or the driver's number of an error, or None."""
    code = error.args[0] if isinstance(error, asyncmy.MySQLError) and error.args else None
    return code if isinstance(code, int) else None


def text_of(error: BaseException) -> str:
    """Return the error's message."""
    return str(error.args[-1] if error.args else error) or type(error).__name__


def classify(error: Exception, *, demoted: bool) -> Fault:
    """Return what an error means; `demoted`: it says that this host became read-only, and there are others."""
    code = code_of(error)
    if code in _CONFLICTS:
        return Fault.CONFLICT
    if demoted:
        return Fault.UNSENT
    if isinstance(error, asyncmy.MySQLError):
        lost = code is None or code == 0 or code in _ENDED or 2000 <= code < 3000  # 2xxx are the client's
    else:
        lost = isinstance(error, OSError | EOFError)
    return Fault.LOST if lost else Fault.REFUSED


def translate(error: Exception, fault: Fault) -> StorageError:
    """Return an error as one of ours."""
    code, text = code_of(error), text_of(error)
    if code in _ABSENT:
        return SchemaError(f"the schema is not up to date: {text}; call initialize(), or migrate")
    if code in _READ_ONLY:
        return DatabaseUnavailableError(f"MySQL accepts no writes at the moment: {text}")
    if code in _FULL or (code in _DAMAGED and "#sql" in text):
        return DatabaseUnavailableError(f"MySQL has no space left: {text}; nothing was written")
    if fault is Fault.CONFLICT:
        return DatabaseUnavailableError(f"other transactions kept the rows locked: {text}; nothing was written")
    if fault is Fault.LOST or code in _CROWDED:
        return DatabaseUnavailableError(f"the connection to MySQL was lost: {text}")
    if isinstance(error, asyncmy.MySQLError):
        return StorageError(f"MySQL rejected a statement: {text}")
    return StorageError(f"the operation failed: {error!r}")


def connection_error(error: Exception, where: str, login: Mapping[str, Any], timeout_sec: float) -> StorageError:
    """Return the error for a failed connection: one sentence, without the password."""
    code, user = code_of(error), login["user"]
    if code in (1045, 1698):
        return ConfigurationError(f"{where} rejected user {user!r}: wrong password, or the user does not exist")
    if code in (1044, 1049):
        name = login["database"]
        return ConfigurationError(f"{where} has no database {name!r} that user {user!r} may use: create it first")
    if code in _LOGIN or isinstance(error, RuntimeError | ValueError):
        return ConfigurationError(f"{where} rejected the login of user {user!r}: {text_of(error)}")
    if code in _CROWDED:
        return DatabaseUnavailableError(f"{where} has no free connection: {text_of(error)}")
    reason = (isinstance(error, asyncmy.MySQLError) and error.__cause__) or error  # asyncmy wraps network errors
    if isinstance(reason, TimeoutError):
        return DatabaseUnavailableError(f"{where} did not answer within {timeout_sec:g} s")
    if isinstance(reason, SSLError):
        return ConfigurationError(f"{where} and this client could not agree on encryption: {text_of(reason)}")
    return DatabaseUnavailableError(f"{where} cannot be reached: {text_of(reason)}")
