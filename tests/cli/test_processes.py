"""The program as a process: start, signals, pipes, terminals, workers."""

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest

from perdure import Client
from tests.cli.programs import COMMAND, ROOT, Done, begin, environment, line_with, program, runs_page
from tests.cli.shop import order
from tests.cli.test_reading import fill
from tests.engine.waiting import until
from tests.support.storages import Database

APP = """
import os
from perdure import App, activity, workflow

@activity(name="cli.version")
async def version() -> str:
    return "one"

@workflow(name="cli.versioned")
async def versioned() -> str:
    return await version()

app = App("sqlite:///shop.db")
"""


def test_version_imports_neither_the_engine_nor_the_packages_of_the_command_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['perdure', '--version']; import perdure_command; assert perdure_command.main() == 0; "
        "print(len(sys.modules), [name for name in ('perdure', 'asyncio', 'msgspec', 'cyclopts', 'rich', 'sqlite3') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    version, counts = done.stdout.splitlines()
    assert version == "perdure 0.1.0"
    number, _, names = counts.partition(" ")
    assert names == "[]"
    assert int(number) < 200


def test_version_of_the_module_is_the_same(tmp_path: Path) -> None:
    assert program(tmp_path, "--version").out == "perdure 0.1.0\n"


async def test_closed_pipe_ends_quietly(file: Database, tmp_path: Path) -> None:
    process = await begin(tmp_path, "runs", "--watch", "--every", "0.1", "-o", "json", "--database", file.url)
    assert process.stdout is not None
    await process.stdout.readline()
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, errors) == (0, b"")


def test_help_into_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" | true; exit "${PIPESTATUS[0]}"', "bash", *COMMAND, "--help"],
        env=environment(tmp_path),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_command_without_output_streams_works(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" >&- 2>&-', "bash", *COMMAND, "migrate", "up", "-d", "sqlite:///new.db"],
        cwd=tmp_path,
        env=environment(tmp_path),
        timeout=100,
        check=False,
    )
    assert done.returncode == 0
    assert (tmp_path / "new.db").exists()


def test_full_device_is_one_line(tmp_path: Path) -> None:
    command = ["bash", "-c", '"$@" >/dev/full', "bash", *COMMAND, "migrate", "dump-sql", "sqlite"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert done.stderr == "perdure: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
async def test_every_character_is_printed_in_every_encoding(file: Database, tmp_path: Path, encoding: str) -> None:
    text = "日本 🎉"
    async with Client(file.url):
        await order.options(id="o-1", after=3600).start(text)
    is_whole = encoding == "utf-8"

    def shown(*arguments: str) -> Done:
        return program(tmp_path, "show", "o-1", *arguments, PYTHONIOENCODING=encoding, PERDURE_URL=file.url)

    printed = shown("-o", "json")
    assert printed.json["input"]["order_id"] == text
    assert ("日本" in printed.out) == is_whole
    assert (text if is_whole else r"\u65e5\u672c \U0001f389") in shown().out


async def test_interrupt_ends_quietly_with_130(file: Database, tmp_path: Path) -> None:
    process = await begin(tmp_path, "runs", "--watch", "-o", "jsonl", "--count", "--database", file.url)
    await line_with(process.stdout, "count")
    process.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, errors) == (130, b"")


async def test_terminal_gets_colours_and_its_width(file: Database, tmp_path: Path) -> None:
    await fill(file)
    plain = _in_terminal(tmp_path, "runs", "--database", file.url, NO_COLOR="1", COLUMNS="60")
    assert max(map(len, plain.splitlines())) <= 60
    assert "o-1/2" in plain
    assert "\x1b" not in plain
    coloured = _in_terminal(tmp_path, "runs", "--database", file.url, TERM="xterm", COLUMNS="60")
    assert "\x1b[31mfailed" in coloured
    traced = _in_terminal(tmp_path, "trace", "o-2", "--database", file.url, NO_COLOR="1", COLUMNS="40").splitlines()
    assert [line[-1] for line in traced] == ["…", "…"], "the reader sees that something is left out"
    assert {len(line) for line in traced} == {40}
    top = _in_terminal(tmp_path, "top", "--database", file.url, TERM="xterm", COLUMNS="100", until="workers")
    assert "\x1b[?1049h" in top  # the other screen
    assert "\x1b[?1049l" in top
    watched = _in_terminal(
        tmp_path, "runs", "--watch", "--database", file.url, NO_COLOR="1", COLUMNS="100", LINES="4", until="more lines"
    )
    assert "o-1/2" in watched
    assert "… 2 more lines" in watched, "the last line of a screen is the newest run, not the oldest"
    assert "\x1b[3J" not in watched, "what was in the terminal before is kept"


def _in_terminal(folder: Path, *arguments: str, until: str = "", **more: str) -> str:
    """Run a command in a terminal and return what it wrote; with `until`, interrupt it once it wrote that."""
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env=environment(folder, **more),
            stdin=follower,
            stdout=follower,
            stderr=follower,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(follower)
        seen = b""
        is_interrupted = False
        try:
            while block := os.read(leader, 65536):
                seen += block
                if until and not is_interrupted and until.encode() in seen:
                    process.send_signal(signal.SIGINT)
                    is_interrupted = True
        except OSError:  # Linux: the other side is closed
            pass
        assert process.wait(60) == (130 if until else 0), seen
        return seen.decode().replace("\r\n", "\n")
    finally:
        os.close(leader)


async def test_bulk_change_asks_in_a_terminal(file: Database, tmp_path: Path) -> None:
    await fill(file)
    leader, follower = pty.openpty()
    try:
        os.write(leader, b"n\n")
        done = subprocess.run(
            [*COMMAND, "cancel", "--filter", "workflow:cli.order", "--database", file.url],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=follower,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(leader)
        os.close(follower)
    assert (done.returncode, done.stderr) == (1, "cancel 1 run? [y/N] perdure: nothing was changed\n")
    asked = ("cancel", "--filter", "workflow:cli.order", "--database", file.url)
    assert "Traceback" not in _in_terminal(tmp_path, *asked, until="[y/N]"), "Ctrl-C ends it, without Enter"


@pytest.mark.parametrize(("url", "warnings"), [("sqlite:///other.db", 1), ("sqlite:///shop.db", 0)])
async def test_worker_says_if_the_variable_names_another_database_than_its_app(
    tmp_path: Path, url: str, warnings: int
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    worker = await begin(tmp_path, "worker", "shop:app", PERDURE_URL=url)
    try:
        assert worker.stderr is not None
        lines = [await worker.stderr.readline()]
        while b"started" not in lines[-1]:
            lines.append(await asyncio.wait_for(worker.stderr.readline(), 60))
        assert len([line for line in lines if line.startswith(b"perdure: PERDURE_URL differs from")]) == warnings
        assert not (tmp_path / "other.db").exists()
    finally:
        worker.terminate()
        await worker.communicate()


@pytest.mark.parametrize("name", ["shop:app", "shop"])
async def test_worker_executes_runs_until_a_signal(tmp_path: Path, name: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    worker = await begin(tmp_path, "worker", name)
    try:
        await line_with(worker.stderr, "started")
        done = program(tmp_path, "start", "cli.versioned", "--wait", "--database", "sqlite:///shop.db")
        assert done.out == "one\n"
        worker.send_signal(signal.SIGTERM)
        await asyncio.wait_for(worker.communicate(), 60)
        assert worker.returncode == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["serve", "shop:app", "--port", "0"], "the HTTP API listens on http://127.0.0.1:"),
        (
            ["dashboard", "--port", "0", "--database", "sqlite:///shop.db", "--log-level", "INFO"],
            "the dashboard listens on http://127.0.0.1:",
        ),
        (
            ["relay", "--publisher", "http://127.0.0.1:1/events", "--database", "sqlite:///shop.db"],
            "it publishes the outbox",
        ),
    ],
    ids=["serve", "dashboard", "relay"],
)
async def test_command_runs_until_a_signal(tmp_path: Path, command: list[str], says: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    async with Client(f"sqlite:///{tmp_path}/shop.db"):
        pass  # migrates it
    process = await begin(tmp_path, *command)
    try:
        await line_with(process.stderr, says)
        process.send_signal(signal.SIGTERM)
        out, log = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0
        assert b"uvicorn" not in log
        assert b":0/" not in out, "a command says on which port it listens"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


METERED = f"""
from perdure.integrations.prometheus import Prometheus
{APP.replace('shop.db")', 'shop.db", metrics=Prometheus())')}"""


@pytest.mark.parametrize(("module", "status"), [(METERED, 200), (APP, 404)], ids=["metered", "unmetered"])
async def test_serve_has_the_page_of_metrics_of_the_app(tmp_path: Path, module: str, status: int) -> None:
    (tmp_path / "shop.py").write_text(module)
    process = await begin(tmp_path, "serve", "shop:app", "--port", "0", PERDURE_TOKEN="a token of some length")
    try:
        url = (await line_with(process.stderr, "the HTTP API listens on")).split()[-1]
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            assert (await http.get("/metrics")).status_code == 401
            http.headers["Authorization"] = "Bearer a token of some length"
            await http.post("/v1/workflows/cli.versioned/runs", json={"id": "v-1"})
            assert (await http.get("/v1/runs/v-1/result?wait=60")).json()["result"] == "one"
            page = await http.get("/metrics")
        assert page.status_code == status
        finished = 'perdure_runs_finished_total{state="completed",workflow="cli.versioned"} 1.0'
        assert (finished in page.text) == (status == 200)
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), 60)


ANY_PORT = ("--port", "0", "--dashboard-port", "0")


async def test_dev_serves_everything_and_restarts_when_a_file_changes(tmp_path: Path) -> None:
    module = tmp_path / "shop.py"
    module.write_text(APP)
    (tmp_path / "pyproject.toml").write_text('[tool.perdure]\napp = "shop:app"\n')
    dev = await begin(tmp_path, "dev", *ANY_PORT)
    try:
        api = (await line_with(dev.stderr, "HTTP API")).split()[-1]
        pages = (await line_with(dev.stderr, "dashboard")).split()[-1]
        async with httpx.AsyncClient(timeout=60, headers={"Accept": "text/html"}) as http:
            assert "Overview" in (await http.get(pages)).text
            module.write_text("def broken(:\n")
            await line_with(dev.stderr, "def broken(:")  # the line and its place
            await line_with(dev.stderr, "starts again when a source file changes")
            module.write_text(APP.replace('"one"', '"two"'))
            await line_with(dev.stderr, "restarting")
            started = await http.post(
                f"{api}v1/workflows/cli.versioned/runs", json={"id": "v-1"}
            )  # waits for the restart
            assert started.status_code == 202, started.text
            async with Client(f"sqlite:///{tmp_path}/shop.db") as client:
                assert await client.get("v-1").result(60) == "two"
            assert "v-1" in (await http.get(f"{pages}runs")).text
        dev.send_signal(signal.SIGINT)
        await asyncio.wait_for(dev.communicate(), 60)
        assert dev.returncode == 0
        async with Client(f"sqlite:///{tmp_path}/shop.db") as client:
            assert not await _is_served(client)  # the worker has drained
    finally:
        if dev.returncode is None:
            dev.send_signal(signal.SIGTERM)
            await dev.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP], ids=["killed", "terminal closed"])
async def test_processes_of_dev_and_demo_end_with_it(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "shop.py").write_text(APP)
    url = f"sqlite:///{tmp_path}/shop.db"
    for command in ["dev", "shop:app", *ANY_PORT], ["demo", "--orders", "1000", "--database", url]:
        async with Client(url) as client:
            process = await begin(tmp_path, *command, TMPDIR=str(tmp_path))
            await until(lambda: _is_served(client))
            process.send_signal(number)
            assert await asyncio.wait_for(process.wait(), 60) == -number
            await until(lambda: _is_idle(client))


async def test_second_interrupt_ends_the_draining_of_dev(tmp_path: Path) -> None:
    slow = APP.replace('return "one"', 'print("sleeping", flush=True)\n    await asyncio.sleep(600)')
    slow = slow.replace("import os", "import asyncio").replace('shop.db"', 'shop.db", drain_timeout=600')
    (tmp_path / "shop.py").write_text(slow)
    dev = await begin(tmp_path, "dev", "shop:app", *ANY_PORT)
    try:
        await line_with(dev.stderr, "started")
        program(tmp_path, "start", "cli.versioned", "--database", "sqlite:///shop.db")
        await line_with(dev.stdout, "sleeping")
        dev.send_signal(signal.SIGINT)
        await line_with(dev.stderr, "draining")
        dev.send_signal(signal.SIGINT)
        _, log = await asyncio.wait_for(dev.communicate(), 60)
        assert (dev.returncode, b"is killed" in log) == (0, False)
    finally:
        if dev.returncode is None:
            dev.kill()
            await dev.wait()


@pytest.mark.parametrize("command", [["serve", "shop:app"], ["dashboard"]], ids=["serve", "dashboard"])
def test_server_says_which_port_is_in_use(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = program(tmp_path, *command, "--port", port, "--database", "sqlite:///shop.db", code=2)
    assert f"cannot use port {port} of 127.0.0.1" in done.err
    assert done.out == ""


@pytest.mark.parametrize("option", ["--port", "--dashboard-port"])
def test_dev_says_which_port_is_in_use(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--dashboard-port": "0", option: port}
        done = program(tmp_path, "dev", "shop:app", *(each for pair in ports.items() for each in pair), code=2)
    assert f"cannot use port {port} of 127.0.0.1" in done.err
    assert option in done.err
    assert done.err.count("\n") == 1


def test_dev_for_other_machines_needs_a_token(tmp_path: Path) -> None:
    assert "set PERDURE_TOKEN" in program(tmp_path, "dev", "shop:app", "--host", "0.0.0.0", *ANY_PORT, code=2).err


async def test_dev_without_the_extras_is_a_worker_and_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('starlette', 'jinja2'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    path = f"{tmp_path}{os.pathsep}{ROOT / 'src'}"
    dev = await begin(tmp_path, "dev", "shop:app", PYTHONPATH=path)
    try:
        assert 'pip install "perdure[http]"' in await line_with(dev.stderr, "HTTP API")
        assert 'pip install "perdure[dashboard]"' in await line_with(dev.stderr, "dashboard")
        await line_with(dev.stderr, "started")
        dev.send_signal(signal.SIGINT)
        await asyncio.wait_for(dev.communicate(), 60)
        assert dev.returncode == 0
    finally:
        if dev.returncode is None:
            dev.send_signal(signal.SIGTERM)
            await dev.wait()
    missing = program(tmp_path, "dashboard", "--database", "sqlite:///shop.db", code=1, PYTHONPATH=path)
    assert 'pip install "perdure[dashboard]"' in missing.err


async def _is_served(client: Client) -> bool:
    from perdure.inspection import list_workers

    return any(worker.is_live for worker in await list_workers(client))


async def _is_idle(client: Client) -> bool:
    return not await _is_served(client)


def test_new_project_has_a_test_that_passes(tmp_path: Path) -> None:
    assert program(tmp_path, "init", "my-shop").err == "next: cd my-shop && perdure dev\n"
    assert program(tmp_path, "init", "in two words/shop").err == "next: cd 'in two words/shop' && perdure dev\n"
    assert program(tmp_path / "in two words", "init", "shop", code=2).err.startswith("perdure: shop has workflows.py")
    (tmp_path / "here").mkdir()
    assert program(tmp_path / "here", "init").err == "next: perdure dev\n"
    folder = tmp_path / "my-shop"
    assert "choose a new folder" in program(tmp_path, "init", "my-shop", code=2).err
    assert "no name of a project" in program(tmp_path, "init", "1 2", code=2).err
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 passed" in tests.stdout, tests.stdout + tests.stderr


@pytest.mark.parametrize(
    ("recorded", "source"),
    [
        (None, ""),  # from a package index
        ({"url": "file:///home/ada/perdure", "dir_info": {"editable": True}}, " @ file:///home/ada/perdure"),
        (
            {"url": "https://github.com/perdure/perdure", "vcs_info": {"vcs": "git", "commit_id": "7934fb0"}},
            " @ git+https://github.com/perdure/perdure@7934fb0",
        ),
    ],
)
def test_new_project_installs_perdure_from_where_this_one_came(
    tmp_path: Path, recorded: dict[str, object] | None, source: str
) -> None:
    info = tmp_path / "first" / "perdure-0.1.0.dist-info"  # is found before the one of this environment
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: perdure\nVersion: 0.1.0\n", "utf-8")
    if recorded is not None:
        (info / "direct_url.json").write_text(json.dumps(recorded), "utf-8")
    program(tmp_path, "init", "my-shop", PYTHONPATH=str(info.parent))
    readme, project = ((tmp_path / "my-shop" / name).read_text("utf-8") for name in ("README.md", "pyproject.toml"))
    assert f'pip install "perdure[cli,dashboard,testing]{source}"\n' in readme
    parsed = tomllib.loads(project)
    assert parsed["project"]["dependencies"] == [f"perdure[cli,dashboard]{source}"]
    assert parsed["dependency-groups"]["dev"] == [f"perdure[testing]{source}"]


async def test_demo_ends_with_the_command_that_shows_its_runs(tmp_path: Path) -> None:
    done = program(tmp_path, "demo", "--orders", "4", TMPDIR=str(tmp_path))
    assert "kill -9" in done.out
    assert "4 of 4 orders completed; each step is recorded exactly once" in done.out
    assert "demo-" in await runs_page(done.out.splitlines()[-1].removeprefix("look "), tmp_path)


def test_demo_prints_json(tmp_path: Path) -> None:
    done = program(tmp_path, "demo", "--orders", "2", "-o", "json", TMPDIR=str(tmp_path))
    assert done.json == {**done.json, "orders": 2, "is_right": True}
    assert "dashboard --app perdure.cli.demonstration --database sqlite:///" in done.json["dashboard"]


def test_bench_measures_in_a_file_of_its_own(tmp_path: Path) -> None:
    done = program(tmp_path, "bench", "--runs", "5", "--steps", "2", "-o", "json", "--database", "sqlite:///shop.db")
    assert done.json == {**done.json, "dialect": "sqlite", "runs": 5, "steps": 2}
    assert done.json["runs_per_sec"] > 0
    assert list(tmp_path.iterdir()) == []
