"""What the two web shops share: the workflow, the worker, and a customer who tries them.

`flask_shop.py` and `django_shop.py` are the web processes. The worker is a process of its own: it executes the runs,
and the web processes only start and inspect them.
"""

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perdure import App, activity, set_state, wait_event, workflow


@activity
async def charge(order_id: str, amount: float) -> str:
    """Charge the customer."""
    return f"{amount:.2f} paid for {order_id}"


@activity
def ship(order_id: str) -> str:
    """Ship the order; a plain function runs in a thread of the worker."""
    return f"parcel of {order_id}"


@workflow(name="examples.shop.order")
async def order(order_id: str, amount: float) -> str:
    """Charge, wait for the approval of a person, and ship."""
    receipt = await charge(order_id, amount)
    set_state("waits for approval")
    await wait_event("approved")
    return f"{receipt}, {await ship(order_id)}"


def run_id(order_id: str) -> str:
    """Return the id of the run of an order, so that an order that is sent twice starts one run."""
    return f"order-{order_id}"


def main(module: str, web: Callable[[str], None]) -> None:
    """Run the worker, the web server, or both and a customer."""
    role, url = [*sys.argv[1:], ""][:2]
    if role == "worker":
        asyncio.run(App(url, workflows=[order]).serve())
    elif role == "web":
        web(url)
    else:
        with process(module, "worker", role), process(module, "web", role) as server:
            assert server.stdout is not None
            buy(server.stdout.readline().decode().strip())


@contextmanager
def process(module: str, role: str, url: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Start the worker or the web server as a process."""
    with subprocess.Popen([sys.executable, "-m", module, role, url], stdout=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.terminate()


def buy(address: str) -> None:
    """Place an order twice, approve it, and wait for the receipt."""
    for _ in range(2):
        print("placed:", call(f"{address}/orders/A-1", {"amount": 9.5})["run"])
    print("approved:", call(f"{address}/orders/A-1/approval", {})["run"])
    print("receipt:", call(f"{address}/orders/A-1/receipt")["receipt"])
    print("status:", call(f"{address}/orders/A-1")["status"])
    try:
        call(f"{address}/orders/B-2/approval", {})
    except urllib.error.HTTPError as refused:
        print("an order that does not exist:", refused.status)


def call(address: str, data: dict[str, float] | None = None) -> dict[str, str]:
    """Send a request and return the answer; with data it is a POST."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, str] = json.load(answer)
        return found
