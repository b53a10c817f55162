"""The folder that the site is built from: pages with expanded references, images, and the configuration."""

import json
from pathlib import Path

from scripts.docs.navigation import Section, navigation
from scripts.docs.pages import DOCS, for_site, sources, title
from scripts.docs.reference import Reference


def staged_pages() -> dict[str, str]:
    """Return the Markdown of all pages by their names on the site."""
    pages = {name: for_site(name, file) for name, file in sources().items()}
    reference = Reference(pages)
    return {name: reference.expanded(name, text) for name, text in pages.items()}


def stage(folder: Path) -> None:
    """Write everything that the site is built from to a folder; files that have not changed are not touched."""
    pages = staged_pages()
    for name, text in pages.items():
        _write(folder / "docs" / name, (_front_matter(name, text) + text).encode())
    for file in DOCS.rglob("*"):
        if file.is_file() and file.suffix not in (".md", ".toml"):
            _write(folder / "docs" / file.relative_to(DOCS), file.read_bytes())
    _remove_others(folder / "docs", pages)
    sections = navigation((DOCS / "nav.toml").read_text("utf-8"), pages.keys())
    _write(folder / "zensical.toml", _configuration(sections, pages).encode())


def _front_matter(name: str, text: str) -> str:
    """Return the title of a page that has none in the navigation: browsers would show "Index"."""
    return f"---\ntitle: {json.dumps(title(text))}\n---\n\n" if name.rpartition("/")[2] == "index.md" else ""


def _configuration(sections: list[Section], pages: dict[str, str]) -> str:
    # A string in JSON is one in TOML, too.
    nav = ", ".join(
        f"{{{json.dumps(each.title)} = [{', '.join(_entry(name, pages[name]) for name in each.pages)}]}}"
        for each in sections
    )
    return (DOCS / "site.toml").read_text("utf-8").replace("nav = []", f"nav = [{nav}]")


def _entry(name: str, text: str) -> str:
    """Return a page in the navigation, with its title. The first page of a section is the section itself."""
    if name.rpartition("/")[2] == "index.md":
        return json.dumps(name)
    return f"{{{json.dumps(title(text))} = {json.dumps(name)}}}"


def _write(file: Path, content: bytes) -> None:
    if not file.is_file() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _remove_others(folder: Path, pages: dict[str, str]) -> None:
    for file in folder.rglob("*"):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and name not in pages and not (DOCS / name).is_file():
            file.unlink()
