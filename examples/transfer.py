"""Exactly-once money transfers with SQLAlchemy: a worker is killed in the middle of a transfer, and no money is lost.

    python -m examples.transfer [url]

Needs `sqlalchemy[asyncio]`. On PostgreSQL or MySQL it also needs psycopg or PyMySQL, for the web handler's engine.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

import sqlalchemy as sa

from perdure import App, SyncClient, SyncRunHandle, TerminalError, activity, connection, workflow

LEASE_SEC = 2
TABLES = sa.MetaData()
ACCOUNTS = sa.Table(
    "example_accounts",
    TABLES,
    sa.Column("name", sa.String(50), primary_key=True),
    sa.Column("balance", sa.Integer, nullable=False),
)
ORDERS = sa.Table(
    "example_orders",
    TABLES,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("amount", sa.Integer, nullable=False),
)


@activity(transactional=True)
def move(source: str, target: str, amount: int) -> int:
    """Move money. Both updates and the recorded result are one transaction, which commits when this returns."""
    db: sa.Connection = connection("sqlalchemy")
    balance = sa.select(ACCOUNTS.c.balance).where(ACCOUNTS.c.name == source)
    db.execute(_change(source, -amount))
    left = int(db.execute(balance).scalar_one())
    if left < 0:
        raise TerminalError(f"{source} has too little money")  # rolls back
    if left == 70 and "--dies" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)  # after the first update and before the second
    db.execute(_change(target, amount))
    return left


def _change(name: str, amount: int) -> sa.Update:
    return sa.update(ACCOUNTS).where(ACCOUNTS.c.name == name).values(balance=ACCOUNTS.c.balance + amount)


@workflow(name="examples.transfer")
async def transfer(source: str, target: str, amount: int) -> int:
    """Transfer money."""
    return await move(source, target, amount)


def handle_request(engine: sa.Engine, number: int, *, crashes: bool = False) -> SyncRunHandle[int]:
    """Handle a web request: insert a row and start a run in the same transaction, so both exist or neither."""
    with engine.begin() as db:
        db.execute(sa.insert(ORDERS).values(number=number, amount=5))
        run = transfer.options(id=f"transfer-{number}", in_transaction=db).start_sync("ann", "bob", 5)
        if crashes:
            raise ConnectionError("the web server was restarted")
    return run  # the transaction is committed, so the run begins now


def set_up(engine: sa.Engine) -> None:
    """Create two accounts."""
    TABLES.drop_all(engine)
    TABLES.create_all(engine)
    with engine.begin() as db:
        db.execute(sa.insert(ACCOUNTS), [{"name": "ann", "balance": 100}, {"name": "bob", "balance": 0}])


def show(engine: sa.Engine, when: str) -> None:
    """Print the balances."""
    with engine.connect() as db:
        accounts = {row.name: row.balance for row in db.execute(sa.select(ACCOUNTS))}
        orders = db.scalar(sa.select(sa.func.count()).select_from(ORDERS))
    print(
        f"{when:>24} ann {accounts['ann']}, bob {accounts['bob']}, together {sum(accounts.values())}; {orders} orders"
    )


def start_worker(url: str, *how: str) -> subprocess.Popen[bytes]:
    """Start a worker process."""
    return subprocess.Popen([sys.executable, "-m", "examples.transfer", url, "--worker", *how])


def main(url: str) -> None:
    """Handle eleven requests, kill a worker, and let another one finish."""
    kinds = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    kind, _, where = url.partition("://")
    engine = sa.create_engine(f"{kinds.get(kind, kind)}://{where}")
    with SyncClient(url):
        set_up(engine)
        runs = [handle_request(engine, number) for number in range(10)]
        try:
            handle_request(engine, 10, crashes=True)
        except ConnectionError as error:
            print(f"{'eleventh request':>24} {error}: no order and no run")
        show(engine, "after ten requests")
        start_worker(url, "--dies").wait()
        show(engine, "worker killed")
        worker = start_worker(url)
        results = [run.result(timeout=60) for run in runs]
        worker.terminate()
        worker.wait()
        print(f"{'balances of ann':>24} {sorted(results, reverse=True)}")
        show(engine, "another worker resumed")
    engine.dispose()


if __name__ == "__main__":
    if "--worker" in sys.argv:
        asyncio.run(App(sys.argv[1], workflows=[transfer], lease=LEASE_SEC).serve())
    else:
        with tempfile.TemporaryDirectory(prefix="perdure-transfer-") as folder:
            main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/bank.db")
