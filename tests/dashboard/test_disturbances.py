"""What people see if something goes wrong while they look at a page: outages, deleted runs, other people's actions."""

import re
from contextlib import suppress
from urllib.parse import quote

import httpx
import pytest
from playwright.async_api import expect

from perdure import App, Client, WorkflowFailedError
from perdure.dashboard import live
from perdure.testing.servers import PostgresServer
from tests.dashboard import shop
from tests.dashboard.browser import browser, served, watched
from tests.dashboard.conftest import connected, post
from tests.dashboard.test_access import TOKEN
from tests.engine.waiting import until, waiting
from tests.support.storages import storage_of

UPDATES = "+(document.body.dataset.updates || 0)"
PHONE = {"width": 375, "height": 700}


async def test_page_continues_after_the_database_was_away() -> None:
    with PostgresServer() as server:
        async with App(server.url) as app:
            await shop.approval.options(id="approval-1").start("A-1")
            await waiting(app, "approval-1")
        async with (
            Client(server.url) as client,
            browser() as chromium,
            watched(client, chromium, viewport=PHONE) as seen,
        ):
            state = seen.page.locator("#live-state")
            await seen.go("/runs/approval-1")
            await expect(state).to_have_text("live")
            server.kill()
            await expect(state).to_contain_text("the database is unavailable", timeout=60_000)
            assert not await seen.is_too_wide(), "what is said about the outage is wider than a phone"
            # Connections that are refused must not be the last ones.
            async with seen.page.expect_response(lambda answer: answer.status == 503, timeout=60_000):
                pass
            server.start()
            await expect(state).to_have_text("live", timeout=60_000)
            await client.cancel("approval-1", "ordered twice")
            await expect(seen.page.locator(".lead")).to_contain_text("ordered twice", timeout=30_000)


async def test_page_of_a_deleted_run_says_so(app: App) -> None:
    await shop.order.options(id="order-1")("A-1")
    async with browser() as chromium, watched(app, chromium) as seen:
        state = seen.page.locator("#live-state")
        await seen.go("/runs/order-1")
        await expect(state).to_have_text("live")
        await storage_of(app).delete_ended(["order-1"])
        await expect(state).to_contain_text("order-1", timeout=30_000)
        async with seen.page.expect_request(lambda request: request.url.endswith("/runs/order-1"), timeout=30_000):
            pass  # the browser asks again
        await expect(state).to_contain_text("order-1")


async def test_times_of_a_page_without_changes_are_read_again(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_SEC", 0.1)
    monkeypatch.setattr(live, "TICK_SEC", 0.3)
    async with browser() as chromium, watched(app, chromium) as seen:
        await seen.go("/workers")
        heartbeat = seen.page.locator("td[data-label=heartbeat] time")
        first = await heartbeat.get_attribute("datetime")
        await storage_of(app).beat_worker(app.worker_id)
        await expect(heartbeat).not_to_have_attribute("datetime", first or "")
        asof = seen.page.locator("footer span")
        await expect(asof).not_to_have_text(await asof.inner_text())
        assert seen.problems == []


async def test_focus_and_selection_are_kept_while_a_page_is_updated(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_SEC", 0.1)
    monkeypatch.setattr(live, "TICK_SEC", 0.3)
    await shop.approval.options(id="approval-1").start("A-1")
    await waiting(app, "approval-1")
    async with browser() as chromium, watched(app, chromium) as seen:
        await seen.go("/runs/approval-1")
        await seen.page.locator("#input-json").focus()
        await app.cancel("approval-1", "ordered twice")
        await expect(seen.page.locator("#error-json")).to_be_visible(timeout=30_000)
        assert await seen.page.evaluate("document.activeElement.id") == "input-json"
        await seen.page.locator(".lead strong").dblclick()
        chosen = await seen.page.evaluate("getSelection().toString()")
        assert chosen
        before = await seen.page.evaluate(UPDATES)

        async def is_updated() -> bool:
            return bool(await seen.page.evaluate(UPDATES) > before + 1)

        await until(is_updated)
        assert await seen.page.evaluate("getSelection().toString()") == chosen


async def test_two_people_who_retry_a_run_at_once_start_one_retry(app: App, http: httpx.AsyncClient) -> None:
    shop.broken.add("A-1")
    with suppress(WorkflowFailedError):
        await shop.payment.options(id="payment-1")("A-1")
    shop.broken.clear()
    page = (await http.get("/runs/payment-1")).text
    (last,) = set(re.findall(r'name="last" value="([^"]*)"', page))
    assert (await post(http, "/runs/payment-1/retry", reason="card replaced", last=last)).status_code == 303
    refused = await post(http, "/runs/payment-1/retry", reason="card replaced", last=last)
    assert refused.status_code == 409
    assert "has been retried in the meantime, as &#39;payment-1~r1&#39;" in refused.text
    assert await app.runs(workflow="shop.payment").count() == 2
    page = (await http.get("/runs/payment-1")).text
    (last,) = set(re.findall(r'name="last" value="([^"]*)"', page))
    assert last == "payment-1~r1"
    assert (await post(http, "/runs/payment-1/retry", reason="once more", last=last)).status_code == 303


async def test_second_of_two_people_who_cancel_a_run_is_told(app: App) -> None:
    await shop.approval.options(id="approval-1").start("A-1")
    await waiting(app, "approval-1")
    async with browser() as chromium, served(app) as url:
        pages = [await (await chromium.new_context()).new_page() for _ in range(2)]
        for page in pages:
            await page.goto(f"{url}/runs/approval-1")
            await page.locator("#action-cancel summary").click()
            await page.locator("#action-cancel [name=reason]").fill("ordered twice")
        for page in pages:
            await page.locator("#action-cancel button").click()
        await expect(pages[0].locator(".lead")).to_contain_text("ordered twice", timeout=30_000)
        await expect(pages[1].locator(".note.bad")).to_contain_text("approval-1")


async def test_form_of_an_expired_session_leads_back_to_its_page(app: App) -> None:
    await shop.approval.options(id="approval-1").start("A-1")
    form = {"reason": "ordered twice", "csrf": "x" * 43}
    for came, following in (
        ("https://perdure.example/runs/approval-1?step=1", "/runs/approval-1?step=1"),
        ("https://evil.example/runs/approval-1", "/"),
        ("", "/"),
    ):
        async with connected(app, "https://perdure.example", token=TOKEN) as http:
            headers = {"Sec-Fetch-Site": "same-origin", "Referer": came}
            refused = await http.post("/runs/approval-1/cancel", data=form, headers=headers)
            assert refused.headers["location"] == f"/login?next={quote(following, safe='')}"


async def test_form_can_be_sent_again_after_going_back(app: App) -> None:
    await shop.approval.options(id="approval-1").start("A-1")
    async with browser() as chromium, watched(app, chromium) as seen:
        await seen.go("/runs/approval-1")
        await seen.page.evaluate("document.querySelector('#action-cancel form').dataset.sent = '1'")
        await seen.page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
        await seen.page.locator("#action-cancel summary").click()
        await seen.page.locator("#action-cancel [name=reason]").fill("ordered twice")
        await seen.page.locator("#action-cancel button").click()
        await expect(seen.page.locator(".note")).to_contain_text("The run is being cancelled")
        await expect(seen.page).to_have_url(f"{seen.url}/runs/approval-1")
        await expect(seen.page.locator(".lead")).to_contain_text("Cancelled after", timeout=30_000)


async def test_link_of_another_site_leads_a_person_with_a_session_to_its_page(app: App) -> None:
    await shop.order.options(id="order-1")("A-1")
    async with browser() as chromium, watched(app, chromium, {"token": TOKEN}) as seen:
        page = seen.page
        await page.goto(f"{seen.url}/runs/order-1")
        await page.locator("[name=token]").fill(TOKEN)
        await page.locator("[name=token]").press("Enter")
        await expect(page.locator("h1")).to_have_text("order-1")
        other = await page.context.new_page()
        await other.route("http://chat.example/", lambda route: route.fulfill(content_type="text/html", body=LINK))
        await other.goto("http://chat.example/")
        await other.evaluate("url => { document.querySelector('a').href = url; }", f"{seen.url}/runs/order-1")
        await other.locator("a").click()
        await expect(other.locator("h1")).to_have_text("order-1")
        # The forms of the page that was open before still work.
        await page.locator("#action-delete summary").click()
        await page.locator("#action-delete [name=reason]").fill("not needed")
        await page.locator("#action-delete button").click()
        await expect(page.locator(".note")).to_have_text("The run is deleted.")


LINK = "<!doctype html><title>chat</title><a href='/'>see this run</a>"
