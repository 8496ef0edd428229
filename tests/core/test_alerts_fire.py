"""Alerts fire in the situation that they are for, and not otherwise: promtool evaluates the rules over series."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes import ROOT

PROMETHEUS = ROOT / "deploy" / "prometheus"
WEB, DISPATCHER = 'up{job="dispatch-web", process="web", instance="a"}', 'up{job="dispatch", process="dispatcher"}'
FREE = 'node_filesystem_avail_bytes{fstype="ext4", mountpoint="/data", instance="db"}'
SIZE = 'node_filesystem_size_bytes{fstype="ext4", mountpoint="/data", instance="db"}'
USED, MAX = 'dispatch_redis_memory_bytes{what="used"}', 'dispatch_redis_memory_bytes{what="max"}'
BACKUP, CERTIFICATE = "dispatch_backup_last_success_timestamp_seconds", "probe_ssl_earliest_cert_expiry"
OK, FAILED = 'dispatch_http_requests_total{status="200"}', 'dispatch_http_requests_total{status="503"}'
FAST, ALL = (f'dispatch_http_request_seconds_bucket{{area="api", le="{le}"}}' for le in ("1", "+Inf"))
SLOW = 'dispatch_http_request_seconds_bucket{area="api", le="10"}'
HEARTBEAT = 'dispatch_heartbeats_total{outcome="withheld"}'
FIGURES = ("dispatch_jobs_overdue", "dispatch_alerts_overdue", "dispatch_reader_lag_seconds")
EXPORTED = (FREE, CERTIFICATE, BACKUP)
Series = dict[str, str]

# alert → series with which it fires, and with which it does not, one sample a minute. "0+1x9": 0, 1, … 9.
SITUATIONS: dict[str, tuple[Series, Series]] = {
    "WebAbsent": ({DISPATCHER: "1x180"}, {WEB: "1x180"}),
    "DispatcherAbsent": ({WEB: "1x180", DISPATCHER: "0x180"}, {DISPATCHER: "1x180"}),
    "ProcessDown": ({WEB: "0x180"}, {WEB: "1x180"}),
    "FiguresAbsent": (dict.fromkeys(FIGURES[1:], "0x180"), dict.fromkeys(FIGURES, "0x180")),
    "FiguresUnreadable": (
        {'dispatch_gauge_failures_total{gauge="dispatch_workers"}': "0+1x180"},
        {'dispatch_gauge_failures_total{gauge="dispatch_workers"}': "7x180"},
    ),
    "ExporterAbsent": (dict.fromkeys(EXPORTED[1:], "1x180"), dict.fromkeys(EXPORTED, "1x180")),
    "DiskFilling": ({FREE: "9x180", SIZE: "100x180"}, {FREE: "11x180", SIZE: "100x180"}),
    "RedisMemoryHigh": ({USED: "90x180", MAX: "100x180"}, {USED: "90x180", MAX: "0x180"}),
    "BackupOld": ({BACKUP: "-90000x180"}, {BACKUP: "0x180"}),
    "CertificateExpiring": ({CERTIFICATE: "1000000x180"}, {CERTIFICATE: "3000000x180"}),
    "HttpErrors": ({OK: "0+60x180", FAILED: "0+6x180"}, {OK: "0+600x180", FAILED: "0+6x180"}),
    "HttpSlow": (
        {FAST: "0+80x180", SLOW: "0+100x180", ALL: "0+100x180"},
        {FAST: "0+99x180", SLOW: "0+100x180", ALL: "0+100x180"},
    ),
    "PoolExhausted": (
        {'dispatch_db_pool{what="waiting"}': "2x180"},
        {'dispatch_db_pool{what="waiting"}': "0x180", 'dispatch_db_pool{what="size"}': "16x180"},
    ),
    "HeartbeatFailing": ({HEARTBEAT: "0+1x180"}, {HEARTBEAT: "5x180"}),
    "EventReaderLagging": (
        {'dispatch_reader_lag_seconds{reader="outbox"}': "0+30x180"},
        {'dispatch_reader_lag_seconds{reader="outbox"}': "5x180"},
    ),
    "SpendCapReached": ({"dispatch_spend_caps_reached": "1x180"}, {"dispatch_spend_caps_reached": "0x180"}),
    "WebhooksRefused": (
        {'dispatch_webhooks_refused_total{reason="wrong_signature"}': "0+1x180"},
        {'dispatch_webhooks_refused_total{reason="no_signature"}': "0+1x180"},
    ),
    "LeadsNoLeader": (
        {'dispatch_leaderships{name="notifier"}': "1x180"},
        {'dispatch_leaderships{name="leads_promoter"}': "1x180"},
    ),
}
PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None and "CI" not in os.environ,
    reason="promtool (of Debian's prometheus) is not installed",
)


def case(alert: str, series: Series, count: int) -> dict[str, Any]:
    firing = f'count by (alertname) (ALERTS{{alertname="{alert}", alertstate="firing"}})'
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": count}] if count else []
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": "2h", "exp_samples": samples}],
    }


@PROMTOOL
def test_alerts_fire_in_their_situation_only(tmp_path: Path) -> None:
    tests = [case(alert, series, 1) for alert, (series, _) in SITUATIONS.items()]
    tests += [case(alert, series, 0) for alert, (_, series) in SITUATIONS.items()]
    rules = [str(path) for path in sorted(PROMETHEUS.glob("*.rules.yml"))]
    path = tmp_path / "alerts.test.yml"
    path.write_text(yaml.safe_dump({"rule_files": rules, "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_about_availability_is_tried() -> None:
    groups = yaml.safe_load((PROMETHEUS / "availability.rules.yml").read_text())["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} <= set(SITUATIONS)
