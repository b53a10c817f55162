"""The loads with Restate: its server, the services in processes of their own, and a client.

    .peers/restate/bin/python -m benchmarks.peers.restate ten-step - 4000

Restate stores everything itself, so the URL is not used. The server has its defaults, which sync its log before it
answers; only its data, its ports and its telemetry, which is off, are set. The services are served as its documentation
recommends for production, by Hypercorn with unlimited streams and several workers, here one for each core. Runs are
workflows with an id of their own, whose results are kept, as those of perdure are. The client sends plain HTTP
requests; the client of the Python SDK does the same through more layers of Python.
"""

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import restate

from benchmarks.peers.loads import IN_FLIGHT, Start, main

HOST = "127.0.0.1"
READY_SEC = 60.0
one_step, ten_steps = restate.Workflow("one_step"), restate.Workflow("ten_steps")


async def add(number: int) -> int:
    return number + 1


@one_step.main("run")
async def run_one(context: restate.WorkflowContext, number: int) -> int:
    return int(await context.run_typed("add", add, number=number))


@ten_steps.main("run")
async def run_ten(context: restate.WorkflowContext, number: int) -> int:
    for _ in range(10):
        number = await context.run_typed("add", add, number=number)
    return number


app = restate.app(services=[one_step, ten_steps])


@asynccontextmanager
async def system(url: str) -> AsyncIterator[tuple[Start, Start]]:
    node, ingress, admin, service = _free_ports(4)
    with (
        tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder,
        _process(Path(folder, "server.log"), *_server(folder, node, ingress, admin)),
        _process(Path(folder, "services.log"), *_services(folder, service)),
    ):
        async with aiohttp.ClientSession() as session:
            await _until_answered(session, f"http://{HOST}:{admin}/deployments", {"uri": f"http://{HOST}:{service}"})
            ids = itertools.count()

            async def start(workflow: str, number: int) -> int:
                run = f"http://{HOST}:{ingress}/{workflow}/{next(ids)}/run"
                async with session.post(run, json=number) as answer:
                    answer.raise_for_status()
                    return int(await answer.json())

            async def start_one(number: int) -> int:
                return await start("one_step", number)

            async def start_ten(number: int) -> int:
                return await start("ten_steps", number)

            # Its partitions and the services start with their first requests, which is no part of the work.
            await asyncio.gather(*(start_one(number) for number in range(IN_FLIGHT)))
            yield start_one, start_ten


def _server(folder: str, node: int, ingress: int, admin: int) -> tuple[list[str], dict[str, str]]:
    (program,) = Path(sys.prefix).glob("server/node_modules/@restatedev/restate-server-*/bin/restate-server")
    return [str(program), "--base-dir", f"{folder}/data", "--node-name", "bench"], {
        "RESTATE_BIND_IP": HOST,
        "RESTATE_BIND_PORT": str(node),
        "RESTATE_INGRESS__BIND_ADDRESS": f"{HOST}:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"{HOST}:{admin}",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_DISABLE_TELEMETRY": "true",
    }


def _services(folder: str, port: int) -> tuple[list[str], dict[str, str]]:
    endless = 2147483647
    settings = Path(folder, "hypercorn.toml")
    settings.write_text(
        f'bind = "{HOST}:{port}"\nh2_max_concurrent_streams = {endless}\nkeep_alive_max_requests = {endless}\n'
        f"keep_alive_timeout = {endless}\nworkers = {os.cpu_count()}\n"
    )
    return [sys.executable, "-m", "hypercorn", "--config", str(settings), "benchmarks.peers.restate:app"], {}


@contextmanager
def _process(log: Path, command: list[str], environment: dict[str, str]) -> Iterator[None]:
    """Run a process meanwhile; show the end of its log if something fails."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | environment)
    try:
        yield
    except BaseException:
        print(*log.read_text(errors="replace").splitlines()[-10:], sep="\n", file=sys.stderr)
        raise
    finally:
        process.terminate()
        process.wait()


async def _until_answered(session: aiohttp.ClientSession, url: str, request: dict[str, str]) -> None:
    """Register the services as soon as the server and the services can be reached."""
    async with asyncio.timeout(READY_SEC):
        while True:
            try:
                async with session.post(url, json=request) as answer:
                    answer.raise_for_status()
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    main(system)
