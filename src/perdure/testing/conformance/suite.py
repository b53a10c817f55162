"""Collect all tests of the contract, for `from perdure.testing.conformance.suite import *` in a test module.

The name of a test has the name of its aggregate in front: `test_locks_…`. The fixtures are imported, too, except
`harness`, which the test module provides.
"""

from importlib import import_module
from typing import Any

import pytest

from perdure.testing.conformance.harness import opened_harness, peer, shift, storage

AGGREGATES = (
    "archive",
    "channels",
    "compensations",
    "creation",
    "definitions",
    "delivery",
    "groups",
    "history",
    "instances",
    "journals",
    "listing",
    "locks",
    "matching",
    "outbox",
    "stuck",
    "system_locks",
    "timers",
    "transactions",
    "waits",
    "workers",
)


def contract_tests() -> dict[str, Any]:
    """Return every test of the contract by its name, which begins with its aggregate."""
    found: dict[str, Any] = {}
    for aggregate in AGGREGATES:
        module = import_module(f"perdure.testing.conformance.{aggregate}")
        for name, test in vars(module).items():
            if name.startswith("test_"):
                found[f"test_{aggregate}_{name.removeprefix('test_')}"] = test
    return found


pytestmark = pytest.mark.asyncio  # also where pytest-asyncio runs in its strict mode

_tests = contract_tests()
globals().update(_tests)
__all__ = ["opened_harness", "peer", "pytestmark", "shift", "storage", *_tests]
