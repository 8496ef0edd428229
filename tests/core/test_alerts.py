"""The alert rules parse, use metrics that exist, and each has its runbook."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings as django_settings
from prometheus_client import REGISTRY

from dispatch.core.observability import gauges, metrics  # noqa: F401  (its gauges register themselves)
from dispatch.core.runtime.loops import find_loop
from dispatch.core.web import http_metrics  # noqa: F401  (registers the metrics of the web process)

ROOT = Path(django_settings.BASE_DIR)
FILES = sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml"))
FUNCTIONS = {"sum", "max", "min", "time", "absent", "increase", "rate", "delta", "histogram_quantile"}
WORDS = {"and", "or", "unless", "by", "on"}
# Metrics of Prometheus itself, of exporters, and of the backup job in docs/operations/backup.md.
FOREIGN = {
    "up": {"job", "process", "instance"},
    "node_filesystem_avail_bytes": {"fstype", "mountpoint", "instance"},
    "node_filesystem_size_bytes": {"fstype", "mountpoint", "instance"},
    "probe_ssl_earliest_cert_expiry": set(),
    "dispatch_backup_last_success_timestamp_seconds": set(),
}
DURATION = re.compile(r"\d+(ms|[smhdwy])")
TOKEN = re.compile(
    r"\s*(?:(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<number>\d+(?:\.\d+)?)|(?P<selector>\{[^{}]*\})"
    r"|(?P<range>\[[^\[\]]*\])|(?P<operator>==|!=|>=|<=|[-+*/><,])|(?P<bracket>[()]))"
)
CALLED = re.compile(r"( by \([a-z_]+(?:, [a-z_]+)*\) )?\(")
MATCHER = re.compile(r'\s*([a-zA-Z_]\w*)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"\s*')


def rules() -> list[dict[str, Any]]:
    groups = [group for path in FILES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def parse(expression: str) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Return every metric that a PromQL expression names, with its label matchers.

    Raises AssertionError for anything outside the small part of the language that the rules use.
    """
    found: list[tuple[str, dict[str, tuple[str, str]]]] = []
    position, depth, last = 0, 0, ""
    while position < len(expression.rstrip()):
        token = TOKEN.match(expression, position)
        assert token, f"cannot read on: {expression[position:]!r}"
        position, kind = token.end(), str(token.lastgroup)
        text = str(token[kind])
        if kind == "name" and text in FUNCTIONS:
            called = CALLED.match(expression, position)
            assert called, f"{text} is not called"
            position += called.end(1) - position if called[1] else 0
        elif kind == "name" and text not in WORDS:
            found.append((text, {}))
        elif kind == "selector":
            assert last == "name", f"{text} belongs to no metric"
            for part in text[1:-1].split(","):
                matcher = MATCHER.fullmatch(part)
                assert matcher, f"{part!r} is no matcher"
                found[-1][1][matcher[1]] = (matcher[2], matcher[3])
        elif kind == "range":
            assert last in ("name", "selector"), f"{text} belongs to no metric"
            assert DURATION.fullmatch(text[1:-1]), f"{text} is no range"
        elif kind == "bracket":
            depth += 1 if text == "(" else -1
            assert depth >= 0, "a bracket closes that was not opened"
        last = kind
    assert depth == 0, "a bracket is not closed"
    assert last not in ("operator", ""), "it ends in the middle"
    return found


def known() -> dict[str, set[str]]:
    """Return metric → labels: the registry's counters and histograms, and the gauges that are read on scrape."""
    names = FOREIGN | {name: set(labels) for name, (_, labels, _) in metrics._gauges.items()}
    for name, collector in REGISTRY._names_to_collectors.items():
        names.setdefault(name, set(getattr(collector, "_labelnames", ())))
    return names


by_rule = pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])


@by_rule
def test_alert_has_all_required_parts(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert DURATION.fullmatch(rule.get("for", "0s"))
    assert rule["annotations"]["summary"].endswith(".")


@by_rule
def test_alert_uses_existing_metrics_and_labels(rule: dict[str, Any]) -> None:
    names = known()
    spoken_of = parse(rule["expr"])
    assert spoken_of
    for name, matchers in spoken_of:
        assert name in names, f"there is no metric {name}"
        assert set(matchers) <= names[name], f"{name} has only the labels {names[name]}"
        if "loop" in matchers:
            assert find_loop(matchers["loop"][1]).elected


@by_rule
def test_it_has_a_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_alert_names_are_unique() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


# Which page documents a slice's metrics.
PAGES = {"dispatch_outbox_": "docs/guides/outbox.md", "dispatch_leads_": "docs/guides/leads.md"}


@pytest.mark.parametrize(("prefix", "page"), PAGES.items())
def test_docs_list_exactly_the_metrics_of_each_slice(prefix: str, page: str) -> None:
    text = (ROOT / page).read_text()
    names = [name for name in known() if name.startswith(prefix) and not name.endswith("_created")]
    bases = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in names}
    assert not [name for name in bases if name not in text]
    spoken_of = set(re.findall(prefix + r"[a-z_]+", text))
    assert not spoken_of - set(known()), "the page lists metrics that do not exist"


@pytest.mark.parametrize(
    "broken",
    ["sum(", "sum(x))", "x{", 'x{a="b}', "x >", "{a='b'}", "x[5 minutes]", "x{a}", "sum x", "x ? 1", ""],
)
def test_expression_parser_rejects_invalid_expressions(broken: str) -> None:
    with pytest.raises(AssertionError):
        parse(broken)


@pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ,
    reason="promtool (of Debian's prometheus) is not installed",
)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_promtool_agrees(path: Path) -> None:
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "grafana").glob("*.json")), ids=lambda path: path.name)
def test_dashboards_use_existing_metrics(path: Path) -> None:
    names = known()
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            for name, matchers in parse(target["expr"]):
                assert name in names, f"{panel['title']}: there is no metric {name}"
                assert set(matchers) <= names[name]
