"""Execute the code of a program, such as an example, as if no other program were in this process."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from perdure.engine.replay import definitions

REGISTRIES = ("WORKFLOWS", "ACTIVITIES", "COMPENSATIONS", "UNDOABLE_WORKFLOWS")


@contextmanager
def no_other_program() -> Iterator[None]:
    """Let the block define workflows and activities of any name, and forget them afterwards."""
    registries: list[dict[str, object]] = [getattr(definitions, name) for name in REGISTRIES]
    before = [dict(each) for each in registries]
    for registry in registries:
        registry.clear()
    try:
        yield
    finally:
        for registry, known in zip(registries, before, strict=True):
            registry.clear()
            registry.update(known)


def load_anew(module: str) -> ModuleType:
    """Import a module again, so that it defines its workflows again."""
    sys.modules.pop(module, None)
    return importlib.import_module(module)
