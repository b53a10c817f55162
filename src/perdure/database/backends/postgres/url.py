"""Parse the URL of a PostgreSQL database: `postgresql://user:password@host:5432,other:5432/database?option=value`.

- `pool_size`, `pool_timeout`: maximum number of connections, and maximum wait for one in seconds
- `connect_timeout`, `command_timeout`: seconds after which a server that does not answer counts as unavailable; with
  several hosts the timeout applies to each
- `idle_transaction_timeout`: seconds without a statement after which a transaction is ended (default: never)
- `pooler=transaction`: connections go through a pooler such as PgBouncer (also detected automatically)
- `schema`: the schema that holds the tables (default: `perdure`, or where the tables of Edda or Romancy already are)
- `application_name`, `search_path`, `options`: settings of the server
- asyncpg's own: `sslmode` and its certificates, `target_session_attrs`, `host`, `port`, `passfile`, `service`, ...
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from perdure.database.secret import Secret
from perdure.database.urls import Kind, convert_options, split
from perdure.errors import ConfigurationError

KIND = Kind(
    "PostgreSQL",
    ("postgresql", "postgres", "postgresql+asyncpg"),
    5432,
    re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^:\[\]@\s]*)(?::\d{1,5})?"),
    {
        "pool_size": int,
        "pool_timeout": float,
        "connect_timeout": float,
        "command_timeout": float,
        "idle_transaction_timeout": float,
        "pooler": str,
        "application_name": str,
        "schema": str,
    },
    (
        *("search_path", "options", "target_session_attrs", "host", "port", "dbname", "database", "user", "password"),
        *("passfile", "service", "sslmode", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl"),
        *("sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version", "krbsrvname", "gsslib"),
    ),
)
_NAMES = frozenset({"dbname", "database", "service"})
_SCHEMA = re.compile(r"(?!pg_|information_schema$)[^\W\d][\w-]*")  # PostgreSQL reserves these two
_SCHEMA_MAX = 63  # bytes; PostgreSQL would truncate a longer name


class Address(NamedTuple):
    """Hold asyncpg's address. The password is a function, so that asyncpg does not report it among its arguments."""

    dsn: str
    user: str | None
    password: Callable[[], str] | None

    @property
    def place(self) -> str:
        """Return the host and its port."""
        return str(self.dsn.partition("://")[2].partition("/")[0])

    def hosts(self) -> "list[Address]":
        """Return one address per host: asyncpg applies one timeout to all, and gives up at the first faulty host."""
        scheme, _, rest = self.dsn.partition("://")
        hosts, _, path = rest.partition("/")
        if "target_session_attrs=prefer-standby" in path:  # needs all hosts to choose among them
            return [self]
        return [self._replace(dsn=Secret(f"{scheme}://{host}/{path}")) for host in hosts.split(",")]


def parse(url: str) -> tuple[Address, dict[str, Any], str]:
    """Return the address, our options, and the hosts for messages."""
    user, password, hosts, database, given = split(url, KIND)
    options = convert_options(given, KIND)
    _check(options)
    passed = {name: value for name, value in given.items() if name in KIND.passed_on}
    for name in ("sslcert", "sslkey", "sslrootcert", "sslcrl"):
        if not Path(passed.get(name, ".")).exists():
            raise ConfigurationError(f"the file named by {name} in the PostgreSQL URL does not exist")
    if not (database or _NAMES.intersection(passed) or any(map(os.environ.get, ("PGDATABASE", "PGSERVICE")))):
        raise ConfigurationError(
            "the PostgreSQL URL names no database, and the default database may not be intended: end the URL with "
            "/database, or set PGDATABASE"
        )
    user, password = user or passed.pop("user", user), password or passed.pop("password", password)
    dsn = Secret(f"postgresql://{hosts}/{database}" + (f"?{urlencode(passed)}" if passed else ""))
    address = Address(dsn, str(user) or None, (lambda: str(password)) if password else None)  # asyncpg needs plain str
    return address, options, str(hosts) or passed.get("host") or "its usual address"


def _check(options: dict[str, Any]) -> None:
    if options.get("pooler", "transaction") != "transaction":
        raise ConfigurationError("the option pooler of the PostgreSQL URL must be 'transaction'")
    schema = options.get("schema", "perdure")
    if not _SCHEMA.fullmatch(schema) or len(schema.encode()) > _SCHEMA_MAX:
        raise ConfigurationError(
            "the option schema of the PostgreSQL URL is not a schema name: it must begin with a letter or '_', contain "
            f"only letters, digits, '_' and '-', be at most {_SCHEMA_MAX} bytes long, and be neither "
            "information_schema nor begin with pg_"
        )
