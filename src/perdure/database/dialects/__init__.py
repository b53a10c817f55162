"""Describe what differs between databases: one Driver each."""

from perdure.database.dialects.base import Driver
from perdure.database.dialects.features import Features
from perdure.database.dialects.mysql import MySQLDriver
from perdure.database.dialects.postgres import PostgresDriver
from perdure.database.dialects.sqlite import SQLiteDriver
from perdure.database.secret import Secret
from perdure.errors import ConfigurationError

__all__ = ["Driver", "Features", "MySQLDriver", "PostgresDriver", "SQLiteDriver", "features_of", "new_driver"]


DRIVERS = {each.name: each for each in (SQLiteDriver, PostgresDriver, MySQLDriver)}


def features_of(dialect: str) -> Features:
    """Return the features of the dialect with this name."""
    return DRIVERS[dialect].features


def new_driver(url: str) -> SQLiteDriver | PostgresDriver | MySQLDriver:
    """Return the Driver for a database URL, by its scheme, without connecting."""
    url = Secret(url)
    match url.partition(":")[0].lower():
        case "sqlite":
            return SQLiteDriver()
        case "postgresql" | "postgres":
            return PostgresDriver()
        case "mysql" | "mariadb":
            return MySQLDriver()
    raise ConfigurationError(
        "a database URL begins with sqlite://, postgresql:// or mysql://, and this one does not: for a file use "
        "sqlite:///name.db"
    )
