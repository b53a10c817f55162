"""docs/troubleshooting.md: its commands print what it shows, and it names every error with its code."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import errors
from tests.docs.console import Session
from tests.docs.marks import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")


def error_classes(base: type[errors.PerdureError] = errors.PerdureError) -> Iterator[type[errors.PerdureError]]:
    yield base
    for each in base.__subclasses__():
        if each.__module__ == errors.__name__:  # programs and tests define subclasses, too
            yield from error_classes(each)


def test_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    with Session(tmp_path) as terminal:
        terminal.play(PAGE)


@pytest.mark.parametrize("error", list(error_classes()), ids=lambda error: error.code)
def test_every_error_is_on_the_page_with_its_code(error: type[errors.PerdureError]) -> None:
    lines = [line for line in PAGE.splitlines() if f"`{error.code}`" in line]
    assert [line for line in lines if error.__name__ in line] != []
