"""Connect to MySQL and MariaDB through asyncmy: through its text protocol only, without its cursors and its pool."""

from perdure.database.backends.mysql.backend import MySQLBackend

__all__ = ["MySQLBackend"]
