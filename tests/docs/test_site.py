"""The documentation site: it builds, its links lead somewhere, and it has every page, public name and setting."""

import ast
import inspect
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.async_api import Browser, ViewportSize

from perdure import App, Client, HistoryEntry, Relay, Retention, RunInfo, StepInfo, SyncClient
from perdure.dashboard import dashboard_app, serve_dashboard
from perdure.http import http_app, serve
from perdure.integrations.otel import OpenTelemetry, OpenTelemetryMetrics
from perdure.integrations.prometheus import Prometheus
from scripts.docs.building import BuildError, build
from scripts.docs.definitions import PUBLIC
from scripts.docs.navigation import NavigationError, navigation
from scripts.docs.pages import DOCS, dead_links, for_site, sources, title
from scripts.docs.reference import Directive, Reference
from scripts.docs.signatures import items, parameters, settings
from scripts.docs.staging import staged_pages
from tests.dashboard.browser import Watched, browser
from tests.docs.marks import ROOT

NAVIGATION = (DOCS / "nav.toml").read_text("utf-8")
SETTINGS = (
    App,
    Client,
    SyncClient,
    Relay,
    Retention,
    http_app,
    serve,
    dashboard_app,
    serve_dashboard,
    OpenTelemetry,
    OpenTelemetryMetrics,
    Prometheus,
)
MARKDOWN = [ROOT / "README.md", *sources().values(), *(ROOT / "examples").glob("*/README.md")]
# Calls, reads and values: their parameters are in the reference, and are no settings.
NO_SETTINGS = {
    "perdure.wait_event",
    "perdure.receive",
    "perdure.send_event",
    "perdure.codecs.Encoded",
    "perdure.inspection.read_tree",
    "perdure.testing.TestClock",
    "perdure.testing.history_of",
}
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?: seconds?)?")
_VARIABLE = re.compile(r'"(PERDURE_[A-Z_]+|NO_COLOR|DATABASE_URL)"')
WIDE_TABLES = """[...document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset__table, .md-typeset table")]
    .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.textContent.slice(0, 100))"""
CUT_SETTINGS = """[...document.querySelectorAll("td")]
    .filter((each) => each.closest("table").querySelector("td:first-child br"))
    .filter((each) => each.getBoundingClientRect().right > innerWidth).map((each) => each.textContent)"""
# Of the theme, and of Markdown; and tables that scroll, which browsers let people focus.
MINOR = ("landmark-unique", "empty-table-header", "scrollable-region-focusable")
_INTERNAL = re.compile(r"PERDURE_(?:DEMO|DEV)_")  # between processes of one command


class Links(HTMLParser):
    """The links and anchors of a page, and what it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {""}
        self.title = unescape(html.partition("<title>")[2].partition("</title>")[0])
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") == "stylesheet":
            self.loaded.append(given["href"])


@cache
def reference() -> Reference:
    return Reference({name: for_site(name, file) for name, file in sources().items()})


@cache
def settings_page() -> str:
    return staged_pages()["reference/settings.md"]


@pytest.mark.timeout(300)  # ten seconds of computing, for which a loaded machine has needed two minutes
async def test_site_builds_its_links_resolve_and_a_browser_shows_its_pages_whole(tmp_path: Path) -> None:
    site = build(tmp_path)
    pages = {file.relative_to(site).as_posix(): Links(file.read_text("utf-8")) for file in site.rglob("*.html")}
    assert {_address(name) for name in sources()} <= pages.keys()
    dead = [
        f"{name}: {link}"
        for name, page in pages.items()
        if name != "404.html"  # its addresses begin at the root of the host
        for link in sorted({*page.links, *page.loaded})
        if not _resolves(site, pages, name, link)
    ]
    assert dead == []
    assert [each for page in pages.values() for each in page.loaded if urlsplit(each).netloc] == []
    titles = {name: title(text) for name, text in staged_pages().items()}
    assert {name: pages[_address(name)].title for name in titles} == {
        name: f"{text} - perdure" for name, text in titles.items()
    }
    with served(site) as url:
        async with browser() as chromium:
            await _check_widths(chromium, url)
            await _check_search(chromium, url)
            await _check_copying(chromium, url)


class Quiet(SimpleHTTPRequestHandler):
    """A request for a file of the site, which is not logged."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class SiteServer(ThreadingHTTPServer):
    """The site on a server. A browser that leaves a page breaks its connections, which is no error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Yield the address of the site on a server in a thread."""
    with SiteServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def _check_widths(chromium: Browser, url: str) -> None:
    """On a phone no page scrolls sideways; in a window of usual width, no table has to. Check for axe, too."""
    pages = ["/", "/tutorial/02-first-workflow/", "/reference/settings/", "/errors/engine.run_exists/", "/comparison/"]
    tables = ["/reference/settings/", "/errors/", "/comparison/", "/guarantees/", "/pitfalls/", "/troubleshooting/"]
    for width, addresses in ((375, pages), (1280, tables)):
        viewport: ViewportSize = {"width": width, "height": 800}
        context = await chromium.new_context(viewport=viewport, color_scheme="light" if width == 375 else "dark")
        page = Watched(await context.new_page(), url)
        for address in addresses:
            await page.page.goto(url + address)
            assert not await page.is_too_wide(), address
            assert width == 375 or await page.page.evaluate(WIDE_TABLES) == [], address
            assert await page.page.evaluate(CUT_SETTINGS) == [], address
        assert [each for each in await page.axe() if not each.startswith(MINOR)] == []
        assert page.problems == []
        await context.close()


async def _check_search(chromium: Browser, url: str) -> None:
    """The search finds a term of the concepts first, and a setting by its name."""
    context = await chromium.new_context()
    page = await context.new_page()
    for text, expected in (("fencing token", "#fencing-tokens"), ("max_runs", "/reference/settings/")):
        await page.goto(url)
        await page.locator(".md-search__button").click()
        await page.get_by_role("textbox", name="Search").or_(page.get_by_role("combobox", name="Search")).fill(text)
        found = page.locator("a[href*='?h=']")  # also in a shadow tree
        await found.first.wait_for()
        best = [await each.get_attribute("href") or "" for each in (await found.all())[: 1 if "#" in expected else 5]]
        assert any(expected in each for each in best), (text, best)
    await context.close()


async def _check_copying(chromium: Browser, url: str) -> None:
    """The button of a terminal copies the commands without prompts and output, that of a program all of it."""
    context = await chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = await context.new_page()
    await page.goto(f"{url}/tutorial/02-first-workflow/")
    for language, begin in (("console", "python place.py A-1"), ("python", "# shop.py\nfrom perdure import")):
        await page.locator(f".language-{language} button").first.click()
        copied = "async (begin) => (await navigator.clipboard.readText()).startsWith(begin)"
        await page.wait_for_function(copied, arg=begin)
        text = str(await page.evaluate("navigator.clipboard.readText()"))
        assert language == "python" or text.strip() == begin
    await context.close()


def _address(name: str) -> str:
    folder, _, last = name.removesuffix(".md").rpartition("/")
    return posixpath.join(folder, "index.html" if last == "index" else f"{last}/index.html")


def _resolves(site: Path, pages: dict[str, Links], name: str, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # another host, which is not asked
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
    target = f"{path}/index.html" if (site / path).is_dir() else path
    target = posixpath.normpath(target)
    if target in pages:
        return unquote(parts.fragment) in pages[target].anchors or parts.fragment.startswith("__")
    return (site / target).is_file()


@pytest.mark.parametrize("file", MARKDOWN, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_of_a_file_lead_somewhere(file: Path) -> None:
    assert dead_links(file) == []


def test_dead_links_and_anchors_are_found(tmp_path: Path) -> None:
    own = "https://github.com/perdure/perdure/blob/main"
    dead = ["nothing.md", "#nowhere", "page.md#nowhere", f"{own}/nothing.md", f"{own}/README.md#nowhere"]
    alive = ["page.md", "#here", "page.md#here", f"{own}/README.md#install", "https://example.com", 'page.md "title"']
    titled = ['titled.md "title"', 'image.png "title"']
    page = tmp_path / "page.md"
    links = " ".join(f"[x]({link})" for link in [*dead, *alive, *titled])
    page.write_text(f'# Here\n\n{links} `[x](code.md)` `<a href="code/">`\n\n<img src="i.png">\n\n[x]: page.md\n')
    assert dead_links(page) == [*dead, "titled.md", "image.png", "i.png", "page.md"]


@pytest.mark.parametrize("link", ["nothing.md", "nothing.png", "../src/nothing.py", "guide.md#nowhere"])
def test_dead_link_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n\n[x]({link})\n")
    (tmp_path / "guide.md").write_text("# Guide\n")
    monkeypatch.setattr("scripts.docs.building.ROOT", tmp_path)
    monkeypatch.setattr("scripts.docs.building.sources", lambda: {"page.md": page})
    with pytest.raises(BuildError, match=re.escape(f"page.md: {link}")):
        build(tmp_path / "build")
    assert not (tmp_path / "build").exists()


def test_warning_of_zensical_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    (source / "site.toml").write_bytes((DOCS / "site.toml").read_bytes())
    (source / "nav.toml").write_text('[[section]]\ntitle = "Start"\npages = ["index.md"]\n')
    monkeypatch.setattr("scripts.docs.staging.DOCS", source)
    monkeypatch.setattr("scripts.docs.staging.staged_pages", lambda: {"index.md": "# Guide\n\n[x](nothing.md)\n"})
    with pytest.raises(BuildError, match=r"nothing\.md"):
        build(tmp_path / "build")


def test_navigation_has_every_page_once() -> None:
    placed = [page for section in navigation(NAVIGATION, sources().keys()) for page in section.pages]
    assert sorted(placed) == sorted(sources())


def test_page_without_a_section_is_an_error() -> None:
    with pytest.raises(NavigationError, match=r"in no section: \['new\.md'\]"):
        navigation(NAVIGATION, [*sources(), "new.md"])
    with pytest.raises(NavigationError, match=r"no such page: \['guide\.md'\]"):
        navigation(NAVIGATION, sources().keys() - {"guide.md"})


def test_every_public_name_has_an_entry_with_a_docstring() -> None:
    assert reference().undocumented() == []
    assert reference().wrong_exclusions() == []


def test_pages_import_only_public_modules() -> None:
    texts = [file.read_text("utf-8") for file in MARKDOWN]
    imported = {
        name for text in texts for name in re.findall(r"^ *(?:from|import) (perdure[\w.]*)", text, re.MULTILINE)
    }
    assert len(imported) > 10
    assert imported - {*PUBLIC} == {"perdure.testing.conformance.suite"}  # a page of its own describes it


def test_name_without_an_entry_is_found() -> None:
    assert "perdure.App has no line `::: perdure.App` in docs/reference" in Reference({}).undocumented()


def test_every_setting_has_a_meaning() -> None:
    assert reference().settings_without_meaning() == []


@pytest.mark.parametrize("owner", SETTINGS, ids=lambda owner: owner.__name__)
def test_every_parameter_is_in_a_table_of_settings(owner: Any) -> None:
    page = settings_page()
    [table] = [each for each in reference().directives if each.is_table and each.name == owner.__name__]
    part = page[page.index(Reference._table(reference(), table)) :].split("\n\n")[0]
    named = [name for name in inspect.signature(owner).parameters if not name.startswith("_")]
    assert named
    assert [name for name in named if f"\n| `{name}`<br>" not in part] == []


def _documented_defaults(entry: Directive) -> list[str]:
    """Return the parameters of a class or function that have a default in its docstring."""
    found = entry.definition
    if not isinstance(found.node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    names = {each.name for each in parameters(found)}
    return [name for name, text in items(found.doc).items() if name in names and "(default:" in text]


def test_every_object_with_settings_has_a_table() -> None:
    tables = {each.path for each in reference().directives if each.is_table}
    entries = [each for each in reference().directives if not each.is_table and each.path not in tables]
    assert {each.path for each in entries if _documented_defaults(each)} == NO_SETTINGS


def test_numbers_in_tables_of_settings_are_the_defaults_of_the_code() -> None:
    compared = 0
    for table in reference().directives:
        if table.is_table:
            written = {each.name: each.default for each in parameters(table.definition)}
            for row in settings(table.definition):
                if _NUMBER.fullmatch(written[row.name]) and (stated := _NUMBER.fullmatch(row.default.strip("`"))):
                    assert float(stated[1]) == float(written[row.name]), f"{table.path}({row.name}=)"
                    compared += 1
    assert compared > 10


@pytest.mark.parametrize("kind", [RunInfo, StepInfo, HistoryEntry], ids=lambda kind: kind.__name__)
def test_fields_of_what_is_known_of_runs_are_on_the_page(kind: Any) -> None:
    page = (DOCS / "howto" / "look-at-runs.md").read_text("utf-8")
    (line,) = re.findall(rf"`{kind.__name__}`: (.*) \|", page)
    assert re.findall(r"`(\w+)`", line) == [each.name for each in fields(kind)]


def test_every_option_of_pytest_is_in_the_table() -> None:
    source = (ROOT / "src" / "pytest_perdure" / "__init__.py").read_text("utf-8")
    options = re.findall(r'"(--[a-z-]+|perdure_database)"', source)
    assert len(options) == 4
    assert [each for each in options if f"`{each}" not in settings_page()] == []


def test_every_environment_variable_is_in_the_table() -> None:
    texts = [file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py") if "conformance" not in file.parts]
    read = {name for text in texts for name in _VARIABLE.findall(text) if not _INTERNAL.match(name)}
    page = (DOCS / "reference" / "settings.md").read_text("utf-8")
    assert {"PERDURE_URL", "DATABASE_URL", "NO_COLOR"} <= read
    assert sorted(name for name in read if f"\n| `{name}` |" not in page) == []
