"""The workflows of the rig as one process has them, and their deploy."""

import importlib.util
import sys
from typing import Any

from perdure import Workflow
from perdure.engine.replay.definitions import ACTIVITIES, COMPENSATIONS, UNDOABLE_WORKFLOWS, WORKFLOWS
from tests.takeover import definitions

_REGISTRIES: tuple[dict[str, Any], ...] = (WORKFLOWS, ACTIVITIES, COMPENSATIONS, UNDOABLE_WORKFLOWS)


def _own(registry: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in registry.items() if name.startswith("takeover.")}


def _unschedule() -> None:
    """Remove the schedule from the registry: an App that names no workflows, as in other tests, serves all of it."""
    WORKFLOWS.pop("takeover.scheduled", None)


_FIRST = [_own(registry) for registry in _REGISTRIES]
_unschedule()


class Deployment:
    """Each deploy defines the workflows and activities anew, from the same source."""

    def __init__(self) -> None:
        self._number = 0
        self._workflows = _FIRST[0]

    def reset(self) -> None:
        """Return to the first definitions."""
        for registry, first in zip(_REGISTRIES, _FIRST, strict=True):
            registry.update(first)
        self._workflows = _FIRST[0]
        _unschedule()

    def deploy(self) -> None:
        """Execute the source of the definitions again, as a new process would."""
        self._number += 1
        for registry in _REGISTRIES:
            for name in _own(registry):
                del registry[name]
        name = f"{definitions.__name__}_{self._number}"
        spec = importlib.util.spec_from_file_location(name, definitions.__file__)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[name]
        self._workflows = _own(WORKFLOWS)
        _unschedule()

    def workflows(self, *names: str) -> list[Workflow[..., Any]]:
        """The current definitions with these names."""
        return [self._workflows[name] for name in names]
