"""Take the URLs of databases apart: `scheme://user:password@host:port,other:port/database?option=value`.

Each backend describes its own URLs as a `Kind`. No error quotes a possible part of the password, which may be anywhere
in a URL whose special characters are not percent-encoded.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import unquote

from perdure.database.dialects import new_driver
from perdure.database.secret import Secret, options_of
from perdure.errors import ConfigurationError

IDLE_TIMEOUT = "idle_transaction_timeout"


class Kind(NamedTuple):
    """Describe the URLs of one kind of server."""

    name: str  # in messages
    schemes: tuple[str, ...]  # the usual one first
    port: int
    host: re.Pattern[str]
    options: Mapping[str, Callable[[str], Any]]  # ours, with their types
    passed_on: tuple[str, ...] = ()  # options of the native driver
    default_host: str = ""


class Parts(NamedTuple):
    """Hold the parts of a URL; user and password are decoded."""

    user: Secret
    password: Secret
    hosts: Secret
    database: Secret
    options: dict[str, Secret]


def split(url: str, kind: Kind) -> Parts:
    """Return the parts of a URL, or raise `ConfigurationError` if it is malformed."""
    scheme, _, rest = Secret(url).partition("://")
    place, _, query = rest.partition("?")
    netloc, _, database = place.partition("/")
    account, _, hosts = netloc.rpartition("@")
    user, _, password = (Secret(unquote(each)) for each in account.partition(":"))
    hosts = hosts or Secret(kind.default_host)
    wrong_host = not all(kind.host.fullmatch(host) for host in hosts.split(","))
    if scheme not in kind.schemes or wrong_host or "@" in database + query:
        raise ConfigurationError(
            f"the {kind.name} URL is malformed: write {kind.schemes[0]}://user:password@host:{kind.port}/database"
            "?option=value, with special characters of user and password percent-encoded"
        )
    return Parts(user, password, hosts, database, options_of(query))


def convert_options(options: Mapping[str, str], kind: Kind) -> dict[str, Any]:
    """Return our options, converted to their types; those of the native driver are left out."""
    return {name: _converted(name, value, kind) for name, value in options.items() if name not in kind.passed_on}


def _converted(name: str, value: str, kind: Kind) -> Any:
    if name not in kind.options:
        shown = f"'{name}'" if name.isidentifier() else "without a name"
        known = ", ".join((*kind.options, *kind.passed_on))
        raise ConfigurationError(f"unknown option {shown} in the {kind.name} URL: use one of {known}")
    convert = kind.options[name]
    with suppress(ValueError):  # raised below, with a text that names the option
        converted = convert(value)
        if convert is str or 0 < converted < 1e6:
            return converted
    raise ConfigurationError(f"the option {name} of the {kind.name} URL must be a number greater than 0")


def limit_idle_transactions(url: str, seconds: float) -> str:
    """Return the URL with a limit on idle transactions, unless it has one, or the database has no such limit."""
    _, mark, query = Secret(url).partition("?")
    if not new_driver(url).features.idle_timeout or IDLE_TIMEOUT in options_of(query):
        return url
    return Secret(f"{url}{'&' if mark else '?'}{IDLE_TIMEOUT}={seconds:g}")
