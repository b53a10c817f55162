"""Classify and translate the errors of asyncpg and PostgreSQL."""

from ssl import SSLError

from perdure.database.backends.postgres.native import asyncpg
from perdure.database.backends.server.retries import Fault
from perdure.database.backends.server.session import ENDED
from perdure.errors import DatabaseUnavailableError, LimitError, SchemaError, StorageError, TransactionError

_IDLE = "25P03"
_CONFLICTS = {"40001", "40P01", "55P03"}
# Ended from outside, in any state: after such an answer to a COMMIT it is unknown whether it was committed.
_ENDED = {"25P04", "40003", "57P01", "57P02", "57P03", "57P04", "57P05"}
# Sent by a pooler that has no server, or by a server that got values of another type than when it prepared.
_NOT_RUN = ("query_wait_timeout", "cannot connect to server", "server login", "insufficient data left in message")
# Raised by asyncpg before it sends: it is still reading that the server has ended the session.
_STILL_READING = "cannot switch to state"
_ABSENT = {"42P01", "42703", "42704", "42883", "42P10", "3F000"}
_NOT_TEXT = {"22021", "22P05"}
_UNAVAILABLE = {
    "25006": "PostgreSQL accepts no writes at the moment",
    "53100": "PostgreSQL has no space left on its disk",
    "53200": "PostgreSQL has no memory left",
    "53300": "PostgreSQL has no free connection",
    "53400": "PostgreSQL has reached a limit of its configuration",
    "57014": "PostgreSQL cancelled the statement",
}


def code_of(error: BaseException | None) -> str:
    """Return PostgreSQL's code of an error, or an empty text."""
    return getattr(error, "sqlstate", None) or ""


def classify(error: Exception, *, fails_over: bool) -> Fault:
    """Return what an error means; `fails_over`: there may be another server that accepts writes."""
    code = code_of(error)
    if code in _CONFLICTS:
        return Fault.CONFLICT
    if _IDLE in (code, code_of(error.__cause__)):  # no COMMIT has been processed after it
        return Fault.UNSENT
    if code.startswith("08") or code in _ENDED:
        return Fault.UNSENT if any(text in str(error) for text in _NOT_RUN) else Fault.LOST
    if code == "25006" and fails_over:
        return Fault.UNSENT
    if code == "22P03" or isinstance(error, asyncpg.InvalidCachedStatementError):  # a migration changed the types
        return Fault.UNSENT
    if isinstance(error, asyncpg.InterfaceError) and "closed" in str(error):
        return Fault.UNSENT
    if isinstance(error, asyncpg.InternalClientError) and _STILL_READING in str(error):
        return Fault.UNSENT
    # An answer that asyncpg cannot read says nothing about the statement.
    lost = isinstance(error, OSError | asyncpg.InternalClientError)
    return Fault.LOST if lost else Fault.REFUSED


def translate(error: Exception, fault: Fault) -> StorageError:
    """Return an error as one of ours."""
    code, text = code_of(error), text_of(error)
    if code in _ABSENT:
        return SchemaError(f"the schema is not up to date: {text}; call initialize(), or migrate")
    if code in _UNAVAILABLE:
        return DatabaseUnavailableError(f"{_UNAVAILABLE[code]}: {text}; nothing was written")
    if fault is Fault.CONFLICT:
        return DatabaseUnavailableError(f"other transactions kept the rows locked: {text}; nothing was written")
    if fault is not Fault.REFUSED:
        return DatabaseUnavailableError(f"the connection to PostgreSQL was lost: {text}")
    if code == "25P01":
        return TransactionError(ENDED)
    if code == "25P02":
        return TransactionError("an earlier statement of this transaction failed: roll the transaction back")
    if code in _NOT_TEXT or isinstance(error.__cause__, UnicodeEncodeError):
        return LimitError(f"PostgreSQL cannot store this text: {text}")
    if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
        return StorageError(f"PostgreSQL rejected a statement: {text}")
    return StorageError(f"the operation failed: {error!r}")


def is_configuration(error: Exception) -> bool:
    """Return whether an error that prevented a connection is lasting, so that retrying cannot help."""
    code, text = code_of(error), text_of(error)
    if code == "08P01":  # PgBouncer's code for every error
        return any(sign in text for sign in ("does not exist", "startup parameter", "auth"))
    if isinstance(error, OSError):
        return isinstance(error, SSLError)
    return code[:2] not in ("08", "53", "57") and not isinstance(error, asyncpg.TargetServerAttributeNotMatched)


def text_of(error: BaseException) -> str:
    """Return the error's message on one line."""
    text = getattr(error, "strerror", None) or (error.args[0] if error.args else "")
    return " ".join(str(text).split()) or type(error).__name__
