"""A real browser on a real server: Debian's Chromium, driven by Playwright."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from perdure import Client
from perdure.dashboard import dashboard_app
from perdure.http.server import Server, listen

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
AXE_DIGEST = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"


@asynccontextmanager
async def served(app: Client, **settings: Any) -> AsyncIterator[str]:
    """Yield the URL of the dashboard of an app, on a server in this process."""
    server = Server(dashboard_app(app, **settings), listen("127.0.0.1", 0), "the dashboard")
    url, running = server.url, asyncio.create_task(server.run(app))
    try:
        yield url
    finally:
        server.stop()
        async with asyncio.timeout(30):
            await running


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Yield Chromium."""
    assert Path(CHROMIUM).exists(), "the tests need Chromium: apt-get install chromium, or run make setup as root"
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield found
        finally:
            await found.close()


class Watched:
    """A page of which every error, violation of the content policy and foreign request is kept."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.problems: list[str] = []
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self._asked(request.url))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, "data:", "blob:")):
            self.problems.append(f"request to {url}")

    async def go(self, path: str) -> None:
        """Open a page of the dashboard."""
        await self.page.goto(self.url + path)
        await self.page.wait_for_selector("main")

    async def axe(self) -> list[str]:
        """Return what axe finds wrong for people with disabilities."""
        source = AXE.read_bytes()
        assert hashlib.sha256(source).hexdigest() == AXE_DIGEST
        await self.page.evaluate(source.decode())
        found = await self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]]

    async def is_too_wide(self) -> bool:
        """Return whether the page scrolls sideways."""
        return bool(await self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    async def tables_that_scroll(self) -> list[str]:
        """Return the begin of each table that is wider than its place."""
        wide = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth)"
        return list(await self.page.evaluate(f"{wide}.map((each) => each.textContent.slice(0, 100))"))

    async def cut_cards(self) -> list[str]:
        """Return the texts of the overview's numbers that do not fit."""
        cut = "[...document.querySelectorAll('.card')].filter((each) => each.scrollWidth > each.clientWidth)"
        return list(await self.page.evaluate(f"{cut}.map((each) => each.textContent)"))


@asynccontextmanager
async def watched(app: Client, chromium: Browser, settings: Any = None, **context: Any) -> AsyncIterator[Watched]:
    """Yield a page that shows the dashboard of an app."""
    async with served(app, **(settings or {})) as url:
        session = await chromium.new_context(**context)
        try:
            yield Watched(await session.new_page(), url)
        finally:
            await session.close()
