"""Importing the user's workflows and App: `module`, or `module:app`."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from perdure.cli.exits import CommandError, UsageError
from perdure.cli.options import Common
from perdure.cli.settings import app_name, database_url
from perdure.codecs.pipeline import Codecs
from perdure.engine.api.app import App
from perdure.engine.replay.definitions import WORKFLOWS

DEFAULT = "app"


def import_workflows(common: Common) -> bool:
    """Import the module that defines the workflows, if one is configured; return whether one is."""
    name = app_name(common)
    if name is not None:
        load_module(name.partition(":")[0])
    return name is not None


def codec_of(common: Common, *modules: str) -> Codecs | None:
    """Return how values are stored by the App of `--app` or `[tool.perdure]`, or else by the first App in `modules`.

    None if there is no such App, or it has no codec.
    """
    name = app_name(common)
    apps = (find_app(each) for each in ((name,) if name is not None else modules))
    app = next((each for each in apps if each is not None), None)
    return None if app is None or app.pipeline is None else app.pipeline.codecs


def load_app(name: str, common: Common) -> App:
    """Return the App of `module:app`. Of a module without an App, return one for all its workflows on the database."""
    app = find_app(name)
    if app is not None:
        return app
    if not WORKFLOWS:
        raise UsageError(
            f"module {name!r} has no App and defines no workflows: name the App (module:app), or use @workflow"
        )
    return App(database_url(common))


def find_app(name: str) -> App | None:
    """Return the App that `module:app` names; of a plain module its `app`, if that is an App, or None.

    The object may also be a function without parameters that returns an App. Raise `UsageError` if there is none.
    """
    module_name, mark, attribute = name.partition(":")
    module = load_module(module_name)
    found = getattr(module, attribute or DEFAULT, None)
    if callable(found) and not isinstance(found, App | type) and mark:
        found = found()
    if isinstance(found, App):
        return found
    if not mark:
        return None
    if not hasattr(module, attribute):
        known = ", ".join(sorted(each for each, value in vars(module).items() if isinstance(value, App))) or "none"
        raise UsageError(f"module {module_name!r} has no {attribute!r}; its Apps are: {known}")
    raise UsageError(f"{name} is no App but {type(found).__name__}: use App(…), or a function that returns one")


def load_module(name: str) -> ModuleType:
    """Import a module of the user, also from the current folder; raise `UsageError` if it does not exist."""
    if not name or name.endswith(".py") or "/" in name:
        raise UsageError(f"{name!r} is no module: write its name as in an import, such as shop.workflows:app")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"module {name!r} needs the module {error.name!r}, which is not installed") from error
        raise UsageError(f"module {name!r} does not exist: correct the name, or change to its folder") from error
    except Exception as error:  # the code of the user may raise anything
        raise CommandError(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}; --debug shows the traceback",
            code="cli.import",
        ) from error
