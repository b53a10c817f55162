# mypy: ignore-errors
"""Mistakes in opening an App or Client."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading

from perdure import App, Client, Retention, SyncClient
from perdure.storage import open_storage
from tests.mistakes.catalogue import ProgramEnded, mistake


@mistake("a path instead of a URL")
async def _():
    async with App("shop.db"):
        ...


@mistake("a pathlib.Path instead of a URL")
async def _(tmp_path):
    async with App(tmp_path / "shop.db"):
        ...


@mistake("a SyncClient on a database in memory")
def _():
    SyncClient("sqlite:///:memory:")


@mistake("a SyncClient of an open storage")
async def _(url):
    async with open_storage(url) as storage:
        SyncClient(storage)


@mistake("`async with` for a SyncClient")
async def _(url):
    async with SyncClient(url):
        ...


@mistake("a SyncClient that is used after its `with`")
def _(url):
    with SyncClient(url) as client:
        ...
    client.info("order-1")


@mistake("a SyncClient that is entered twice")
def _(url):
    with SyncClient(url) as client, client:
        ...


@mistake("an unknown scheme")
async def _():
    async with App("oracle://localhost/shop"):
        ...


@mistake("two slashes instead of three")
async def _():
    async with App("sqlite://shop.db"):
        ...


@mistake("an unknown option in the URL of SQLite")
async def _(url):
    async with App(f"{url}?timeout=5"):
        ...


@mistake("an unknown option in the URL of PostgreSQL")
async def _():
    async with App("postgresql://localhost/shop?pool=5"):
        ...


@mistake("a PostgreSQL URL without a database")
async def _():
    async with App("postgresql://localhost"):
        ...


@mistake("a MySQL URL without a database")
async def _():
    async with App("mysql://localhost"):
        ...


@mistake("a PostgreSQL URL with a port that is no number")
async def _():
    async with App("postgresql://shop:secret@localhost:port/shop"):
        ...


@mistake("a PostgreSQL server that is not there")
async def _():
    async with App("postgresql://shop:secret@127.0.0.1:1/shop"):
        ...


@mistake("a MySQL server that is not there")
async def _():
    async with App("mysql://shop:secret@127.0.0.1:1/shop"):
        ...


@mistake("a PostgreSQL database that does not exist")
async def _(postgres_url):
    async with App(f"{postgres_url.rpartition('/')[0]}/no_such_shop"):
        ...


@mistake("a PostgreSQL user who does not exist")
async def _(postgres_url):
    async with App(f"postgresql://nobody@{postgres_url.rpartition('@')[2]}"):
        ...


@mistake("a MySQL database that does not exist")
async def _(mysql_url):
    async with App(f"{mysql_url.rpartition('/')[0]}/no_such_shop"):
        ...


@mistake("a wrong password")
async def _(fresh_mysql_db):
    async with App(f"mysql://root:wrong@{fresh_mysql_db.rpartition('@')[2]}"):
        ...


@mistake("the driver of PostgreSQL is not installed")
def _():
    program = "import sys; sys.modules['asyncpg'] = None; from perdure import *; App('postgresql://localhost/shop')"
    run_program(f"{program}._database.open()")


@mistake("the driver of MySQL is not installed")
def _():
    program = "import sys; sys.modules['asyncmy'] = None; from perdure import *; App('mysql://localhost/shop')"
    run_program(f"{program}._database.open()")


@mistake("a folder that does not exist")
async def _(tmp_path):
    async with App(f"sqlite:///{tmp_path}/data/shop.db"):
        ...


@mistake("a folder as the file")
async def _(tmp_path):
    (tmp_path / "data").mkdir()
    async with App(f"sqlite:///{tmp_path}/data"):
        ...


@mistake("a file that is no database")
async def _(tmp_path):
    (tmp_path / "orders.csv").write_text("order,amount\n" * 100)
    async with App(f"sqlite:///{tmp_path}/orders.csv"):
        ...


@mistake("a database with a table of the same name")
async def _(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as mine:
        mine.execute("CREATE TABLE workflow_instances (id INTEGER)")
    async with App(f"sqlite:///{tmp_path}/other.db"):
        ...


@mistake("with instead of async with")
def _(url):
    with App(url):
        ...


@mistake("an App that is never entered")
async def _(url, shop):
    App(url)
    await shop.order.start("A-1")


@mistake("use before entering")
async def _(url):
    app = App(url)
    await app.runs().count()


@mistake("use after closing")
async def _(url):
    async with Client(url) as client:
        ...
    await client.get("order-1").info()


@mistake("result() after closing")
async def _(url, shop):
    async with App(url):
        run = await shop.order.start("A-1")
    await run.result()


@mistake("an App entered twice")
async def _(url):
    async with App(url) as app, app:
        ...


@mistake("a Client on a database in memory")
async def _():
    async with Client("sqlite:///:memory:"):
        ...


@mistake("two Apps at once, and neither of them meant")
async def _(url, tmp_path, shop):
    first, second = App(url), App(f"sqlite:///{tmp_path}/other.db")
    opening = [asyncio.create_task(app.__aenter__()) for app in (first, second)]
    await asyncio.gather(*opening)
    try:
        await shop.order.start("A-1")
    finally:
        await first.__aexit__(None, None, None)
        await second.__aexit__(None, None, None)


@mistake("no workers")
def _(url):
    App(url, max_runs=0)


@mistake("a number of threads that is a text")
def _(url):
    App(url, max_threads="16")


@mistake("a lease of 0 seconds")
def _(url):
    App(url, lease=0)


@mistake("a lease that is a text")
def _(url):
    App(url, lease="15s")


@mistake("an unknown setting")
def _(url):
    App(url, workers=4)


@mistake("one workflow instead of a list")
def _(url, shop):
    App(url, workflows=shop.order)


@mistake("an activity among the workflows")
def _(url, shop):
    App(url, workflows=[shop.charge])


@mistake("a number of days as the retention")
def _(url):
    App(url, retention=30)


@mistake("a Retention with a negative age")
def _():
    Retention(finished=-1)


@mistake("a publisher that is not callable")
def _(url):
    App(url, publisher=5)


@mistake("a publisher that is not async")
def _(url):
    def publish(event):
        print(event)

    App(url, publisher=publish)


@mistake("a publisher with an unknown scheme")
def _(url):
    App(url, publisher="mqtt://broker.example.com")


@mistake("a typo in an option of a broker's URL")
def _(url):
    App(url, publisher="nats://broker.example.com?subjet=orders")


@mistake("the URL of a broker instead of a subscription")
def _(url):
    App(url, subscriptions=["nats://broker.example.com/ORDERS"])


@mistake("a hook that is not callable")
def _(url):
    App(url, hooks=["notify"])


@mistake("a hook instead of a list")
def _(url):
    App(url, hooks=print)


@mistake("a worker id that is a number")
def _(url):
    App(url, worker_id=7)


@mistake("a storage that is not open")
def _(url):
    App(open_storage(url))


@mistake("an App used on another event loop")
async def _(url, shop):
    def elsewhere():
        try:
            asyncio.run(shop.order.start("A-1"))
        except Exception as error:
            errors.append(error)

    errors = []
    async with App(url):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
    raise errors[0]


@mistake("an App used after a fork")
def _(url):
    run_program(
        """
import asyncio, os, sys
from perdure import App, workflow

@workflow
async def order(): ...

async def main():
    async with App(sys.argv[1]):
        if os.fork() == 0:
            asyncio._set_running_loop(None)
            try:
                asyncio.new_event_loop().run_until_complete(order.start())
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os.wait()
    sys.exit(1)

asyncio.run(main())
""",
        url,
    )


def run_program(text, *args):
    """Run a program in a process of its own, and raise the last line of what it writes."""
    program = [sys.executable, "-W", "ignore", "-c", text, *args]
    done = subprocess.run(program, capture_output=True, text=True, timeout=20, env=dict(os.environ))
    raise ProgramEnded(done.stderr.strip().splitlines()[-1])
