"""URLs of brokers: `scheme://user:password@host:port,other:port/path?option=value`.

No error quotes a possible part of the password, which may be anywhere in a URL whose special characters are not
percent-encoded.
"""

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from string import Formatter
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from perdure.brokers.tls import client_context
from perdure.database.secret import Secret, options_of
from perdure.errors import ConfigurationError

T = TypeVar("T")

SOURCE_MAX = 255  # characters of what is stored as a source
CA_FILE = "ca_file"  # the option of all encrypted connections: who may issue the certificate of the broker

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_OPTION = re.compile(r"[a-z_]+")


@dataclass(frozen=True, slots=True)
class Kind:
    """The URLs of one broker, for publishing or for consuming."""

    name: str  # in messages
    plain: Mapping[str, int]  # schemes and their default ports
    tls: Mapping[str, int]  # the same of encrypted connections
    options: Mapping[str, Callable[[str], Any]]  # each with what checks and converts its value
    path: str = ""  # what the path is, in messages


@dataclass(frozen=True, slots=True)
class BrokerURL:
    """The parts of a URL; user, password and path are decoded, and options converted."""

    shown: str  # for messages and logs: without user, password and options
    tls: ssl.SSLContext | None  # for an encrypted connection
    user: Secret
    password: Secret
    hosts: tuple[tuple[str, int], ...]
    path: str
    options: Mapping[str, Any]

    def source(self, broker: str, *place: str) -> str:
        """Return what the ids of the messages at a place of these hosts are unique in, such as `nats:host:4222/ORDERS`.

        A place of another broker may have the same name and the same ids.
        """
        hosts = ",".join(sorted(f"{host.lower()}:{port}" for host, port in self.hosts))
        found = f"{broker}:{'/'.join((hosts, *(quote(name, safe=':') for name in place)))}"
        return found if len(found) <= SOURCE_MAX else f"{broker}:{blake2b(found.encode(), digest_size=16).hexdigest()}"


def by_scheme(url: str, known: Mapping[str, T], what: str) -> T:
    """Return what belongs to the scheme of a URL; raise `ConfigurationError`, naming it `what`, if nothing does."""
    scheme = str(Secret(url).partition("://")[0]).lower()
    if "://" not in url or scheme not in known:
        raise ConfigurationError(f"{what} has an unknown scheme: use one of {', '.join(f'{s}://' for s in known)}")
    return known[scheme]


def parse(url: str, kind: Kind) -> BrokerURL:
    """Return the parts of a URL, or raise `ConfigurationError` if it is malformed or has an unknown option."""
    scheme, _, rest = Secret(url).partition("://")
    place, _, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    account, _, hosts = netloc.rpartition("@")
    ports = {**kind.plain, **kind.tls}
    if scheme not in ports or not all(map(_HOST.fullmatch, hosts.split(","))) or "@" in f"{path}{query}":
        usual, port = next(iter(kind.plain.items()))
        raise ConfigurationError(
            f"the {kind.name} URL is malformed: write {usual}://user:password@host:{port}/{kind.path}"
            "?option=value, with special characters of user and password percent-encoded"
        )
    user, _, password = (Secret(unquote(each)) for each in account.partition(":"))
    where = tuple(_host_and_port(host, ports[scheme]) for host in str(hosts).split(","))
    name = unquote(str(path))
    shown = f"{scheme}://{','.join(f'{host}:{port}' for host, port in where)}" + (f"/{name}" if name else "")
    options = _options(query, kind)
    return BrokerURL(shown, _context(scheme, kind, options), user, password, where, name, options)


def _context(scheme: str, kind: Kind, options: Mapping[str, Any]) -> ssl.SSLContext | None:
    ca_file = options.get(CA_FILE)
    if scheme in kind.tls:
        return client_context(ca_file, f"the {CA_FILE} of the {kind.name} URL")
    if ca_file is not None:
        raise ConfigurationError(
            f"the option {CA_FILE} of the {kind.name} URL is only for encrypted connections: "
            f"write {next(iter(kind.tls))}:// instead of {scheme!s}://"
        )
    return None


def _host_and_port(text: str, port: int) -> tuple[str, int]:
    host, _, given = text.rpartition(":") if re.search(r":[0-9]+\Z", text) else (text, "", "")
    return host, int(given or port)


def _options(query: str, kind: Kind) -> dict[str, Any]:
    known = {**kind.options, CA_FILE: text}
    found = {}
    for name, value in options_of(query).items():
        if name not in known:
            shown = f"'{name!s}'" if _OPTION.fullmatch(name) else "without a name"
            raise ConfigurationError(
                f"unknown option {shown} in the {kind.name} URL: use one of {', '.join(sorted(known))}"
            )
        try:
            found[str(name)] = known[name](str(value))
        except ValueError as error:
            raise ConfigurationError(f"the option {name!s} of the {kind.name} URL {error}") from None
    return found


# Values of options. Each raises `ValueError` with the end of a sentence.


def text(value: str) -> str:
    """Return a text that is not empty."""
    if not value:
        raise ValueError("must not be empty")
    return value


def count(value: str) -> int:
    """Return a number from 1 to a billion."""
    if not value.isascii() or not value.isdigit() or not 0 < int(value) <= 10**9:
        raise ValueError("must be a whole number greater than 0")
    return int(value)


def count_to(most: int) -> Callable[[str], int]:
    """Return what checks that a value is a number from 1 to `most`."""

    def check(value: str) -> int:
        if (found := count(value)) > most:
            raise ValueError(f"must be at most {most}")
        return found

    return check


def duration(value: str) -> float:
    """Return a number of seconds above 0."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError("must be a number of seconds greater than 0")
    return seconds


def choice(*values: str) -> Callable[[str], str]:
    """Return what checks that a value is one of these."""

    def check(value: str) -> str:
        if value not in values:
            raise ValueError(f"must be one of {', '.join(values)}")
        return value

    return check


def matching(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    """Return what checks that a value matches a pattern, which `what` describes."""

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"must be {what}")
        return value

    return check


class Template:
    """A name with the placeholders `{type}` and `{source}` of an event, such as `orders.{type}`."""

    def __init__(self, pattern: str) -> None:
        if not pattern:
            raise ValueError("must not be empty")
        try:
            parts = list(Formatter().parse(pattern))
        except ValueError:
            parts = [("", "?", "", None)]
        if any(name not in (None, "type", "source") or form or how for _, name, form, how in parts):
            raise ValueError("must be a text in which only {type} and {source} are replaced; write a brace as {{ or }}")
        self._pattern = pattern
        self.start = parts[0][0]  # the text before the first placeholder
        self.is_fixed = all(name is None for _, name, _, _ in parts)  # the same name for all events

    def fill(self, *, type: str, source: str) -> str:
        """Return the name for an event."""
        return self._pattern.format(type=type, source=source)


def template(pattern: re.Pattern[str], what: str) -> Callable[[str], Template]:
    """Return what checks that a value is a template whose names can match a pattern, which `what` describes."""
    check = matching(pattern, what)

    def checked(value: str) -> Template:
        found = Template(value)
        check(found.fill(type="type", source="source"))
        return found

    return checked


MODE = choice("structured", "binary")
