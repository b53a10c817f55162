"""Versions of a workflow: different functions under one name."""

from collections.abc import Callable, Coroutine
from typing import Any

from perdure import workflow
from perdure.engine.replay.definitions import WORKFLOWS


def version(function: Callable[..., Coroutine[Any, Any, Any]], name: str, max_tries: int | None = None) -> Any:
    """A version of a workflow's code; not in the registry, where a name is taken once."""
    made = workflow(name=name, max_tries=max_tries)(function)
    del WORKFLOWS[name]
    return made
