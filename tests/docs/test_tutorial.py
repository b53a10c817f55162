"""The tutorial: a reader who follows its pages in one folder sees what they show."""

import socket
from pathlib import Path

import pytest

from tests.docs.console import Session
from tests.docs.test_blocks import TUTORIAL


@pytest.mark.timeout(300)  # it starts a dozen workers; a loaded machine has needed two minutes
async def test_commands_of_all_pages_print_what_they_show(fresh_postgres_db: str, tmp_path: Path) -> None:
    here = {"postgresql://postgres@localhost/shop": fresh_postgres_db, "8001": str(_free_port())}
    assert len(TUTORIAL) == 11
    for page in TUTORIAL:
        with Session(tmp_path, here) as terminal:
            terminal.play(page.read_text("utf-8"))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
