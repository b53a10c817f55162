"""The charts of the documentation are drawn from files with figures."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.charts import main
from benchmarks.growth.report import as_json as growth_as_json
from benchmarks.peers.environments import PEERS
from benchmarks.peers.report import as_json as peers_as_json
from benchmarks.peers.report import lines

FOUND = {
    "ten-step": {
        "sqlite": {"perdure": [{"value": 1234.0}], "dbos": [{"value": 50.0}], "edda": []},
        "postgresql": {"perdure": [{"value": 1000.0}], "dbos": [{"value": 100.0}]},
    },
    "one-step": {"sqlite": {"perdure": [{"value": 1.0}]}},
    "latency": {"sqlite": {"perdure": [{"value": 1.5}], "dbos": [{"value": 30.0}]}},
}


def test_charts_are_drawn_from_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, images = tmp_path / "results", tmp_path / "images"
    results.mkdir()
    found = {"gather": {"sqlite": {1000: [{"value": 50.0}], 20_000: [{"value": 55.0}]}}}
    (results / "growth.json").write_text(json.dumps(growth_as_json(found, {})))
    (results / "peers.json").write_text(json.dumps(peers_as_json(FOUND, ["dbos", "edda"], {})))
    assert main(["--results", str(results), "--images", str(images)]) == 0
    assert "20,000" in _texts(images / "growth.svg")
    texts = _texts(images / "peers.svg")
    assert {"perdure", "1,234 steps/s", f"dbos {PEERS['dbos'].version}", "50.0 steps/s", "30.0 ms"} <= texts
    assert not any(text.startswith("edda") for text in texts), "it was not measured"
    assert not any("one step" in text for text in texts)


def test_chart_without_figures_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path), "--images", str(tmp_path)]) == 1
    assert "run `make bench-peers` first" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_peers_are_compared_with_perdure() -> None:
    table = lines("ten-step", FOUND["ten-step"])
    assert [line.split() for line in table[1:]] == [
        ["perdure", "1,234", "1,000"],
        ["dbos", PEERS["dbos"].version, "50.0", "24.7", "100", "10.0"],
        ["edda", PEERS["edda"].version, "failed"],
    ]


def _texts(image: Path) -> set[str]:
    return {"".join(node.itertext()) for node in ElementTree.parse(image).iter() if node.tag.endswith("text")}
