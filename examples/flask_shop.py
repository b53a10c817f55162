"""A web shop with Flask: requests start and inspect runs, which a worker in another process executes.

    python -m examples.flask_shop sqlite:///shop.db          # the worker, the web server, and a customer
    python -m examples.flask_shop worker sqlite:///shop.db   # the worker alone
    SHOP_URL=sqlite:///shop.db gunicorn --workers 4 --preload "examples.flask_shop:create_app()"

Needs Flask.
"""

import os

from flask import Flask, request
from werkzeug.serving import make_server

from examples.shop import main, order, run_id
from perdure import RunNotFoundError, SyncClient

Answer = tuple[dict[str, object], int]


def create_app(url: str = "") -> Flask:
    """Return the web application of a database."""
    web = Flask(__name__)
    client = SyncClient(url or os.environ["SHOP_URL"])  # connects at the first request, in each process of the server

    @web.post("/orders/<order_id>")
    def place(order_id: str) -> Answer:
        run = client.start(order.options(id=run_id(order_id)), order_id, float(request.get_json()["amount"]))
        return {"run": run.id}, 202  # stored: the run survives a crash of this process

    @web.get("/orders/<order_id>")
    def show(order_id: str) -> Answer:
        run = client.get(run_id(order_id))
        return {"run": run.id, "status": run.info().status.value, "state": run.state()}, 200

    @web.post("/orders/<order_id>/approval")
    def approve(order_id: str) -> Answer:
        client.send_event("approved", True, to=run_id(order_id))
        return {"run": run_id(order_id)}, 202

    @web.get("/orders/<order_id>/receipt")
    def receipt(order_id: str) -> Answer:
        try:
            return {"receipt": client.get(run_id(order_id)).result(timeout=20)}, 200
        except TimeoutError:
            return {"error": "not yet: ask again"}, 504

    @web.errorhandler(RunNotFoundError)
    def not_found(error: RunNotFoundError) -> Answer:
        return {"error": "there is no such order"}, 404

    return web


def serve(url: str) -> None:
    """Serve the shop on any free port."""
    server = make_server("127.0.0.1", 0, create_app(url), threaded=True)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main("examples.flask_shop", serve)
