"""Each page as HTML and as JSON: what it says, and that it shows nothing that is secret or dangerous."""

import gzip
import json
import re
from contextlib import suppress
from datetime import timedelta
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from perdure import App, Client, WorkflowFailedError, WorkflowStatus, workflow
from perdure.codecs import Encrypted, new_key
from perdure.dashboard.app import POLICY, dashboard_app
from perdure.dashboard.pages import ENVIRONMENT
from perdure.dashboard.values import Number, pretty
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.error_pages import page_address
from perdure.model.records import OutboxEvent, WorkflowInstance
from perdure.storage.stores import shift_clock
from perdure.views.durations import short
from tests.conftest import BackendDatabase
from tests.dashboard import shop
from tests.dashboard.conftest import connected
from tests.engine.waiting import status_of, until, waiting
from tests.support.storages import storage_of

PAGES = ("/", "/runs", "/waits", "/channels", "/workers", "/locks", "/schedules", "/outbox", "/audit")


async def failed(order_id: str) -> str:
    """Run an order that fails, and return its id."""
    shop.broken.add(order_id)
    with suppress(WorkflowFailedError):
        await shop.order.options(id=f"order-{order_id}")(order_id)
    return f"order-{order_id}"


@pytest.mark.parametrize("path", PAGES)
async def test_empty_database_has_every_page(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    twin = await http.get("/index.json" if path == "/" else f"{path}.json")
    assert (twin.status_code, twin.headers["content-type"]) == (200, "application/json")
    assert twin.json()


async def test_pages_work_on_every_database(everywhere: App) -> None:
    async with connected(everywhere) as http:
        await failed("A-1")
        await shop.approval.options(id="approval-1").start("A-1")
        await waiting(everywhere, "approval-1")
        for path in (*PAGES, "/runs/order-A-1", "/runs/approval-1", "/runs/order-A-1/history", "/runs?q=state:waiting"):
            assert (await http.get(path)).status_code == 200, path
        overview = (await http.get("/index.json")).json()
        assert overview["counts"]["failed"] == overview["counts"]["waiting"] == 1
        (group,) = overview["failures"]
        assert (group["workflow"], group["step"], group["count"]) == ("shop.order", "2:shop.charge", 1)
        assert group["type"].endswith("PaymentError")
        assert [each["workflow"] for each in overview["slowest"]] == ["shop.order"]


async def test_failures_of_one_cause_are_one_line(app: App, http: httpx.AsyncClient) -> None:
    for number in range(3):
        await failed(f"A-{number}")
    (group,) = (await http.get("/index.json")).json()["failures"]
    assert group["count"] == 3
    page = await http.get(f"/failures/{group['fingerprint']}")
    assert all(f"order-A-{number}" in page.text for number in range(3))
    assert (await http.get("/failures/0123456789ab")).status_code == 404


async def test_run_page_says_first_what_the_run_does(app: App, http: httpx.AsyncClient) -> None:
    await shop.approval.options(id="approval-1").start("A-1")
    await waiting(app, "approval-1")
    why = (await http.get("/runs/approval-1.json")).json()["why"]
    assert why["activity"] == "waiting"
    assert re.match("Waits for event order.approved, or the timer of step 1:timer, due in ", why["sentence"])
    assert why["sentence"] in (await http.get("/runs/approval-1")).text
    ended = (await http.get(f"/runs/{await failed('A-2')}.json")).json()
    assert re.match(r"Failed in step 2:shop.charge after .*: PaymentError: card of order A-2", ended["why"]["sentence"])
    assert ended["failed_step"] == "2:shop.charge"


async def test_rollback_is_shown_as_a_compensation(app: App, http: httpx.AsyncClient) -> None:
    shop.broken.add("A-1")
    await shop.trip.options(id="trip-1").start("A-1")
    await status_of(app.get("trip-1"), WorkflowStatus.COMPENSATING)
    why = (await http.get("/runs/trip-1.json")).json()["why"]
    assert why["sentence"].endswith(
        "compensates completed steps of the run. It failed: PaymentError: card of order A-1 declined."
    )
    page = (await http.get("/runs/trip-1")).text
    assert re.search('<g><title>compensation: [^<]*</title><rect class="b-undo b-open"', page)
    shop.gate.set()
    await status_of(app.get("trip-1"), WorkflowStatus.FAILED)


async def test_child_that_has_not_ended_has_its_name_and_state(app: App, http: httpx.AsyncClient) -> None:
    await shop.family.options(id="family-1").start("A-1")

    async def approval_waits() -> bool:
        steps = (await http.get("/runs/family-1.json")).json()["steps"]
        return [(each["name"], each["status"]) for each in steps] == [
            ("shop.payment", "completed"),
            ("shop.approval", "waiting"),
        ]

    await until(approval_waits)
    document = (await http.get("/runs/family-1.json")).json()
    marks = {each["label"]: each["mark"] for each in document["source"]["blocks"]}
    assert (marks["shop.payment"], marks["shop.approval"]) == ("taken", "now")
    assert not any(each["uncertain"] for each in document["source"]["blocks"])


async def test_values_are_shown_without_rounding_numbers(app: App, http: httpx.AsyncClient) -> None:
    await shop.order.options(id="order-1")("A-1", 0.1)
    page = (await http.get("/runs/order-1?step=1:shop.reserve")).text
    assert "9007199254740993" in page
    assert '"shelf":9007199254740993' in (await http.get("/runs/order-1.json?step=1:shop.reserve")).text
    assert (await http.get("/runs/order-1.json")).json()["state"] == {"stage": "delivering"}


async def test_markup_in_values_stays_text(app: App, http: httpx.AsyncClient) -> None:
    evil = "<script>alert(1)</script>\"'"
    await shop.order.options(id=f"o {evil}")(evil)
    page = await http.get("/runs?q=workflow:shop.order")
    (link,) = set(re.findall(r'data-href="([^"]+)"', page.text))
    run = await http.get(link)
    assert run.status_code == 200
    assert "<script>alert" not in run.text
    assert "alert(1)" in run.text
    assert "<script>alert" not in (await http.get("/runs?q=<script>alert(1)</script>")).text


async def test_unknown_page_names_the_overview(http: httpx.AsyncClient) -> None:
    missing = await http.get("/nope")
    assert missing.status_code == 404
    assert "there is nothing at /nope: see / for what there is" in missing.text
    assert f'<a href="{page_address("http.not_found")}" rel="noreferrer">http.not_found</a>' in missing.text
    assert '<a href="/">Overview</a>' in missing.text


def test_templates_are_compiled_before_the_first_request(app: App) -> None:
    assert ENVIRONMENT.cache is not None
    ENVIRONMENT.cache.clear()
    dashboard_app(app)
    assert {name for _, name in ENVIRONMENT.cache} == set(ENVIRONMENT.list_templates())


async def test_equal_steps_are_folded_and_opened(app: App, http: httpx.AsyncClient) -> None:
    await shop.order.options(id="order-1")("A-1", 1.0, 12)
    folded = (await http.get("/runs/order-1")).text
    assert "12 × shop.pack" in folded
    assert folded.count('class="tl-row r-') == 3
    (link,) = re.findall(r'href="(\?open=[^"#]+)', folded)
    opened = (await http.get(f"/runs/order-1{link.replace('&amp;', '&')}")).text
    assert opened.count('class="tl-row r-') == 15
    assert len(set(re.findall(r'shop\.pack</a> <span class="dim id">([0-9.]+)</span>', opened))) == 12


async def test_ten_thousand_steps_are_a_page_of_few_rows(app: App, http: httpx.AsyncClient) -> None:
    await shop.order.options(id="order-1")("A-1", 1.0, 5000)
    page = await http.get("/runs/order-1")
    assert "5,000 × shop.pack" in page.text
    assert len(page.content) < 60_000
    group = re.findall(r'href="(\?open=[^"#]+)', page.text)[0].replace("&amp;", "&")
    opened = await http.get(f"/runs/order-1{group}&from=400")
    assert opened.text.count('class="tl-row r-') == 200
    assert "Rows 401 to 600 of 5,003" in opened.text


async def test_waiting_parent_says_what_its_child_waits_for(app: App, http: httpx.AsyncClient) -> None:
    await shop.parent.options(id="parent-1").start("A-1")
    await waiting(app, "parent-1")
    (child,) = (await http.get("/runs/parent-1.json")).json()["lineage"]["children"]
    await waiting(app, child["id"])
    (entry,) = (await http.get("/runs/parent-1.json")).json()["why"]["children"]
    assert entry["id"] == child["id"]
    assert entry["sentence"].startswith("Waits for event order.approved")
    page = (await http.get("/runs/parent-1")).text
    assert f'href="/runs/{quote(child["id"], safe="")}">{child["id"]}</a>: Waits for event order.approved' in page


async def test_run_between_attempts_says_why_the_last_one_failed(app: App, http: httpx.AsyncClient) -> None:
    await shop.inquiry.options(id="inquiry-1", headers={"tenant": "acme"}).start("A-1")
    await waiting(app, "inquiry-1")
    document = (await http.get("/runs/inquiry-1.json")).json()
    assert document["why"]["sentence"].startswith("Waits for the next attempt of step 1:shop.ask_bank in ")
    assert document["why"]["sentence"].endswith("failed: PaymentError: the bank does not know order A-1.")
    assert document["run"]["headers"] == {"tenant": "acme"}
    assert "tenant: acme" in (await http.get("/runs/inquiry-1")).text
    async with connected(
        app, redact=lambda value, where: "hidden" if where in ("error", "headers") else value
    ) as other:
        page = (await other.get("/runs/inquiry-1")).text
    assert "does not know" not in page.split("<footer>")[0].split('id="timeline"')[0]
    assert "acme" not in page


async def test_compensation_that_fails_has_the_name_of_its_activity(app: App, http: httpx.AsyncClient) -> None:
    shop.broken.add("A-1")
    with suppress(WorkflowFailedError):
        await shop.move.options(id="move-1")("A-1")
    steps = (await http.get("/runs/move-1.json")).json()["steps"]
    assert [each["name"] for each in steps if each["kind"] == "compensation"] == ["shop.hire"]


async def test_compensation_between_attempts_has_its_name_and_its_error(app: App, http: httpx.AsyncClient) -> None:
    shop.broken.add("A-1")
    await shop.tour.options(id="tour-1").start("A-1")

    async def told() -> bool:
        why = (await http.get("/runs/tour-1.json")).json()["why"]
        expected = "The compensation of step 1:shop.rent is retried after: PaymentError: the rental company is closed."
        return bool(why["sentence"].endswith(expected))

    await until(told)
    document, page = (await http.get("/runs/tour-1.json")).json(), (await http.get("/runs/tour-1")).text
    assert [each["name"] for each in document["steps"] if each["kind"] == "compensation"] == ["shop.rent"]
    assert "The compensations continue, and the run ends as cancelled instead of failed." in page


async def test_worker_that_is_silent_is_not_said_to_execute_its_run(backend_database: BackendDatabase) -> None:
    async with backend_database("sqlite") as database, Client(database.url) as client:
        storage = storage_of(client)
        shift_clock(storage, timedelta(hours=-1))
        await storage.beat_worker("dead")
        shift_clock(storage, timedelta(0))
        await storage.create_instance(WorkflowInstance("lost-1", "shop.gone"), worker_id="dead", timeout_sec=600)
        async with connected(client) as http:
            why = (await http.get("/runs/lost-1.json")).json()["why"]
            assert why["sentence"] in (await http.get("/runs")).text
            await storage.create_instance(WorkflowInstance("lost-2", "shop.gone"), worker_id="left", timeout_sec=600)
            left = (await http.get("/runs/lost-2.json")).json()["why"]
            assert left["sentence"] in (await http.get("/runs")).text
    assert left["sentence"] == "Worker left holds the run but has left."
    assert left["advice"].startswith("Another worker takes the run over when the lease expires in ")
    assert why["activity"] == "queued"
    assert why["sentence"] == ("Worker dead holds the run and has sent no heartbeat for 1 h: it has probably died.")
    assert why["advice"].startswith("Another worker takes the run over when the lease expires in ")


async def test_run_that_starts_later_is_not_said_to_be_started(app: App, http: httpx.AsyncClient) -> None:
    await shop.payment.options(id="later-1", after=3600).start("A-1")
    page = (await http.get("/runs/later-1")).text
    assert "Waits for its start in" in page
    assert "started <time" not in page


async def test_some_failures_among_equal_steps_do_not_paint_all_of_them(app: App, http: httpx.AsyncClient) -> None:
    await shop.pictures.options(id="pictures-1")(8)
    page = (await http.get("/runs/pictures-1")).text
    folded, failed_one = page.split('class="tl-row r-failed')[1:]
    assert '<span class="dim">1 failed</span>' in folded
    assert "b-failed" not in folded
    assert folded.count("b-mark") == 1
    assert "b-failed" in failed_one


async def test_children_are_opened_in_the_timeline_of_their_parent(app: App, http: httpx.AsyncClient) -> None:
    await shop.parent.options(id="parent-1").start("A-1")
    await waiting(app, "parent-1")
    document = (await http.get("/runs/parent-1.json")).json()
    (child,) = document["lineage"]["children"]
    await waiting(app, child["id"])
    closed = (await http.get("/runs/parent-1")).text
    assert "wait_event" not in closed
    assert re.search(r'<span class="tl-name"><a [^>]*>shop.approval</a>', closed)  # not "child"
    opened = await http.get("/runs/parent-1", params={"open": child["id"]})
    assert "wait_event" in opened.text
    lineage = (await http.get(f"/runs/{quote(child['id'], safe='')}.json")).json()
    assert lineage["lineage"]["parent"]["id"] == "parent-1"


async def test_earlier_executions_of_a_run_have_their_steps_and_lead_to_the_next(
    everywhere: App,
) -> None:
    await shop.counter.options(id="counter-1")(2)
    async with connected(everywhere) as http:
        lineage = {}
        for id in ("counter-1~1", "counter-1~2", "counter-1"):
            document = (await http.get(f"/runs/{id}.json")).json()
            lineage[id] = [document["lineage"][name] for name in ("previous", "continued_by")]
            assert [each["id"] for each in document["steps"]] == ["1:shop.pack"]
            (entry,) = (await http.get(f"/runs/{id}/history.json")).json()["entries"]
            assert entry["step"] == "1:shop.pack"
    ids = {id: [each and each["id"] for each in found] for id, found in lineage.items()}
    assert ids == {
        "counter-1~1": [None, "counter-1~2"],
        "counter-1~2": ["counter-1~1", "counter-1"],
        "counter-1": ["counter-1~2", None],
    }


async def test_search_leads_to_runs_and_explains_mistakes(app: App, http: httpx.AsyncClient) -> None:
    await shop.order.options(id="order-1")("A-1")
    assert (await http.get("/runs?q=order-1")).headers["location"] == "/runs/order-1"
    assert (await http.get("/runs?q=order-2")).status_code == 404
    wrong = await http.get("/runs?q=colour:red")
    assert wrong.status_code == 422
    assert "colour: is no filter" in wrong.text
    found = (await http.get('/runs.json?q=workflow:shop.order input.order_id:"A-1"')).json()
    assert [each["id"] for each in found["runs"]] == ["order-1"]
    assert (await http.get("/runs.json?q=state:completed started:<1h")).json()["count"] == 1
    assert (await http.get("/runs?after=nonsense")).status_code == 422
    assert "&#39;99999999d&#39; is too long" in (await http.get("/runs?q=started:<99999999d")).text


async def test_lists_are_paged_by_keys(app: App, http: httpx.AsyncClient) -> None:
    for number in range(60):
        await shop.approval.options(id=f"a-{number:02}").start("A")
    first = await http.get("/runs")
    following = re.findall(r'href="(/runs\?[^"]+)" rel="next"', first.text)[0].replace("&amp;", "&")
    second = await http.get(following)
    ids = re.findall(r'data-href="/runs/(a-\d\d)"', first.text) + re.findall(r'data-href="/runs/(a-\d\d)"', second.text)
    assert sorted(ids) == [f"a-{number:02}" for number in range(60)]


async def test_other_pages_show_waits_channels_groups_workers_and_events(app: App, http: httpx.AsyncClient) -> None:
    await shop.listener.options(id="listener-1").start()
    await waiting(app, "listener-1")
    (entry,) = (await http.get("/waits.json")).json()["waits"]
    assert (entry["kind"], entry["name"], entry["runs"]) == ("channel", "shop.news", 1)
    page = (await http.get("/channels.json?channel=shop.news&group=shop.listeners")).json()
    assert (page["channel"]["mode"], page["group"]["members"]) == ("broadcast", ["listener-1"])
    (worker,) = (await http.get("/workers.json")).json()["workers"]
    assert worker["alive"]
    await storage_of(app).add_outbox_event(OutboxEvent("e-1", "order.paid", "shop", b"{}"))
    await storage_of(app).mark_outbox_event_failed("e-1", error="no route")
    assert "no route" in (await http.get("/outbox?state=invalid")).text
    assert (await http.get("/outbox?state=lost")).status_code == 422


async def test_schedules_show_the_last_and_the_next_tick(app: App, http: httpx.AsyncClient) -> None:
    @workflow(name="shop.report", cron="0 0 1 1 *")
    async def report() -> None: ...

    try:
        (entry,) = (await http.get("/schedules.json")).json()["schedules"]
        assert (entry["workflow"], entry["cron"], entry["last_run"]) == ("shop.report", "0 0 1 1 *", None)
        assert entry["last_at"] < entry["next_at"]
        assert "shop.report" in (await http.get("/schedules")).text
    finally:
        del WORKFLOWS["shop.report"]


async def stuck(app: App, id: str) -> None:
    """Store a run whose tries fail, as if it belonged to another worker."""
    storage = storage_of(app)
    lease = await storage.create_instance(WorkflowInstance(id, "shop.gone"), worker_id="w-1")
    assert lease is not None
    await storage.back_off(lease, 3, "LookupError: no such table", 3600)


async def test_stuck_run_says_why(app: App, http: httpx.AsyncClient) -> None:
    await stuck(app, "gone-1")
    run = (await http.get("/runs/gone-1.json")).json()
    assert run["why"]["activity"] == "stuck"
    assert "no such table" in run["why"]["sentence"]
    assert [each["id"] for each in (await http.get("/index.json")).json()["stuck"]] == ["gone-1"]
    assert [each["id"] for each in (await http.get("/runs.json?q=stuck:yes")).json()["runs"]] == ["gone-1"]
    assert "no such table" in (await http.get("/")).text


async def test_secret_values_are_hidden_by_key_and_by_function(app: App) -> None:
    await shop.order.options(id="order-1")("A-1", card="4000 1234")
    async with connected(app, redact=("card",)) as http:
        for path in ("/runs/order-1", "/runs/order-1.json", "/runs/order-1/history"):
            assert "4000 1234" not in (await http.get(path)).text
        assert (await http.get("/runs/order-1.json")).json()["input"]["card"] == "•••"
    async with connected(app, redact=lambda value, where: f"hidden {where}") as http:
        assert (await http.get("/runs/order-1.json")).json()["result"] == "hidden result"


async def test_security_headers_are_on_every_response(http: httpx.AsyncClient) -> None:
    page = await http.get("/")
    for path in ("/", "/nope", "/runs.json", re.findall(r'src="([^"]+)"', page.text)[0]):
        response = await http.get(path)
        assert response.headers["content-security-policy"] == POLICY
        assert response.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<(script|style)(?![^>]*\bsrc=)[^>]*>[^<]|\sstyle=|\son\w+=", page.text)
    assert not re.search(r"https?://(?!127\.0\.0\.1)", page.text)


def test_scripts_and_styles_stay_small() -> None:
    folder = files("perdure.dashboard").joinpath("static")
    sizes = {each.name: len(gzip.compress(each.read_bytes())) for each in folder.iterdir()}
    assert sum(size for name, size in sizes.items() if name.endswith(".js")) < 20_000
    assert sum(size for name, size in sizes.items() if name.endswith(".css")) < 12_000


async def test_first_page_is_small(app: App, http: httpx.AsyncClient) -> None:
    for number in range(20):
        await failed(f"A-{number}")
    page = await http.get("/")
    assets = [await http.get(url) for url in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)]
    assert sum(len(gzip.compress(each.content)) for each in (page, *assets)) < 60_000


async def test_closed_client_is_reported(app: App) -> None:
    async with connected(App("sqlite:///:memory:")) as http:
        response = await http.get("/")
    assert response.status_code == 503
    assert "is not open" in response.text


def test_durations_are_short() -> None:
    cases = {0.32: "320 ms", 4.2: "4.2 s", 60: "1 min", 200: "3 min 20 s", 3700: "1 h 2 min", 187200: "2 d 4 h"}
    assert {seconds: short(seconds) for seconds in cases} == cases
    assert short(timedelta(seconds=-5)) == "-5 s"


async def test_encrypted_values_are_shown_with_the_key_only(backend_database: BackendDatabase) -> None:
    async with backend_database("sqlite") as database:
        async with App(database.url, codec=Encrypted({"k1": new_key()})) as app:
            await shop.order.options(id="order-1")("A-1", card="4000 1234")
            await failed("A-2")
            await storage_of(app).add_outbox_event(OutboxEvent("e-1", "order.paid", "shop", b"{}"))
            await storage_of(app).mark_outbox_event_failed("e-1", error="no card 4000 1234")
            async with connected(app) as http:
                assert "4000 1234" in (await http.get("/runs/order-1")).text
                assert "no card 4000 1234" in (await http.get("/outbox?state=invalid")).text
                assert (await http.get("/index.json")).json()["failures"][0]["type"].endswith("PaymentError")
                search = await http.get("/runs?q=state:completed input.card:4000")
                assert search.status_code == 422
                assert "a codec has encoded" in search.text
        async with Client(database.url) as client, connected(client) as http:
            for path in ("/", "/runs", "/runs/order-1?step=1:shop.reserve", "/runs/order-A-2", "/runs/order-1/history"):
                page = await http.get(path)
                assert page.status_code == 200, path
                assert "4000 1234" not in page.text
            assert "encrypted with key" in (await http.get("/runs/order-1.json")).json()["input"]
            (event,) = (await http.get("/outbox.json?state=invalid")).json()["events"]
            assert event["error"] == "<encrypted with key 'k1'>"


async def test_run_whose_id_ends_like_the_json_of_another_has_its_page(app: App, http: httpx.AsyncClient) -> None:
    await shop.order.options(id="report.json")("A-1")
    await shop.order.options(id="order-1")("A-2")
    page = await http.get("/runs/report.json")
    assert page.headers["content-type"].startswith("text/html")
    assert '<span class="id">report.json</span>' in page.text
    (twin,) = re.findall(r'type="application/json" href="([^"]+)"', page.text)
    assert (await http.get(twin)).json()["run"]["id"] == "report.json"
    assert (await http.get("/runs/order-1.json")).json()["run"]["id"] == "order-1"
    assert (await http.get("/runs/report.json", headers={"Accept": "*/*"})).status_code == 404
    assert (await http.get("/runs/nope.json")).status_code == 404
    assert (await http.get("/runs/report.json/history")).status_code == 200
    assert (await http.get(f"/runs/{'x' * 300}.json")).status_code == 404


async def test_links_to_workflows_with_unusual_names_find_their_runs(app: App, http: httpx.AsyncClient) -> None:
    names = ('my "new" order', "<order>", "bestellung größer", "order:1", "a\\b c")
    for number, name in enumerate(names):
        await storage_of(app).create_instance(WorkflowInstance(f"r-{number}", name))
    page = (await http.get("/runs")).text
    links = [each.replace("&amp;", "&") for each in re.findall(r'href="(/runs\?q=workflow:[^"]*)"', page)]
    found = [(await http.get(link)).text for link in links]
    assert len(found) == len(names)
    for number in range(len(names)):
        assert sum(f'data-href="/runs/r-{number}"' in each for each in found) == 1, names[number]
        run = (await http.get(f"/runs/r-{number}")).text
        (link,) = set(re.findall(r'href="(/runs\?q=workflow:[^"]*)"', run))
        assert f'data-href="/runs/r-{number}"' in (await http.get(link)).text


async def test_huge_values_are_shortened(app: App, http: httpx.AsyncClient) -> None:
    many: Any = [["x" * 100] * 200] * 200
    await storage_of(app).create_instance(
        WorkflowInstance("huge-1", "shop.gone", input_data=json.dumps({"many": many, "one": "y" * 10_000}).encode())
    )
    page = await http.get("/runs/huge-1")
    assert len(page.content) < 200_000
    assert "shortened: the JSON of this page has the whole value" in page.text
    assert (await http.get("/runs/huge-1.json")).json()["input"]["many"] == many
    assert len(pretty({str(n): n for n in range(100_000)})) < 100_000
    assert "10,000 characters in all" in pretty(["y" * 10_000], 4_000)
    assert "shortened" not in pretty([1, {"a": "b"}], 4_000)
    assert "shortened" in pretty(Number("1" * 100_000))


async def test_long_errors_are_shortened_in_sentences(app: App, http: httpx.AsyncClient) -> None:
    shop.broken.add("A" * 5_000)
    with suppress(WorkflowFailedError):
        await shop.payment.options(id="payment-1")("A" * 5_000)
    for path in ("/", "/runs"):
        assert "A" * 1_000 not in (await http.get(path)).text
    document, page = (await http.get("/runs/payment-1.json")).json(), (await http.get("/runs/payment-1")).text
    assert len(document["why"]["sentence"]) < 600
    assert document["why"]["sentence"].endswith(" …")
    assert len(document["run"]["error"]["message"]) > 5_000
    assert "A" * 5_000 in page


@pytest.mark.parametrize("number", ["9" * 30, "0" * 12 + "9" * 30, "9" * 5_000, "-1", "1e3", "٣"])
async def test_numbers_in_links_are_checked(app: App, http: httpx.AsyncClient, number: str) -> None:
    await shop.order.options(id="order-1")("A-1")
    for path in ("/runs/order-1?from=", "/runs/order-1/history?after=", "/audit?before="):
        assert (await http.get(path + number)).status_code == 422, path


async def test_failed_step_has_a_pattern_besides_its_colour(app: App, http: httpx.AsyncClient) -> None:
    page = (await http.get(f"/runs/{await failed('A-1')}")).text
    (bar,) = re.findall(r'<rect class="b-failed"[^>]*>', page)
    assert 'fill="url(#p-bad)"' in bar
    assert '<span class="k k-bad"></span>failed step' in page


async def test_choosing_a_theme_without_scripts_keeps_the_search(http: httpx.AsyncClient) -> None:
    page = (await http.get("/runs?q=state:failed&after=")).text
    (following,) = re.findall(r'action="/theme">.*?name="next" value="([^"]*)"', page)
    assert following.replace("&amp;", "&") == "/runs?q=state:failed&after="


async def test_links_in_an_opened_child_lead_to_its_steps_and_children(app: App, http: httpx.AsyncClient) -> None:
    await shop.grandparent.options(id="g-1").start("A-1")
    await waiting(app, "g-1")
    (family,) = (await http.get("/runs/g-1.json")).json()["lineage"]["children"]
    await waiting(app, family["id"])
    opened = await http.get("/runs/g-1", params={"open": family["id"]})
    links = [each.replace("&amp;", "&") for each in re.findall(r'<span class="tl-name"><a href="([^"]+)"', opened.text)]
    payment = next(each for each in links if each.startswith(f"/runs/{quote(family['id'], safe='')}?step=1"))
    page = (await http.get(payment)).text
    assert '<section id="step"' in page
    (toggle,) = re.findall(r'<a class="dim" href="([^"]+)">open</a>', opened.text)[:1]
    deeper = (await http.get(f"/runs/g-1{toggle.replace('&amp;', '&')}")).text
    assert deeper.count('class="tl-row r-') > opened.text.count('class="tl-row r-')
    assert ">shop.charge</a>" in deeper
    assert ">child</a>" not in deeper


async def test_folded_steps_stay_open_beside_a_child_and_are_in_the_json(app: App, http: httpx.AsyncClient) -> None:
    run = await shop.grandparent.options(id="g-1").start("A-1")
    await waiting(app, "g-1")
    (family,) = (await http.get("/runs/g-1.json")).json()["lineage"]["children"]
    await waiting(app, family["id"])

    async def awaits_approval() -> bool:
        return "order.approved" in [each["name"] for each in (await http.get("/waits.json")).json()["waits"]]

    await until(awaits_approval)
    await app.send_event("order.approved", {"order": "A-1", "by": "Ada"})

    async def has_packed() -> bool:
        return bool((await http.get("/runs/g-1.json")).json()["groups"])

    await until(has_packed)
    (group,) = (await http.get("/runs/g-1.json")).json()["groups"]
    assert (group["name"], group["steps"]) == ("shop.pack", 8)
    assert group["by_status"].keys() == {"completed"}
    page = (await http.get(f"/runs/{run.id}", params={"open": [group["id"], family["id"]]})).text
    assert len(re.findall(r'shop\.pack</a> <span class="dim id">', page)) == 8
