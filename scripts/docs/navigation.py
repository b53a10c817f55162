"""The navigation: which page is in which section, by docs/nav.toml."""

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Section:
    """A section of the navigation, with the paths of its pages."""

    title: str
    pages: tuple[str, ...]


class NavigationError(Exception):
    """A page is in no section or in two, or a line of docs/nav.toml stands for no page."""


def navigation(text: str, pages: Collection[str]) -> list[Section]:
    """Return the sections of `docs/nav.toml` with their pages; raise `NavigationError` if they don't match."""
    wanted = [(each["title"], each["pages"]) for each in tomllib.loads(text)["section"]]
    named = [line for _, lines in wanted for line in lines if not _is_pattern(line)]
    twice = sorted({name for name in named if named.count(name) > 1})
    sections = [Section(title, tuple(_found(lines, pages, named))) for title, lines in wanted]
    placed = [page for section in sections for page in section.pages]
    missing = sorted(set(named) - set(pages))
    nowhere = sorted(set(pages) - set(placed))
    if twice or missing or nowhere:
        raise NavigationError(
            f"docs/nav.toml: in no section: {nowhere or 'none'}; no such page: {missing or 'none'}; "
            f"in two sections: {twice or 'none'}"
        )
    return [section for section in sections if section.pages]


def _found(lines: list[str], pages: Collection[str], named: Collection[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        if _is_pattern(line):
            matching = (page for page in pages if fnmatchcase(page, line) and page not in named)
            found += sorted(matching, key=lambda page: page.removesuffix(".md"))
        else:
            found.append(line)
    return found


def _is_pattern(line: str) -> bool:
    return "*" in line
