"""Run jobs in transactions: many in one commit, where the failure of one does not affect the others."""

import logging
import sqlite3
from typing import Any

from perdure.database.backends.sqlite.errors import translate
from perdure.database.backends.sqlite.jobs import Job, Outcome
from perdure.errors import CommitUnknownError, StorageError

log = logging.getLogger("perdure.storage")


def commit_together(connection: sqlite3.Connection, jobs: list[Job[Any]], savepoints: bool = False) -> list[Outcome]:
    """Run jobs in one transaction; return their results, in order."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        return [Outcome(job, None, translate(error)) for job in jobs]
    if len(jobs) == 1:
        return [_commit(connection, attempt(connection, jobs[0]))]
    outcomes = _attempt_all(connection, jobs, savepoints)
    if outcomes is None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
            return commit_together(connection, jobs, savepoints=True)
        # the database dropped the whole transaction (disk full, I/O error): run each job separately
        return [each for job in jobs for each in commit_together(connection, [job])]
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        failure = _undo(connection, error)
        return [outcome if outcome.error else Outcome(outcome.job, None, failure) for outcome in outcomes]
    return outcomes


def _attempt_all(connection: sqlite3.Connection, jobs: list[Job[Any]], savepoints: bool) -> list[Outcome] | None:
    """Run the jobs of a group; return None if one has failed and cannot be undone separately.

    Most jobs that fail have written nothing. Savepoints cost as much as the jobs, so they are used only after one that
    has written.
    """
    outcomes = []
    for job in jobs:
        if savepoints:
            connection.execute("SAVEPOINT job")
        written = connection.total_changes
        outcome = attempt(connection, job)
        failed = outcome.error is not None
        if not connection.in_transaction or (failed and not savepoints and connection.total_changes != written):
            return None
        if savepoints:
            if failed:
                connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
        outcomes.append(outcome)
    return outcomes


def attempt(connection: sqlite3.Connection, job: Job[Any]) -> Outcome:
    """Run a job and return its result, or its error."""
    try:
        return Outcome(job, job.run(connection), None)
    except sqlite3.Error as error:
        return Outcome(job, None, translate(error))
    except BaseException as error:
        return Outcome(job, None, error)


def _commit(connection: sqlite3.Connection, outcome: Outcome) -> Outcome:
    try:
        if outcome.error is None:
            connection.execute("COMMIT")
        elif connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        return Outcome(outcome.job, None, _undo(connection, error))
    return outcome


def commit_or_end(connection: sqlite3.Connection) -> None:
    """Commit a caller's transaction; end it even if that fails, because the caller would keep holding the file."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise _undo(connection, error) from error


def _undo(connection: sqlite3.Connection, error: sqlite3.Error) -> StorageError:
    """Roll back after a failed commit; what failed while syncing may still be in the log after a crash."""
    roll_back(connection)
    if getattr(error, "sqlite_errorname", "").startswith("SQLITE_IOERR"):
        unknown = CommitUnknownError(
            "the disk failed during a commit, so the writes may or may not exist: read them back before you retry"
        )
        unknown.__cause__ = error
        return unknown
    return translate(error)


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll back, and only log an error: one raised here would end the thread."""
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            log.warning(
                "a rollback failed, so the SQLite transaction may still be open: %s: %s",
                type(error).__name__,
                error,
                extra={"reason": str(error)},
            )
