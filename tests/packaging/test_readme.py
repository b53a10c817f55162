"""The README is the page of the project on PyPI, where relative links do not work."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGETS: list[str] = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text("utf-8"))
_IN_REPOSITORY = re.compile(r"https://github\.com/perdure/perdure/(blob|tree)/main/([^#]+)")


def test_readme_links_are_absolute() -> None:
    assert TARGETS
    assert [target for target in TARGETS if not target.startswith(("https://", "#"))] == []


def test_readme_links_into_the_repository_lead_to_files_and_directories() -> None:
    for target in TARGETS:
        if found := _IN_REPOSITORY.match(target):
            kind, path = found.groups()
            assert (ROOT / path).is_dir() if kind == "tree" else (ROOT / path).is_file(), target
