"""Settings: the database and the app, from options, the environment, or `[tool.perdure]` of the next pyproject.toml."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.cli.exits import UsageError
from perdure.cli.options import Common
from perdure.database.secret import Secret

VARIABLES = ("PERDURE_URL", "DATABASE_URL")
KNOWN = ("app", "database")
# What other tools write into DATABASE_URL: with the driver of SQLAlchemy, or with the short names of Django and Heroku.
_SCHEMES = {"postgres": "postgresql", "mariadb": "mysql"}


def database_url(common: Common) -> Secret:
    """Return the URL of the database; raise `UsageError` if there is none."""
    given = common.database or _from_environment() or _setting("database") or _url_of_app(common)
    if not given:
        raise UsageError(
            "no database is given: pass --database sqlite:///orders.db, set PERDURE_URL or DATABASE_URL, or write "
            'database = "…" under [tool.perdure] in pyproject.toml'
        )
    return plain_url(Secret(given))


def app_name(common: Common) -> str | None:
    """Return the module, or module:app, that defines the workflows; None if there is none."""
    return common.app or _setting("app")


def _from_environment() -> str | None:
    return next((Secret(os.environ[name]) for name in VARIABLES if os.environ.get(name)), None)


def _url_of_app(common: Common) -> str | None:
    """Return the URL of the App that `--app module:app` names."""
    from perdure.cli.apps import find_app  # it imports the module of the user

    name = app_name(common)
    app = None if name is None else find_app(name)
    return None if app is None else app.url or None


def plain_url(url: Secret) -> Secret:
    """Return a URL with the scheme that perdure uses."""
    scheme, mark, rest = url.partition("://")
    plain = scheme.partition("+")[0].lower() if mark else scheme
    return Secret(f"{_SCHEMES.get(plain, plain)}{mark}{rest}")


def _setting(name: str) -> str | None:
    found = project_settings(Path.cwd()).get(name)
    if found is not None and not isinstance(found, str):
        raise UsageError(f"[tool.perdure] {name} in pyproject.toml must be a text, not {found!r}")
    return found


def project_settings(folder: Path) -> Mapping[str, Any]:
    """Return `[tool.perdure]` of the pyproject.toml in this folder or the nearest one above; empty if there is none."""
    for each in (folder, *folder.parents):
        file = each / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            found: Any = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("perdure", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise UsageError(f"{file} cannot be read: {error}") from error
        unknown = sorted(found.keys() - set(KNOWN)) if isinstance(found, dict) else ["tool.perdure is no table"]
        if unknown:
            shown, known = ", ".join(unknown), ", ".join(KNOWN)
            raise UsageError(f"{file} has an unknown setting for perdure: {shown}; known are {known}")
        return dict(found)
    return {}
