"""docs/cli.md: its commands run one after the other, beside a worker, and print what the page shows."""

from pathlib import Path

from tests.docs.console import Session
from tests.docs.marks import ROOT


def test_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    with Session(tmp_path) as terminal:
        terminal.play((ROOT / "docs" / "cli.md").read_text("utf-8"))
