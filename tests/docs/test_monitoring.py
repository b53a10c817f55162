"""The dashboard and the alert rules: each query names metrics and labels that exist, and each metric is documented."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.metrics import CATALOGUE, Metric

DOCS = Path(__file__).parents[2] / "docs"
METRICS = {metric.name: metric for metric in CATALOGUE}
FROM_PROMETHEUS = {"instance", "job", "le"}

_METRIC = re.compile(r"\b(perdure_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")
_SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?([a-z]\w*)\s*\}\}")

Query = tuple[str, str]  # a query, and the texts that show its labels


def _dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS / "monitoring" / "dashboard.json").read_text())
    return found


def _panels() -> list[Any]:
    return [panel for panel in _dashboard()["panels"] if panel["type"] != "row"]


def _alerts() -> list[Any]:
    (group,) = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


QUERIES: dict[str, Query] = {
    **{
        f"{panel['title']} {target['refId']}": (target["expr"], target["legendFormat"])
        for panel in _panels()
        for target in panel["targets"]
    },
    **{rule["alert"]: (rule["expr"], " ".join(rule["annotations"].values())) for rule in _alerts()},
}


def _metric_of(name: str) -> Metric:
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    if base in METRICS and METRICS[base].kind == "histogram":
        assert base != name, f"a histogram has no series {name}: use {name}_bucket, _sum or _count"
        return METRICS[base]
    assert name in METRICS, f"there is no metric {name}"
    return METRICS[name]


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_query_names_metrics_and_labels_that_exist(query: Query) -> None:
    expression, texts = query
    found = _METRIC.findall(expression)
    assert found
    metrics = [_metric_of(name) for name, _ in found]
    for metric, (_, matchers) in zip(metrics, found, strict=True):
        assert set(_MATCHER.findall(matchers)) <= {*metric.labels, *FROM_PROMETHEUS}
        if metric.kind == "counter" or metric.kind == "histogram":
            assert re.search(r"\b(rate|increase)\(" + metric.name, expression), f"{metric.name} grows: use its rate"
    known = {*FROM_PROMETHEUS, *(label for metric in metrics for label in metric.labels)}
    grouped = {label.strip() for labels in _GROUPING.findall(expression) for label in labels.split(",")}
    assert grouped <= known
    kept = grouped or known  # an aggregation keeps only the labels that it groups by
    assert set(_SHOWN.findall(texts)) <= (kept if "(" in expression else known)


def test_alert_fires_when_all_workers_and_their_metrics_are_gone() -> None:
    alerts = {rule["alert"]: rule["expr"] for rule in _alerts()}
    assert alerts["PerdureNoWorkers"] == "absent(perdure_sampled_timestamp_seconds)"
    # A process with `Prometheus()` and without an open App reports 0.
    assert alerts["PerdureMetricsStale"].endswith(" and perdure_sampled_timestamp_seconds > 0")


def test_words_that_labels_are_compared_with_are_documented() -> None:
    for expression, _ in QUERIES.values():
        for name, matchers in _METRIC.findall(expression):
            for word in re.findall(r'(?:state|kind|result)="(\w+)"', matchers):
                assert word in _metric_of(name).help


def test_each_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    used = {_metric_of(name).name for expression, _ in QUERIES.values() for name, _ in _METRIC.findall(expression)}
    assert used == set(METRICS)


def test_variables_of_the_dashboard_are_labels_of_metrics() -> None:
    for variable in _dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            assert label in {*_metric_of(name).labels, *FROM_PROMETHEUS}


def test_panels_and_alerts_have_unique_names_and_texts() -> None:
    names = [panel["title"] for panel in _panels()] + [rule["alert"] for rule in _alerts()]
    assert len(names) == len(set(names))
    assert len({panel["id"] for panel in _dashboard()["panels"]}) == len(_dashboard()["panels"])
    for rule in _alerts():
        assert rule["alert"].startswith("Perdure")
        assert {"summary", "description"} == set(rule["annotations"])
        assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_metric_is_documented_with_its_labels_and_meaning(metric: Metric) -> None:
    page = (DOCS / "howto" / "observability.md").read_text()
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{metric.name}` |")]
    assert row.lower() == f"| `{metric.name}` | {labels} | {metric.kind}: {metric.help.rstrip('.')} |".lower()
