"""What differs between databases: a Driver each."""

from perdure.database.dialects.base import Driver
from perdure.database.dialects.mysql import MySQLDriver
from perdure.database.dialects.postgres import PostgresDriver
from perdure.database.dialects.sqlite import SQLiteDriver
from perdure.errors import ConfigurationError

__all__ = ["Driver", "MySQLDriver", "PostgresDriver", "SQLiteDriver", "new_driver"]


def new_driver(url: str) -> Driver:
    """The Driver for a database URL, by its scheme; nothing is connected."""
    scheme = str(url).partition(":")[0].lower()
    match scheme:
        case "sqlite":
            return SQLiteDriver()
        case "postgresql" | "postgres":
            return PostgresDriver()
        case "mysql" | "mariadb":
            return MySQLDriver()
    raise ConfigurationError(f"unknown database {scheme[:20]!r}: a URL begins with sqlite, postgresql or mysql")
