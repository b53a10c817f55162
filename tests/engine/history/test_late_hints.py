"""Type hints that name classes defined later or only for type checkers: unquoted since Python 3.14, strings before."""

import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest

from perdure import App

TEXTS = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
SOURCE = """
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure import activity, workflow

if TYPE_CHECKING:
    from nowhere import Unseen

@activity
async def doubled(number: Number, unseen: Unseen, listed: list[Unseen]) -> Number:
    return Number(number.value * 2, number)

@workflow(name="late_hints")
async def double(number: Number, unseen: Unseen) -> Number:
    return await doubled(number, unseen, [unseen])

@dataclass
class Number:
    value: int
    half: Number | None = None
"""


@pytest.fixture
def late_hints(tmp_path: Path) -> ModuleType:
    path = tmp_path / "late_hints.py"
    path.write_text(TEXTS + SOURCE)
    spec = importlib.util.spec_from_file_location("late_hints", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["late_hints"] = module
    spec.loader.exec_module(module)
    return module


async def test_hints_may_name_classes_that_are_defined_later_or_nowhere(late_hints: ModuleType) -> None:
    async with App("sqlite:///:memory:"):
        number = late_hints.Number(4)
        assert await (await late_hints.double.start(number, "u")).result() == late_hints.Number(8, number)


async def test_hint_that_cannot_be_resolved_is_logged(late_hints: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "perdure.engine")
    async with App("sqlite:///:memory:"):
        await (await late_hints.double.start(late_hints.Number(4), "u")).result()
    messages = [record.getMessage() for record in caplog.records]
    assert [text for text in messages if "of double cannot be resolved and counts as missing: NameError: " in text]
    assert not [text for text in messages if "Number of double" in text]
