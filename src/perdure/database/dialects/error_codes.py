"""Name the errors of a database that a change of its tables has to tell apart, as data: each by the database's code."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCodes:
    """List error codes of one dialect, as `Rendering.error_code` returns them.

    `unreadable`: there is no such table, column or schema, or no privilege to read it.

    `collisions`: a conflict with another process, which a repetition may solve: busy, deadlock, or the same table
    created by both.

    `repeated`: by the kind of statement (`add column`, `create index`, `drop index`, `insert`), the one error which
    shows that it took effect before. Empty if changes of tables are part of a transaction (`transactional_ddl`).
    """

    unreadable: frozenset[object]
    collisions: frozenset[object] = frozenset()
    repeated: Mapping[str, object] = field(default_factory=dict)
