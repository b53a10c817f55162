# mypy: ignore-errors
"""Mistakes in starting runs: ids, times, and transactions of the user's own."""

import sqlite3
from datetime import datetime, timedelta

import aiosqlite
import asyncpg

from perdure import App, Client, workflow
from tests.mistakes.catalogue import mistake
from tests.support.databases import connect_mysql


@mistake("a text for a number")
async def _(url, shop):
    async with App(url):
        await shop.order.start("A-1", "abc")


@mistake("a number for a text")
async def _(url, shop):
    async with App(url):
        await shop.order.start(17)


@mistake("an id that is a number")
def _(shop):
    shop.order.options(id=17)


@mistake("an empty id")
def _(shop):
    shop.order.options(id="")


@mistake("an id that begins with ~")
def _(shop):
    shop.order.options(id="~order")


@mistake("an id that ends like those of the engine")
def _(shop):
    shop.order.options(id="order~2")


@mistake("an id that is too long")
def _(shop):
    shop.order.options(id="order" * 100)


@mistake("an id with a newline")
def _(shop):
    shop.order.options(id="order-1\n")


@mistake("an id that is taken, with another input")
async def _(url, shop):
    async with App(url):
        await shop.order.options(id="order-1").start("A-1")
        await shop.order.options(id="order-1").start("A-2")


@mistake("an id that is taken by another workflow")
async def _(url, shop):
    @workflow
    async def ship(order_id: str): ...

    async with App(url):
        await shop.order.options(id="A-1").start("A-1")
        await ship.options(id="A-1").start("A-1")


@mistake('an id that is taken, with if_exists="error"')
async def _(url, shop):
    async with App(url):
        await shop.order.options(id="order-1").start("A-1")
        await shop.order.options(id="order-1", if_exists="error").start("A-1")


@mistake("an unknown value of if_exists=")
def _(shop):
    shop.order.options(if_exists="replace")


@mistake("an unknown option")
def _(shop):
    shop.order.options(delay=60)


@mistake("options as arguments of start()")
async def _(url, shop):
    async with App(url):
        await shop.order.start("A-1", id="order-1")


@mistake("at= and after=")
def _(shop):
    shop.order.options(at=datetime.fromisoformat("2030-01-01T09:00:00+00:00"), after=60)


@mistake("a time without a zone")
def _(shop):
    shop.order.options(at=datetime(2030, 1, 1, 9))


@mistake("a text as a time")
def _(shop):
    shop.order.options(at="2030-01-01T09:00:00Z")


@mistake("a negative delay")
def _(shop):
    shop.order.options(after=timedelta(seconds=-1))


@mistake("a text as a delay")
def _(shop):
    shop.order.options(after="1h")


@mistake("a timeout of 0")
def _(shop):
    shop.order.options(timeout=0)


@mistake("a delay of a thousand years")
def _(shop):
    shop.order.options(after=timedelta(days=365_000))


@mistake("an input of 9 MB")
async def _(url, shop):
    async with App(url):
        await shop.order.start("A" * 9_000_000)


@mistake("a URL as in_transaction=")
async def _(url, shop):
    async with App(url):
        await shop.order.options(in_transaction=url).start("A-1")


@mistake("True as in_transaction=")
async def _(url, shop):
    async with App(url):
        await shop.order.options(in_transaction=True).start("A-1")


@mistake("a blocking connection with start()")
async def _(url, tmp_path, shop):
    async with App(url):
        with sqlite3.connect(tmp_path / "shop.db") as mine:
            await shop.order.options(in_transaction=mine).start("A-1")


@mistake("an async connection with start_sync()")
async def _(url, tmp_path, shop):
    async with App(url), aiosqlite.connect(tmp_path / "shop.db") as mine:
        shop.order.options(in_transaction=mine).start_sync("A-1")


@mistake("a connection without an open transaction")
async def _(url, tmp_path, shop):
    async with App(url), aiosqlite.connect(tmp_path / "shop.db") as mine:
        await shop.order.options(in_transaction=mine).start("A-1")


@mistake("a connection without an open transaction, on PostgreSQL")
async def _(fresh_postgres_db, shop):
    async with Client(fresh_postgres_db):
        mine = await asyncpg.connect(fresh_postgres_db)
        try:
            await shop.order.options(in_transaction=mine).start("A-1")
        finally:
            await mine.close()


@mistake("a connection without an open transaction, on MySQL")
async def _(fresh_mysql_db, shop):
    async with Client(fresh_mysql_db), connect_mysql(fresh_mysql_db) as mine:
        await shop.order.options(in_transaction=mine).start("A-1")


@mistake("a connection to another SQLite file")
async def _(url, tmp_path, shop):
    async with App(url), aiosqlite.connect(tmp_path / "other.db") as mine:
        await mine.execute("BEGIN")
        await shop.order.options(in_transaction=mine).start("A-1")


@mistake("a connection to another kind of database")
async def _(url, postgres_url, shop):
    async with App(url):
        mine = await asyncpg.connect(postgres_url)
        try:
            async with mine.transaction():
                await shop.order.options(in_transaction=mine).start("A-1")
        finally:
            await mine.close()


@mistake("a connection to a PostgreSQL database without the tables")
async def _(fresh_postgres_db, shop):
    mine = await asyncpg.connect(fresh_postgres_db)
    try:
        async with mine.transaction():
            await shop.order.options(in_transaction=mine).start("A-1")
    finally:
        await mine.close()


@mistake("a connection to a MySQL database without the tables")
async def _(fresh_mysql_db, shop):
    async with connect_mysql(fresh_mysql_db) as mine:
        await mine.begin()
        await shop.order.options(in_transaction=mine).start("A-1")


@mistake("in_transaction= for a call that waits for the result")
async def _(url, tmp_path, shop):
    async with App(url):
        with sqlite3.connect(tmp_path / "shop.db") as mine:
            await shop.order.options(in_transaction=mine)("A-1")


@mistake("in_transaction= in a body")
async def _(url, shop):
    @workflow
    async def ship():
        await shop.order.options(in_transaction=object()).start("A-1")

    async with App(url):
        await ship()
