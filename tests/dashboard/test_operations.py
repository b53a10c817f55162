"""The pages of an operator: locks, channels and groups, the outbox, workers, and what the overview says of them."""

import re

import httpx

from perdure import App
from perdure.model.records import OutboxEvent, WorkflowInstance
from tests.dashboard import shop
from tests.dashboard.conftest import connected, post
from tests.dashboard.test_pages import failed, stuck
from tests.engine.waiting import until, waiting
from tests.support.storages import storage_of


async def test_locks_say_who_holds_which_run(everywhere: App) -> None:
    async with connected(everywhere) as http:
        await shop.delivery.options(id="d-1").start("A-1")
        await until(lambda: _is_leased(http, "d-1"))
        await storage_of(everywhere).create_instance(
            WorkflowInstance("lost-1", "shop.gone"), worker_id="dead#2", timeout_sec=0.001
        )
        await stuck(everywhere, "stuck-1")
        await storage_of(everywhere).try_acquire_system_lock("inventory", "elsewhere", 60)
        await until(lambda: _is_expired(http, "lost-1"))
        document = (await http.get("/locks.json")).json()
        leases = {each["run"]: each for each in document["leases"]}
        own, lost, backed_off = leases["d-1"], leases["lost-1"], leases["stuck-1"]
        assert (own["alive"], own["expired"], own["workflow"]) == (True, False, "shop.delivery")
        assert own["since"] < own["until"]
        assert (lost["holder"], lost["alive"], lost["expired"], lost["attempts"]) == ("dead", False, True, 2)
        assert (backed_off["holder"], backed_off["back_off"]) == (None, True)
        assert ("inventory", "elsewhere", False) in [
            (each["name"], each["holder"], each["expired"]) for each in document["system_locks"]
        ]
        page = (await http.get("/locks")).text
        assert "no worker: in back-off" in page
        assert 'class="state s-stuck"' in page
        assert 'href="/locks?worker=dead"' in page
        of_dead = (await http.get("/locks.json?worker=dead")).json()["leases"]
        assert [each["run"] for each in of_dead] == ["lost-1"]
        (gone,) = (await http.get("/workers.json")).json()["gone"]
        assert (gone["id"], gone["leases"]) == ("dead", 1)
        (worker,) = (await http.get("/workers.json")).json()["workers"]
        assert (worker["leases"], worker["runs"][0]["id"]) == (1, "d-1")
        assert worker["oldest_lease_at"] == own["since"]
        shop.gate.set()


async def _is_leased(http: httpx.AsyncClient, id: str) -> bool:
    return id in [each["run"] for each in (await http.get("/locks.json")).json()["leases"]]


async def _is_expired(http: httpx.AsyncClient, id: str) -> bool:
    return any(each["run"] == id and each["expired"] for each in (await http.get("/locks.json")).json()["leases"])


async def test_leases_are_paged_by_keys(app: App, http: httpx.AsyncClient) -> None:
    rows = [WorkflowInstance(f"r-{number:02}", "shop.gone") for number in range(60)]
    await storage_of(app).create_instances(rows, worker_id="w#0", timeout_sec=600)
    first = await http.get("/locks")
    (following,) = re.findall(r'href="(/locks\?after=[^"]+)"', first.text)
    second = await http.get(following)
    seen = re.findall(r'data-href="/runs/(r-\d\d)"', first.text + second.text)
    assert seen == [row.instance_id for row in rows]
    for token in ("x", "2026-01-01|a", "2026-01-01T00:00:00+00:00"):
        assert (await http.get("/locks", params={"after": token})).status_code == 422


async def test_channels_and_groups_are_listed_by_name(app: App, http: httpx.AsyncClient) -> None:
    await shop.listener.options(id="listener-1").start()
    await waiting(app, "listener-1")
    await app.publish("shop.alarm", "fire")
    for number in range(30):
        await storage_of(app).join_group("listener-1", f"group {number:02}")
    document = (await http.get("/channels.json")).json()
    use = {each["channel"]: (each["messages"], each["subscribers"]) for each in document["channels"]}
    assert use["shop.news"] == (0, 1)
    assert use["shop.alarm"] == (1, 0)
    assert [each["group_name"] for each in document["groups"]] == [f"group {number:02}" for number in range(25)]
    following = (await http.get("/channels.json", params={"groups_after": document["next_group"]})).json()["groups"]
    assert [each["group_name"] for each in following][-1] == "shop.listeners"
    assert "fire" in (await http.get("/channels?channel=shop.alarm")).text
    assert 'href="/runs/listener-1"' in (await http.get("/channels?group=shop.listeners")).text


async def test_channels_of_one_run_are_listed_with_the_run(app: App, http: httpx.AsyncClient) -> None:
    await shop.parent.options(id="parent-1").start("A-1")
    await waiting(app, "parent-1", "parent-1/1")
    listed = (await http.get("/channels.json")).json()["channels"]
    (ends,) = [each for each in listed if each["is_child_end"]]
    assert ends["receiver"] == "parent-1"
    receivers = {each["channel"]: each["receiver"] for each in listed if not each["is_child_end"]}
    assert receivers == {"order.approved": None, "order.approved:parent-1/1": "parent-1/1"}
    page = (await http.get("/channels")).text
    assert 'the end of a child of <a class="id" href="/runs/parent-1">' in page
    assert 'only for <a class="id" href="/runs/parent-1%2F1">' in page


async def test_outbox_says_why_events_are_parked_and_retries_them(everywhere: App) -> None:
    async with connected(everywhere) as http:
        storage = storage_of(everywhere)
        for number in range(60):
            await storage.add_outbox_event(OutboxEvent(f"e-{number:02}", "order.paid", "shop", b'{"secret": 1}'))
        for id in ("e-07", "e-08"):
            await storage.mark_outbox_event_failed(id, error=f"no route for {id}")
        first = await http.get("/outbox")
        (following,) = re.findall(r'rel="next" href="([^"]+)"', first.text)
        second = await http.get(following.replace("&amp;", "&"))
        seen = re.findall(r'<td class="id">(e-\d\d)</td>', first.text + second.text)
        assert len(seen) == 58
        assert seen == sorted(seen)
        assert "secret" not in first.text
        parked = (await http.get("/outbox.json?state=invalid")).json()
        assert [each["error"] for each in parked["events"]] == ["no route for e-07", "no route for e-08"]
        assert parked["counts"] == {"pending": 58, "published": 0, "invalid": 2}
        overview = (await http.get("/index.json")).json()["outbox"]
        assert (overview["pending"], overview["parked"]) == (58, 2)
        assert (await post(http, "/outbox/requeue", event="e-07", reason="route added")).status_code == 303
        assert (await http.get("/outbox.json")).json()["counts"] == {"pending": 59, "published": 0, "invalid": 1}


async def test_overview_shows_the_oldest_waiting_run_with_its_reason(everywhere: App) -> None:
    async with connected(everywhere) as http:
        assert (await http.get("/index.json")).json()["oldest_waiting"] is None
        await shop.approval.options(id="approval-1").start("A-1")
        await waiting(everywhere, "approval-1")
        await shop.listener.options(id="listener-1").start()
        await waiting(everywhere, "listener-1")
        oldest = (await http.get("/index.json")).json()["oldest_waiting"]
        assert oldest["id"] == "approval-1"
        assert "event order.approved" in oldest["reason"]
        assert "event order.approved" in (await http.get("/")).text


async def test_every_number_of_the_overview_leads_to_its_list(app: App, http: httpx.AsyncClient) -> None:
    await failed("A-1")
    await shop.order.options(id="order-2")("A-2")
    await shop.approval.options(id="approval-1", after=3600).start("A-3")
    await app.cancel("approval-1", "ordered twice")
    await until(lambda: _has_ended(app, "approval-1"))
    await shop.counter.options(id="counter-1")(2)
    await stuck(app, "stuck-1")
    await storage_of(app).add_outbox_event(OutboxEvent("e-1", "order.paid", "shop", b"{}"))
    page = (await http.get("/")).text
    legend = re.sub("<[^>]*>", "", page[page.index("Runs that ended") :])
    assert "2 completed and 1 cancelled and 2 recurred 1 failed · " in legend
    links = {link.replace("&amp;", "&") for link in re.findall(r'href="(/[^"]*)"', page) if "/static/" not in link}
    for wanted in (
        *(f"/runs?q=state:{name}" for name in ("running", "waiting", "compensating", "failed", "cancelled")),
        "/runs?q=state:completed",
        "/runs?q=stuck:yes",
        "/runs?q=state:failed+workflow:shop.order",
        "/outbox",
    ):
        assert wanted in links
    assert any(link.startswith("/locks?worker=") for link in links)
    for link in links:
        assert (await http.get(link)).status_code == 200, link


async def _has_ended(app: App, id: str) -> bool:
    return (await app.get(id).info()).finished_at is not None


async def test_redactor_covers_what_lists_say_of_errors(app: App) -> None:
    await failed("A-1")
    hidden = lambda value, where: "hidden" if isinstance(value, str) and "card of" in value else value  # noqa: E731
    async with connected(app, redact=hidden) as http:
        for path in ("/", "/index.json", "/runs", "/runs.json", "/runs/order-A-1", "/runs/order-A-1.json"):
            assert "card of order" not in (await http.get(path)).text, path
