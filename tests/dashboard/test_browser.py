"""The dashboard in a real browser: the tasks of a stranger, live updates, the keyboard, and what axe says."""

import re
from contextlib import suppress
from itertools import pairwise

from playwright.async_api import expect

from perdure import App, WorkflowFailedError
from perdure.model.records import OutboxEvent, WorkflowInstance
from perdure.storage.administration import administration_of
from tests.dashboard import shop
from tests.dashboard.browser import browser, watched
from tests.dashboard.test_pages import failed, stuck
from tests.engine.waiting import waiting
from tests.support.storages import storage_of

PAGES = (
    "/",
    "/runs",
    "/runs?q=state:failed",
    "/runs?q=colour:red",
    "/runs/order-A-1",
    "/runs/order-A-1?step=2:shop.charge",
    "/runs/order-2?open=/shop.pack/activity",
    "/runs/approval-1",
    "/runs/order-A-1/history",
    "/waits",
    "/channels?channel=shop.news&group=shop.listeners",
    "/workers",
    "/locks",
    "/schedules",
    "/outbox",
    "/outbox?state=invalid",
    "/audit",
    "/bulk?action=retry&q=state:failed",
    f"/runs/{shop.LONG}",
    f"/runs/{shop.LONG}/history",
)


async def fill(app: App) -> None:
    """Start runs in all kinds of states."""
    await failed("A-1")
    await shop.order.options(id="order-2")("A-2", 9.5, 12)
    for name, started in (
        ("approval-1", shop.approval.options(id="approval-1").start("A-1")),
        ("subscription-1", shop.subscription.options(id="subscription-1").start("C-1")),
        ("listener-1", shop.listener.options(id="listener-1").start()),
    ):
        await started
        await waiting(app, name)
    storage, administration = storage_of(app), administration_of(storage_of(app))
    assert administration is not None
    await storage.create_instance(WorkflowInstance("lost-1", "shop.gone"), worker_id="dead#2", timeout_sec=600)
    await stuck(app, "stuck-1")
    event = "0198f3c2-77a1-7c3e-b000-5bd2a9c0e6d1"
    await storage.add_outbox_event(OutboxEvent(event, "com.example.shop.order.paid", "//shop.example/orders/1", b"{}"))
    await storage.mark_outbox_event_failed(event, error="no route to the broker for events of this type")
    await administration.views.add("failed orders", "state:failed workflow:shop.order", "Ada")
    await administration.views.add("orders that failed because the bank did not answer, or too late", "a", "Ada")
    runs = ["order-A-1", "approval-1"]
    await administration.audit.add(
        "Ada", "retry", "the card was replaced", target="bulk-1", query="state:failed", runs=runs
    )
    done = await administration.audit.add("Ada", "cancel", "x" * 200, target="approval-1", runs=["approval-1"])
    await administration.audit.finish(done, "RunNotFoundError: " + "y" * 200)


async def test_every_page_is_clean_accessible_and_fits_a_phone(app: App) -> None:
    await fill(app)
    with suppress(WorkflowFailedError):
        await shop.verbose.options(id=shop.LONG)()
    async with browser() as chromium:
        for scheme, width in (("light", 1280), ("dark", 375)):
            size = {"width": width, "height": 800}
            async with watched(app, chromium, color_scheme=scheme, viewport=size) as seen:
                for path in PAGES:
                    await seen.go(path)
                    assert not await seen.is_too_wide(), (path, width)
                    assert await seen.tables_that_scroll() == [], (path, width)
                    assert await seen.cut_cards() == []
                    if path == "/runs/order-A-1/history" and width > 1000:
                        cell = await seen.page.locator("td.id", has_text="1:shop.reserve").first.bounding_box()
                        assert cell is not None
                        assert cell["width"] > 150, "the id of a step is broken into pieces"
                    assert await seen.axe() == [], (path, scheme)
                await seen.go("/runs/approval-1")
                longest = seen.page.locator(".tl-took").nth(1)
                await longest.evaluate("(each) => { each.lastChild.textContent = ' 59 min 59 s'; }")
                is_cut = "(each) => each.scrollWidth > each.clientWidth"
                assert not await longest.evaluate(is_cut), "a duration is wider than its column"
                labels = [await each.bounding_box() for each in await seen.page.locator(".axis .at:visible").all()]
                assert labels
                for one, other in pairwise(each for each in labels if each is not None):
                    assert one["x"] + one["width"] < other["x"], "labels of the axis overlap"
                await seen.go("/runs")
                cells = seen.page.locator("table.runs tbody tr").first.locator("td:visible")
                await expect(cells).to_have_count(7 if width > 1000 else 6)
                id = await seen.page.get_by_role("link", name="order-A-1").bounding_box()
                assert id is not None
                assert id["height"] < 30, "short ids are broken into pieces by long names"
                refused = [each for each in seen.problems if "422" not in each]
                assert refused == []
        async with watched(app, chromium, java_script_enabled=False) as seen:
            await seen.go("/runs/order-A-1")
            await expect(seen.page.locator(".lead")).to_contain_text("Failed in step 2:shop.charge")
            await expect(seen.page.locator(".copy:visible, #keys-button:visible")).to_have_count(0)
            await seen.page.get_by_text("Delete run…").click()
            await seen.page.locator("#action-delete [name=reason]").fill("without scripts")
            await seen.page.locator("#action-delete button").click()
            await expect(seen.page.locator(".note")).to_have_text("The run is deleted.")


async def test_stranger_solves_seven_tasks(app: App) -> None:
    await fill(app)
    shop.broken.add("A-9")
    with suppress(WorkflowFailedError):
        await shop.payment.options(id="payment-9")("A-9")
    await shop.approval.options(id="approval-2").start("A-2")
    await waiting(app, "approval-2")
    await stuck(app, "gone-1")
    async with browser() as chromium, watched(app, chromium) as seen:
        page = seen.page
        # 1. Find the failed order; 2. see why.
        await seen.go("/")
        await page.locator(".card.n-failed").click()
        await page.get_by_role("link", name="payment-9").click()
        await expect(page.locator(".lead")).to_contain_text("PaymentError: card of order A-9 declined")
        await page.locator(".tl-name a", has_text="shop.charge").click()
        await expect(page.locator("#step pre").first).to_contain_text("raise PaymentError")
        for id in ("step-error", "error"):
            await expect(page.locator(f"[data-copy={id}-json]")).to_be_visible()
        # 3. Retry it from the failed step.
        shop.broken.clear()
        await page.locator("#action-retry-step summary").click()
        await page.locator("#action-retry-step [name=reason]").fill("card replaced")
        await page.locator("#action-retry-step button").click()
        await expect(page.locator("h1")).to_have_text("payment-9~r1")
        await expect(page.locator(".lead")).to_contain_text("Completed", timeout=30_000)
        # 4. Cancel another.
        await page.keyboard.press("/")
        await page.keyboard.type("approval-2")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/runs/approval-2")
        await page.locator("#action-cancel summary").click()
        await page.locator("#action-cancel [name=reason]").fill("ordered twice")
        await page.locator("#action-cancel button").click()
        await expect(page.locator(".lead")).to_contain_text("ordered twice", timeout=30_000)
        # 5. Send the missing event.
        await seen.go("/runs/approval-1")
        await expect(page.locator(".lead")).to_contain_text("event order.approved")
        await page.locator("#action-send summary").click()
        assert await page.locator("#action-send [name=type]").input_value() == "order.approved"
        await page.locator("#action-send [name=data]").fill('{"order": "A-1", "by": "Ada"}')
        await page.locator("#action-send [name=reason]").fill("the sender was down")
        await page.locator("#action-send button").click()
        await expect(page.locator("#result-json")).to_have_text('"approved by Ada"', timeout=30_000)
        # 6. Find what is slow.
        await seen.go("/")
        await page.locator("[data-live=slow] tr", has_text="shop.order").locator("td.num a").last.click()
        longest = page.locator(".tl-row", has=page.locator("abbr[title='the longest step']"))
        await expect(longest.first).to_contain_text("shop.")
        # 7. Find out why one is stuck.
        await seen.go("/")
        await page.locator(".card.n-stuck").click()
        await page.get_by_role("link", name="gone-1").click()
        await expect(page.locator(".lead")).to_contain_text("Stuck: LookupError: no such table")
        assert seen.problems == []


async def test_operator_saves_a_view_retries_an_event_and_reads_the_audit(app: App) -> None:
    await fill(app)
    async with browser() as chromium, watched(app, chromium) as seen:
        page = seen.page
        await seen.go("/runs?q=state:waiting")
        await page.locator("#action-views summary").click()
        await page.locator("#action-views [name=name]").first.fill("what waits")
        await page.get_by_role("button", name="Save view").click()
        await expect(page.locator(".note")).to_have_text("The view is saved.")
        await seen.go("/runs")
        await page.get_by_role("link", name="what waits").click()
        await expect(page.locator("#q")).to_have_value("state:waiting")
        await page.locator("#action-views summary").click()
        await page.get_by_role("button", name="Delete the view what waits").click()
        await expect(page.locator(".note")).to_have_text("The view is deleted.")
        await expect(page.get_by_role("link", name="what waits")).to_have_count(0)
        await seen.go("/outbox")
        await page.get_by_role("link", name="1 parked").click()
        await expect(page.locator("td.why")).to_contain_text("no route to the broker")
        button = await page.locator("#action-requeue-1 summary").bounding_box()
        assert button is not None
        assert button["height"] < 40, "the word on the button is broken into pieces"
        await page.locator("#action-requeue-1 summary").click()
        await page.locator("#action-requeue-1 [name=reason]").fill("the broker is back")
        await page.locator("#action-requeue-1 button").click()
        await expect(page.locator(".note")).to_have_text("The event will be published.")
        await page.keyboard.press("g")
        await page.keyboard.press("a")
        await page.wait_for_url(re.compile(r"/audit$"))
        rows = page.locator("[data-live=audit] tbody tr")
        await expect(rows.nth(0)).to_contain_text("the broker is back")
        await expect(rows.nth(1)).to_contain_text("deleted")
        await expect(rows.nth(2)).to_contain_text("saved state:waiting")
        await page.get_by_role("link", name="approval-1").click()
        await expect(page.locator("#audit")).to_contain_text("the card was replaced")
        await page.get_by_role("link", name="Locks").click()
        await page.get_by_role("link", name="dead").click()
        await expect(page.locator("[data-live=leases] tbody tr")).to_have_count(1)
        assert seen.problems == []


async def test_page_follows_its_run_and_pauses_when_hidden(app: App) -> None:
    await shop.delivery.options(id="delivery-1").start("A-1")
    async with browser() as chromium, watched(app, chromium) as seen:
        page = seen.page
        await seen.go("/runs/delivery-1")
        await expect(page.locator(".lead")).to_contain_text("executes the run")
        await expect(page.locator("#live-state")).to_have_text("live")
        await page.locator("#action-cancel summary").click()
        await page.locator("#action-cancel [name=reason]").fill("half a reason")
        shop.gate.set()
        await expect(page.locator(".lead")).to_contain_text("Completed", timeout=30_000)
        assert await page.locator("#action-cancel [name=reason]").input_value() == "half a reason"
        shop.gate.clear()
        await shop.delivery.options(id="delivery-2").start("A-2")
        await seen.go("/runs/delivery-2")
        await expect(page.locator("#action-cancel summary")).to_be_visible()
        await expect(page.locator("#live-state")).to_have_text("live")
        shop.gate.set()
        await expect(page.locator("#action-delete summary")).to_be_visible(timeout=30_000)
        await expect(page.locator("#action-cancel")).to_have_count(0)
        await seen.go("/runs")
        await expect(page.locator("#live-state")).to_have_text("live")
        await page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        await expect(page.locator("#live-state")).to_have_text("paused")
        await shop.order.options(id="order-new")("A-5")
        await page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: false, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        await expect(page.get_by_role("link", name="order-new")).to_be_visible(timeout=30_000)
        assert seen.problems == []


async def test_shortened_value_is_not_copied_as_if_it_were_whole(app: App) -> None:
    await shop.payment.options(id="long-1")("A-" + "x" * 5_000)
    async with browser() as chromium, watched(app, chromium) as seen:
        await seen.go("/runs/long-1")
        for id, label in (("input", "Copy what is shown"), ("result", "Copy what is shown")):
            await expect(seen.page.locator(f"[data-copy={id}-json]")).to_have_text(label)
        await shop.payment.options(id="short-1")("A-1")
        await seen.go("/runs/short-1")
        await expect(seen.page.locator("[data-copy=input-json]")).to_have_text("Copy")
        assert seen.problems == []


async def test_keyboard_and_theme(app: App) -> None:
    for number in range(3):
        await shop.order.options(id=f"order-{number}")(f"A-{number}")
    async with browser() as chromium, watched(app, chromium, color_scheme="light") as seen:
        page = seen.page
        await seen.go("/")
        await page.keyboard.press("g")
        await page.keyboard.press("l")
        await page.wait_for_url("**/runs")
        await page.wait_for_selector("tr[data-href]")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        await page.keyboard.press("j")
        await expect(page.locator("tr.on")).to_contain_text("order-1")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/runs/order-1")
        await page.keyboard.press("?")
        await expect(page.locator("#keys")).to_be_visible()
        await page.keyboard.press("Escape")
        light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await page.keyboard.press("t")
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert light != dark
        await page.reload()
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
        await page.keyboard.press("r")
        await expect(page.locator("body")).to_have_attribute("data-updates", re.compile("[1-9]"))
        await page.keyboard.press("g")
        await page.keyboard.press("w")
        await page.wait_for_url(re.compile(r"/workers$"))
        await seen.go("/runs/order-1")
        await expect(page.locator(".copy").first).to_be_visible()
        await page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        await page.reload()
        await expect(page.locator("#live-state")).to_have_text("live")
        await expect(page.locator(".copy").first).to_be_hidden()
        assert seen.problems == []


async def test_page_says_when_the_server_is_gone(app: App) -> None:
    async with browser() as chromium, watched(app, chromium) as seen:
        await seen.go("/")
        await expect(seen.page.locator("#live-state")).to_have_text("live")
        await seen.page.context.set_offline(True)
        await seen.page.keyboard.press("r")
        await expect(seen.page.locator("#live-state")).to_have_text(re.compile("offline|reconnecting"))
