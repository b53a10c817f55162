"""The source and the path on the page of a run."""

import re
from typing import Any

import httpx
import pytest
from playwright.async_api import expect

from perdure import App, workflow
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.model.records import WorkflowInstance
from tests.dashboard import returns, shop
from tests.dashboard.browser import browser, watched
from tests.dashboard.conftest import connected
from tests.dashboard.test_pages import stuck
from tests.support.storages import storage_of


def labels(blocks: list[dict[str, Any]], mark: str) -> list[str]:
    """Return the labels of the blocks without parts that have this mark, in the order of the source."""
    found = []
    for block in blocks:
        if block["mark"] == mark and not block["parts"]:
            found.append(block["label"])
        for part in block["parts"]:
            found += labels(part["blocks"], mark)
    return found


async def test_document_has_the_path_of_each_run(app: App, http: httpx.AsyncClient) -> None:
    await returns.fill(app)
    done, waits, failed = [(await http.get(f"/runs/return-{n}.json")).json()["source"] for n in (1, 2, 3)]
    assert done["same_version"]
    assert done["unmatched"] == []
    assert "await restock(order_id, items)" in [line["text"].strip() for line in done["lines"]]
    assert labels(done["blocks"], "not_taken") == [
        "returns.notify",
        "raise",
        "wait for event return.approved",
        "returns.refund",
        "return 'refused'",
    ]
    (restock,) = [each for each in done["blocks"] if each["kind"] == "dynamic"]
    assert restock["steps"] == {"shop.pack": 3}
    (loop,) = [each for each in done["blocks"] if each["kind"] == "loop"]
    assert loop["times"] == 3
    assert labels(waits["blocks"], "now") == ["wait for event return.approved"]
    assert labels(failed["blocks"], "failed") == ["returns.inspect"]
    assert failed["blocks"][0]["compensated"] == 1


async def test_page_says_why_there_is_no_source(app: App, http: httpx.AsyncClient) -> None:
    await stuck(app, "gone-1")  # of a workflow that no module here defines
    page = (await http.get("/runs/gone-1")).text
    assert "no module that this process has imported defines workflow" in page
    assert 'class="flow"' not in page


async def test_changed_source_is_shown_as_such(
    app: App, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.order.options(id="order-1")("A-1")
    monkeypatch.setitem(WORKFLOWS, "shop.order", shop.subscription)  # as a later version of the program may have it
    source = (await http.get("/runs/order-1.json")).json()["source"]
    assert source["same_version"] is False
    assert source["unmatched"] == ["1:shop.reserve", "3:shop.pack", "4:shop.pack"]
    page = (await http.get("/runs/order-1")).text
    assert "The code may have changed: the run was not started with this version of the source." in page
    assert "3 steps match no call of this source" in page


async def test_page_says_if_the_version_of_the_source_is_not_recorded(app: App, http: httpx.AsyncClient) -> None:
    storage = storage_of(app)
    await storage.create_instance(WorkflowInstance("order-1", "shop.order"), worker_id="w-1")  # without a source hash
    source = (await http.get("/runs/order-1.json")).json()["source"]
    assert source["same_version"] is None
    assert source["notes"][0].startswith("The code may have changed: it is not recorded with which version")


async def test_page_says_if_python_has_no_source(
    app: App, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.order.options(id="order-1")("A-1")
    known: dict[str, Any] = {}
    exec("async def made(): ...", known)
    workflow(name="odd.made")(known["made"])
    monkeypatch.setitem(WORKFLOWS, "shop.order", WORKFLOWS.pop("odd.made"))
    source = (await http.get("/runs/order-1.json")).json()["source"]
    assert source["notes"] == [
        "Python has no source of this workflow: it was not defined in a file, or the file is not there."
    ]
    assert (source["same_version"], source["lines"], source["blocks"]) == (None, [], [])


async def test_lines_have_the_path_too(app: App, http: httpx.AsyncClient) -> None:
    await returns.fill(app)
    source = (await http.get("/runs/return-1.json")).json()["source"]
    marks = {line["text"].strip(): line["mark"] for line in source["lines"]}
    assert marks["except DamagedError:"] == "not_taken"
    assert marks["if amount > 100:"] == "taken"
    assert marks['elif state == "as new":'] == "taken"
    assert marks['return "refused"'] == "not_taken"


async def test_many_steps_are_few_blocks(app: App, http: httpx.AsyncClient) -> None:
    await shop.order.options(id="order-1")("A-1", 1.0, 5000)
    page = await http.get("/runs/order-1")
    assert "5,000 times" in page.text
    assert page.text.count('class="f-head"') == 6


@workflow(name="odd.source")
async def odd(text: str) -> str:
    if text == "<script>alert(1)</script>\x0c\x0c":
        await shop.pack("<b>", 1)
    await shop.pack.options(name="<i>pack</i>")("<b>", 2)
    return "</pre><script>alert(2)</script>"


async def test_source_is_escaped_and_its_lines_are_counted_as_python_does(app: App, http: httpx.AsyncClient) -> None:
    await odd.options(id="odd-1")("x")
    page = (await http.get("/runs/odd-1")).text
    assert "&lt;i&gt;pack&lt;/i&gt;" in page
    for text in ("<script>alert", "<i>pack", "</pre><script"):
        assert text not in page
    source = (await http.get("/runs/odd-1.json")).json()["source"]
    marked = {line["text"].strip() for line in source["lines"] if line["mark"] == "taken"}
    assert 'await shop.pack.options(name="<i>pack</i>")("<b>", 2)' in marked
    assert source["unmatched"] == []


async def test_error_in_the_diagram_is_logged_and_the_page_is_shown(
    app: App, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await shop.order.options(id="order-1")("A-1")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a case that nobody has thought of")

    monkeypatch.setattr("perdure.dashboard.source.path_of", fail)
    page = await http.get("/runs/order-1")
    assert page.status_code == 200
    assert "The source cannot be drawn" in page.text
    assert "receipt for A-1" in page.text
    assert "cannot draw the source of workflow shop.order for run order-1" in caplog.text


async def test_source_is_hidden_by_redact(app: App) -> None:
    await shop.order.options(id="order-1")("A-1")
    async with connected(app, redact=lambda value, where: "•" if where == "source" else value) as http:
        page = (await http.get("/runs/order-1")).text
    assert "The source is hidden by redact=." in page
    assert "set_state" not in page


async def test_diagram_in_the_browser(app: App) -> None:
    await returns.fill(app)
    async with browser() as chromium:
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 375), ("dark", 375)):
            size = {"width": width, "height": 800}
            async with watched(app, chromium, color_scheme=scheme, viewport=size) as seen:
                for number in (1, 2, 3):
                    await seen.go(f"/runs/return-{number}")
                    assert not await seen.is_too_wide(), (number, width)
                    inside = await seen.page.evaluate(
                        "(e => e.scrollWidth <= e.clientWidth)(document.querySelector('.draw'))"
                    )
                    assert inside, (number, width)
                    assert await seen.axe() == [], (number, scheme)
                await seen.page.locator(".flow > .m-failed a").first.click()
                await expect(seen.page.locator("#step")).to_contain_text("DamagedError")
                assert seen.problems == []
        async with watched(app, chromium) as seen:
            await seen.go("/runs/return-2")
            await expect(seen.page.locator(".m-now > .f-head")).to_contain_text("wait for event return.approved")
            await seen.page.wait_for_selector("#live-state[data-on]")
            await seen.page.evaluate("document.querySelector('.src').scrollTo(40, 0)")
            await app.send_event("return.approved", {"order": "A-2"})
            await expect(seen.page.locator(".flow > .f-return", has_text="'refunded'")).to_have_class(
                re.compile("m-taken"), timeout=30_000
            )
            assert await seen.page.evaluate("document.querySelector('.src').scrollLeft") == 40  # as before the update
            await seen.page.locator(".flow > .f-return a", has_text="line").last.click()
            await expect(seen.page.locator(".l:target")).to_contain_text('return "refunded"')
