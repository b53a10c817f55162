"""The planted bugs, and how to insert one."""

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
LIST = Path(__file__).with_name("bugs.toml")


@dataclass(frozen=True, slots=True)
class Bug:
    """A small change that breaks a promise, and the tests that must notice."""

    what: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    @property
    def count(self) -> int:
        """How often the text that is changed stands in its file; once, if the list is up to date."""
        return self._text().count(self.old)

    def changed(self) -> str:
        """The text of the file with the bug."""
        return self._text().replace(self.old, self.new)

    def _text(self) -> str:
        return (SOURCE / "perdure" / self.file).read_text()

    def plant(self, folder: Path) -> Path:
        """Copy the sources with the bug; return the folder to import from."""
        copy = folder / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "perdure" / self.file).write_text(self.changed())
        return copy


def all_bugs() -> list[Bug]:
    """The list."""
    found = tomllib.loads(LIST.read_text())["bug"]
    return [Bug(**{**bug, "caught_by": tuple(bug["caught_by"])}) for bug in found]
