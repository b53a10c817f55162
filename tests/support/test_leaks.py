"""The check for leaks fails a test that leaves something behind, names what it left, and blames no other test."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAKING = """
import asyncio, socket, threading
from pathlib import Path
import pytest
from perdure import App, SyncClient, workflow
from perdure.model.records import WorkflowInstance
from tests.support import leaks

leaks.ENDING_SEC = 0.05
left = []

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    left.append((tmp_path_factory.mktemp("shared") / "file").open("w"))

async def test_task():
    left.append(asyncio.create_task(asyncio.Event().wait(), name="forgotten task"))

async def test_cancelled_task():
    asyncio.create_task(asyncio.Event().wait()).cancel()

def test_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten thread", daemon=True).start()

def test_file(tmp_path):
    left.append((tmp_path / "forgotten").open("w"))

def test_socket():
    left.append(socket.socket())

def test_unreachable_socket():
    forgotten = [socket.socket()]
    forgotten.append(forgotten)

async def test_lease(backend_database):
    async with backend_database("sqlite") as database:
        async with App(database.url, worker_id="w"):
            pass
        storage = await database.storage()
        await storage.create_instance(WorkflowInstance("forgotten-run", "wf"), worker_id="w#0", timeout_sec=60)

def test_schedule():
    @workflow(name="forgotten.tick", cron="0 * * * *")
    async def tick(): ...

def test_client(tmp_path):
    left.append(SyncClient(f"sqlite:///{tmp_path}/forgotten.db"))

def test_shared_file(shared):
    pass

def test_kept_file(tmp_path):
    with leaks.kept():
        left.append((tmp_path / "kept").open("w"))

def test_nothing():
    pass
"""
NAMED = {
    "task": r"task forgotten task \(Event.wait\) at .*, created at .*test_leaking.py:17",
    "thread": "thread forgotten thread",
    "file": "open file .*/forgotten",
    "socket": "open file .*socket:",
    "unreachable_socket": "Exception ignored in: <socket.socket",
    "lease": "lease of forgotten-run by w#0",
    "client": "<SyncClient of sqlite, made at .*test_leaking.py",
    "schedule": "scheduled workflow forgotten.tick",
}


def test_leaks_fail_the_test_that_left_them(tmp_path: Path) -> None:
    module = tmp_path / "test_leaking.py"
    module.write_text(LEAKING)
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", "-q", "--assert=plain", "--asyncio-debug", *options, str(module)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False).stdout
    blamed = set(re.findall(r"^(?:ERROR|FAILED) .*::test_(\w+)", said, re.MULTILINE))
    assert blamed == set(NAMED), said
    for name, leak in NAMED.items():
        assert re.search(leak, said), (name, said)
