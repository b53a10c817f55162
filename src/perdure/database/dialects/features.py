"""Describe what a database can do, as data: a choice between two algorithms depends on a feature, not on a name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """List the features of one dialect. Each is stated as what the database does, with what follows from it.

    `returning`: a statement that writes can return columns of the rows it wrote. Otherwise a second statement reads
    them, and a unique mark distinguishes them from other rows.

    `one_statement_writes`: one statement can write to several tables, all or nothing (CTEs that write), and can take
    its items from arrays. Then an operation needs one round trip and no explicit transaction (`Work.single`).

    `repeated_calls`: one call can run a statement for each of many items, without a round trip for each
    (`Statement.for_each`). One statement can also take its items from a JSON array, with `json_each`.

    `round_trips`: a statement costs a round trip to a server, so one large statement is faster than several small ones.

    `row_locks`: a transaction locks the rows that it writes, and others write elsewhere meanwhile; locked rows can be
    skipped. Otherwise one transaction writes at a time: nothing changes between its statements, the ids of its inserts
    are consecutive, and an open one blocks all other writers.

    `gap_locks`: to check that a row does not exist can lock the place where it would be, until the commit. So an insert
    that ignores an existing key is better than a check followed by an insert.

    `idle_timeout`: the server can end a transaction that is idle for too long, which releases its locks
    (`idle_transaction_timeout` in the URL; MySQL itself ignores it, MariaDB does not).

    `notifications`: a transaction can notify other connections, and does so only if it commits.

    `schemas`: a database has several schemas. Tables are named with theirs, and it has to be found or chosen.

    `locks_of_process`: locks belong to a process, for all its connections to a file, and a fork does not pass them on.
    So no connection may be open during a fork.

    `transactional_ddl`: changes of tables are part of a transaction. Otherwise each is committed separately, and an
    interrupted migration is repeated statement by statement.
    """

    returning: bool
    one_statement_writes: bool
    repeated_calls: bool
    round_trips: bool
    row_locks: bool
    gap_locks: bool
    idle_timeout: bool
    notifications: bool
    schemas: bool
    locks_of_process: bool
    transactional_ddl: bool
