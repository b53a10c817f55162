"""A web shop with Django: a request inserts an order and starts its run in one transaction.

    python -m examples.django_shop sqlite:///shop.db          # the worker, the web server, and a customer
    python -m examples.django_shop worker sqlite:///shop.db   # the worker alone
    SHOP_URL=sqlite:///shop.db gunicorn --workers 4 --preload "examples.django_shop:create_app()"

Needs Django. A project has its settings, views and URLs in files of their own; this one fits into a page.
"""

import json
import os
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from django.http import Http404, HttpRequest, JsonResponse
from django.urls import path

from examples.shop import main, order, run_id
from perdure import RunNotFoundError, SyncClient


def place(request: HttpRequest, order_id: str) -> JsonResponse:
    """Insert the order and start its run: both exist, or neither."""
    amount = float(json.loads(request.body)["amount"])
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT OR IGNORE INTO example_orders VALUES (%s, %s)", [order_id, amount])
        mine = connection.connection  # that of the driver
        run = order.options(id=run_id(order_id), in_transaction=mine).start_sync(order_id, amount)
    return JsonResponse({"run": run.id}, status=202)


def show(request: HttpRequest, order_id: str) -> JsonResponse:
    """Place an order, or show its status."""
    if request.method == "POST":
        return place(request, order_id)
    run = settings.PERDURE.get(run_id(order_id))
    try:
        return JsonResponse({"run": run.id, "status": run.info().status.value, "state": run.state()})
    except RunNotFoundError:
        raise Http404 from None


def approve(request: HttpRequest, order_id: str) -> JsonResponse:
    """Approve an order."""
    try:
        settings.PERDURE.send_event("approved", True, to=run_id(order_id))
    except RunNotFoundError:
        raise Http404 from None
    return JsonResponse({"run": run_id(order_id)}, status=202)


def receipt(request: HttpRequest, order_id: str) -> JsonResponse:
    """Wait for the receipt of an order."""
    try:
        return JsonResponse({"receipt": settings.PERDURE.get(run_id(order_id)).result(timeout=20)})
    except RunNotFoundError:
        raise Http404 from None
    except TimeoutError:
        return JsonResponse({"error": "not yet: ask again"}, status=504)


urlpatterns = [
    path("orders/<order_id>", show),
    path("orders/<order_id>/approval", approve),
    path("orders/<order_id>/receipt", receipt),
]


def create_app(url: str = "") -> Any:
    """Return the web application of a database."""
    url = url or os.environ["SHOP_URL"]
    settings.configure(
        ALLOWED_HOSTS=["127.0.0.1"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}},
        ROOT_URLCONF=__name__,
        PERDURE=SyncClient(url),  # connects at the first request, in each process of the server
    )
    django.setup()
    settings.PERDURE.health()  # creates perdure's tables, which a start in a transaction needs
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS example_orders (id TEXT PRIMARY KEY, amount REAL NOT NULL)")
    connection.close()
    return get_wsgi_application()


class Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(url: str) -> None:
    """Serve the shop on any free port."""
    with make_server("127.0.0.1", 0, create_app(url), handler_class=Quiet) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main("examples.django_shop", serve)
