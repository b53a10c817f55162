"""The benchmarks of the engine run and print their tables. No speed is checked here."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.compare.__main__ import main
from benchmarks.engine import measures
from benchmarks.engine.__main__ import main as measure
from benchmarks.engine.measures import MEASURES, Figures
from benchmarks.observability import __main__ as observability
from benchmarks.peers import __main__ as peers
from benchmarks.peers.environments import PEERS, PeerError
from benchmarks.peers.report import ratio

ROOT = Path(__file__).parents[2]


def test_a_tree_is_compared_with_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--database sqlite --measure one-step --rounds 1 --size 200".split()
    assert main(["--rev", str(ROOT), *options]) == 0
    _, line = capsys.readouterr().out.splitlines()
    database, name, speed_shown, other_shown, unit, ratio_shown, *_ = line.split()
    assert (database, name, unit) == ("sqlite", "one-step", "runs/s")
    speed, other, ratio = (float(figure.replace(",", "")) for figure in (speed_shown, other_shown, ratio_shown))
    assert min(speed, other) > 0
    assert abs(ratio - speed / other) < 0.02


def test_an_unknown_revision_is_reported() -> None:
    with pytest.raises(SystemExit, match="there is no revision 'nowhere'"):
        main(["--rev", "nowhere"])


def test_figures_are_measured_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = tmp_path / "engine.json"
    names = ["ten-step", "latency-blocking", "event-across", "replay", "where", "memory"]
    options = ["--database", "sqlite", "--rounds", "1", "--size", "5", "--json", str(written)]
    assert measure([*options, "--measure", *names]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [MEASURES[name].what in line for name, line in zip(names, lines, strict=True)] == [True] * len(names)
    found = json.loads(written.read_text())
    assert {name: found["measures"][name]["unit"] for name in names} == {name: MEASURES[name].unit for name in names}
    assert found["measures"]["ten-step"]["sqlite"]["median"] > 0
    assert found["versions"]["perdure"]


def test_cost_of_observability_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "IN_FLIGHT", 2)
    monkeypatch.setattr(observability, "SPANS", 50)
    off = {"off": observability.SIDES["off"]}
    for settings, load in ((observability.SIDES, []), (off, ["--one-run"])):
        monkeypatch.setattr(observability, "SIDES", settings)
        observability.main(["--rounds", "1", "--size", "20", *load])
        sides = [*settings, "a span in a loop"]
        _, *lines = capsys.readouterr().out.splitlines()
        assert [line[: len(side)] for side, line in zip(sides, lines, strict=True)] == sides


def test_peers_are_compared_and_one_that_fails_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    values = {("perdure", "sqlite"): [300.0, 500.0], ("perdure", "postgresql"): [100.0, 60.0]}
    values |= {("dbos", "sqlite"): [100.0, 100.0], ("dbos", "postgresql"): [200.0, 200.0]}
    values |= {("edda", "sqlite"): [15.0, 25.0], ("edda", "postgresql"): [10.0]}

    async def ours(name: str, size: int, database: str, server: str) -> Figures:
        return await theirs("perdure", name, size, database, server)

    async def theirs(peer: str, name: str, size: int, database: str, server: str) -> Figures:
        if not values[peer, database]:
            raise PeerError("it went wrong")
        return {"value": values[peer, database].pop(0)}

    replaced = {"ensure": str, "server_for": lambda _: nullcontext(""), "measure": ours, "measure_peer": theirs}
    for name, by in replaced.items():
        monkeypatch.setattr(peers, name, by)
    written = tmp_path / "results" / "peers.json"
    options = "--peer dbos edda --measure one-step --rounds 2 --json".split()
    assert peers.main([*options, str(written)]) == 1
    output = capsys.readouterr()
    heading, what, *table = (line.split() for line in output.out.splitlines())
    assert heading == ["sqlite", "ratio", "postgresql", "ratio"]
    assert what == "workflows of one step, runs/s".split()
    assert table[0] == ["perdure", "400", "(300–500)", "80.0", "(60.0–100)"]
    assert table[1] == ["dbos", PEERS["dbos"].version, "100", "(100–100)", "4.00", "200", "(200–200)", "0.40"]
    assert table[2] == ["edda", PEERS["edda"].version, "20.0", "(15.0–25.0)", "20.0", "failed"]
    assert "one-step with edda on postgresql failed: it went wrong" in output.err.splitlines()
    found = json.loads(written.read_text())["measures"]["one-step"]["databases"]
    assert found["sqlite"]["dbos"] == {"median": 100, "rounds": [{"value": 100}, {"value": 100}], "ratio": 4}
    assert list(found["postgresql"]) == ["perdure", "dbos"]


def test_a_smaller_latency_is_better() -> None:
    assert ratio("latency", [{"value": 2.0}], [{"value": 10.0}]) == 5


def test_a_peer_that_cannot_be_installed_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ensure(peer: str) -> None:
        raise PeerError("npm is not installed")

    monkeypatch.setattr(peers, "ensure", ensure)
    assert peers.main(["--peer", "restate"]) == 1
    output = capsys.readouterr()
    assert output.err.splitlines()[-1] == "restate could not be installed: npm is not installed"
    assert not output.out


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["--peer", "nobody"])
    assert "invalid choice: 'nobody'" in capsys.readouterr().err
