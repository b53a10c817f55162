"""Do the same work with perdure and with other durable-execution systems for Python, and print the medians and ratios.

    python -m benchmarks.peers
    python -m benchmarks.peers --peer dbos absurd --measure one-step latency --rounds 3
    python -m benchmarks.peers --json benchmarks/results/peers.json

Each measurement is a process of its own on an empty database that syncs every commit. The systems take turns, so that
what slows the machine down for a while does not slow down only one of them. Each has its defaults, or what its own
documentation recommends; its module in `benchmarks/peers` says which, and why. The steps do nothing: what is measured
is what durability costs. A system that stores in files of its own is compared with perdure on PostgreSQL.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import progress
from benchmarks.databases import server_for
from benchmarks.engine.measures import MEASURES, Figures
from benchmarks.engine.processes import measure
from benchmarks.engine.report import circumstances, write
from benchmarks.peers.environments import PEERS, PeerError, ensure
from benchmarks.peers.processes import measure as measure_peer
from benchmarks.peers.report import OURS, as_json, heading, lines, notes

COMPARED = ("one-step", "ten-step", "latency")
DATABASES = ("sqlite", "postgresql")
Found = dict[str, dict[str, list[Figures]]]  # by database and system; no rounds if the system failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code: 1 if a peer could not be measured."""
    options = _parser().parse_args(arguments)
    installed = [peer for peer in options.peer if _installed(peer)]
    failed = len(installed) < len(options.peer)
    found: dict[str, Found] = {}
    with ExitStack() as stack:
        databases = [each for each in DATABASES if any(each in PEERS[peer].databases for peer in installed)]
        servers = {database: stack.enter_context(server_for(database)) for database in databases}
        around = circumstances(servers)
        if installed:
            print(heading(databases), flush=True)
        for name in options.measure if installed else ():
            found[name] = asyncio.run(_rounds(name, servers, installed, options))
            failed |= not all(rounds for of in found[name].values() for rounds in of.values())
            print(*lines(name, found[name]), sep="\n", flush=True)
            if options.json is not None:
                write(options.json, json.dumps(as_json(found, installed, around), indent=2) + "\n")
    if installed:
        print(*notes(installed), sep="\n")
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=list(PEERS), metavar="NAME", help=", ".join(PEERS))
    parser.add_argument(
        "--measure", nargs="+", choices=COMPARED, default=COMPARED, metavar="NAME", help=", ".join(COMPARED)
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of each measurement (default: 5)")
    parser.add_argument("--size", type=int, metavar="N", help="runs or steps of a measurement (default: its own)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured to a file, too")
    return parser


def _installed(peer: str) -> bool:
    progress.show(f"installing {peer}")
    try:
        ensure(peer)
    except PeerError as error:
        _report(f"{peer} could not be installed: {error}")
        return False
    progress.show("")
    return True


async def _rounds(name: str, servers: Mapping[str, str], peers: list[str], options: argparse.Namespace) -> Found:
    size = options.size or MEASURES[name].size
    found: Found = {
        database: {OURS: [], **{peer: [] for peer in peers if database in PEERS[peer].databases}}
        for database in servers
    }
    failed: set[tuple[str, str]] = set()
    for number in range(1, options.rounds + 1):
        for database, of in found.items():
            for system, rounds in of.items():
                if (system, database) in failed:
                    continue
                progress.show(f"{name} with {system} on {database}: round {number} of {options.rounds}")
                try:
                    if system == OURS:
                        rounds.append(await measure(name, size, database, servers[database]))
                    else:
                        work = max(1, round(size * PEERS[system].share))
                        rounds.append(await measure_peer(system, name, work, database, servers[database]))
                except PeerError as error:
                    _report(f"{name} with {system} on {database} failed: {error}")
                    failed.add((system, database))
                    rounds.clear()
    progress.show("")
    return found


def _report(line: str) -> None:
    progress.show("")
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
