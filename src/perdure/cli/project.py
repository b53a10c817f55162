"""The files of the project that `perdure init` writes."""

import json
from importlib.metadata import Distribution, PackageNotFoundError
from typing import Any

WORKFLOWS = '''\
"""The workflows of the project, and the App whose worker executes them: `perdure worker`, or `perdure dev`."""

import os

from perdure import App, Retry, activity, wait_event, workflow


@activity(retry=Retry(attempts=5), timeout=10)  # a step: its result is recorded, its failures are retried
async def charge(order_id: str, amount: float) -> str:
    return f"receipt for {order_id}: {amount:.2f}"


@activity
async def ship(order_id: str) -> None:
    print(f"{order_id} is on its way")


@workflow  # an ordinary async function that survives crashes
async def order(order_id: str, amount: float) -> str:
    receipt = await charge(order_id, amount)
    await wait_event("packed", where={"order_id": order_id})  # holds no worker meanwhile
    await ship(order_id)
    return receipt


app = App(os.environ.get("PERDURE_URL", "sqlite:///__NAME__.db"))  # or postgresql://…, mysql://…
'''

TESTS = '''\
"""Tests in memory, where time jumps: `pytest`."""

from workflows import charge, order

from perdure.testing import TestApp


async def test_order_is_charged_once_and_shipped(perdure: TestApp) -> None:
    with charge.stub(returns="r-1") as charged:
        run = await order.start("A-1", 9.5)
        await perdure.send_event("packed", {"order_id": "A-1"}, to=run.id)  # stored until the run waits for it
        assert await run.result() == "r-1"
    assert charged.called_with("A-1", 9.5)
'''

PYPROJECT = """\
[project]
name = "__NAME__"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["perdure[cli,dashboard]__FROM__"]

[dependency-groups]
dev = ["perdure[testing]__FROM__"]

[tool.perdure]
app = "workflows:app"

[tool.pytest.ini_options]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"
"""

README = """\
# __NAME__

An order that is charged, waits for an event and is shipped, as a durable workflow: `workflows.py`. Install perdure and
run the test:

```
python3 -m venv .venv
. .venv/bin/activate
pip install "perdure[cli,dashboard,testing]__FROM__"
pytest
```

Start everything in one process: a worker, the HTTP API and the dashboard, which restart when a file changes. It prints
the address of the dashboard:

```
perdure dev
```

Then, in another terminal with the same environment:

```
perdure start order --id order-A-1 --input '{"order_id": "A-1", "amount": 9.5}'
perdure why order-A-1
perdure send packed '{"order_id": "A-1"}' --to order-A-1
perdure trace order-A-1
```
"""

IGNORED = """\
.venv/
__pycache__/
*.db
*.db-*
"""

FILES = {
    "workflows.py": WORKFLOWS,
    "test_workflows.py": TESTS,
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    ".gitignore": IGNORED,
}


def project_files(name: str) -> dict[str, str]:
    """Return the files of a new project by their names."""
    origin = installed_from()
    source = f" @ {origin}" if origin is not None else ""
    return {file: text.replace("__NAME__", name).replace("__FROM__", source) for file, text in FILES.items()}


def installed_from() -> str | None:
    """Return where this perdure was installed from, as pip takes it; None if it came from a package index."""
    try:
        recorded = Distribution.from_name("perdure").read_text("direct_url.json")
    except PackageNotFoundError:  # the sources are on the path, and nothing is installed
        return None
    if recorded is None:
        return None
    found: dict[str, Any] = json.loads(recorded)
    if (version_control := found.get("vcs_info")) is not None:
        return f"{version_control['vcs']}+{found['url']}@{version_control['commit_id']}"
    return str(found["url"])
