"""The tables, as dbmate files a dialect, and what brings a database up to them."""

from perdure.storage.migrations.runner import Migration, Session, migrate, missing, reset, up_statements, versions

__all__ = ["Migration", "Session", "migrate", "missing", "reset", "up_statements", "versions"]
