"""The pages: Markdown as GitHub shows it, and how it becomes Markdown for the site.

Links work on GitHub and are checked there: each relative link, image and anchor, and each address of a file of this
repository. For the site, links to pages stay relative, and links to other files become addresses of the repository.
"""

import os
import posixpath
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/perdure/perdure"
# Pages at the top of the repository, and their names on the site.
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
TOP["SECURITY.md"] = "security.md"

_FENCE = re.compile(r"^(```+|~~~+).*?^\1$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)", re.DOTALL)
_LINK = re.compile(r"""(?<=\]\()([^)\s]+)(?=(?: +"[^"]*")?\))""")
_OTHER_LINK = re.compile(r"""^ {0,3}\[[^]]+\]: *(\S+)|(?:href|src)="([^"]+)\"""", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_OWN = re.compile(
    rf"(?:{re.escape(REPOSITORY)}/(?:blob|tree|raw)|https://raw\.githubusercontent\.com/perdure/perdure)/main/([^#]*)(#.*)?$"
)
_ESCAPED_PIPE = re.compile(r"\\\|")


def sources() -> dict[str, Path]:
    """Return the files of all pages by their names on the site."""
    found = {file.relative_to(DOCS).as_posix(): file for file in sorted(DOCS.rglob("*.md"))}
    return {**{name: ROOT / top for top, name in TOP.items()}, **found}  # docs/index.md instead of the README


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub and the site give to the headings of a page."""
    return {slug(heading) for heading in _HEADING.findall(_FENCE.sub("", text))}


def title(text: str) -> str:
    """Return the first heading of a page as plain text."""
    found = _HEADING.search(_FENCE.sub("", text))
    assert found is not None, "every page has a heading"
    return re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", found[1])


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading."""
    shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", separator)


def dead_links(file: Path) -> list[str]:
    """Return the links of a page that lead nowhere, and those in HTML or definitions, which the site does not adapt."""
    text = file.read_text("utf-8")
    prose = [part for part, is_code in _parts(text) if not is_code]
    found = [link for part in prose for link in _LINK.findall(part)]
    other = [first or second for part in prose for first, second in _OTHER_LINK.findall(part)]
    return [link for link in found if not _leads_somewhere(file, text, link)] + [
        link for link in other if not re.match(r"[a-z]+:", link)
    ]


def _leads_somewhere(file: Path, text: str, link: str) -> bool:
    if (own := _OWN.match(link)) is not None:
        path, anchor = ROOT / own[1], (own[2] or "")[1:]
    elif re.match(r"[a-z]+:", link):
        return True  # another host, which is not asked
    else:
        relative, _, anchor = link.partition("#")
        path = file.parent / relative if relative else file
    if not path.exists():
        return False
    return not anchor or (path.suffix == ".md" and anchor in _anchors_of(path))


@cache
def _anchors_of(file: Path) -> set[str]:
    return anchors(file.read_text("utf-8"))


def for_site(name: str, file: Path) -> str:
    """Return the Markdown of a page for the site."""

    def moved(part: str) -> str:
        return _LINK.sub(lambda found: _site_link(name, file, found[1]), part)

    text = file.read_text("utf-8").replace("<details>", '<details markdown="1">')
    return _pipes_in_tables(_outside_code(text, moved))


def _site_link(name: str, file: Path, link: str) -> str:
    """Return a link as it has to be on the site."""
    if (own := _OWN.match(link)) is not None:
        path, anchor = own[1], own[2] or ""
    elif re.match(r"[a-z]+:|#", link):
        return link
    else:
        relative, mark, rest = link.partition("#")
        path, anchor = os.path.relpath(file.parent / relative, ROOT), mark + rest
    target = TOP.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if target is None or not (path in TOP or (ROOT / path).is_file()):
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{path}{anchor}"
    return posixpath.relpath(target, posixpath.dirname(name) or ".") + anchor


def _pipes_in_tables(text: str) -> str:
    """Remove the backslash before pipes in code of tables: GitHub needs it, and the site shows it."""

    def plain(line: str) -> str:
        return _CODE.sub(lambda code: _ESCAPED_PIPE.sub("|", code[0]), line) if line.startswith("|") else line

    return "\n".join(map(plain, text.split("\n")))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if is_code else change(part) for part, is_code in _parts(text))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text and whether each is code. An image in a link is not split."""
    blocks = [match.span() for match in _FENCE.finditer(text)]
    at = 0
    for start, end in [*blocks, (len(text), len(text))]:
        yield from _inline_parts(text[at:start])
        yield text[start:end], True
        at = end


def _inline_parts(text: str) -> Iterator[tuple[str, bool]]:
    at = 0
    for match in _CODE.finditer(text):
        yield text[at : match.start()], False
        yield match[0], True
        at = match.end()
    yield text[at:], False
