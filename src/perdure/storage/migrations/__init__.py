"""Define the tables, as dbmate files for each dialect, and bring a database up to date."""

from perdure.storage.migrations.files import Migration, tables, up_statements, versions
from perdure.storage.migrations.placement import Reader, Session, find_schema
from perdure.storage.migrations.runner import is_current, migrate, missing, reset

__all__ = [
    "Migration",
    "Reader",
    "Session",
    "find_schema",
    "is_current",
    "migrate",
    "missing",
    "reset",
    "tables",
    "up_statements",
    "versions",
]
