"""Alerts fire in the situation that they are for, and not otherwise: promtool evaluates the rules over series."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import ROOT

RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml"))
WEB, DISPATCHER = 'up{job="dispatch-web", process="web", instance="a"}', 'up{job="dispatch", process="dispatcher"}'
FREE = 'node_filesystem_avail_bytes{fstype="ext4", mountpoint="/data", instance="db"}'
SIZE = 'node_filesystem_size_bytes{fstype="ext4", mountpoint="/data", instance="db"}'
USED, MAX = (f'dispatch_redis_memory_bytes{{server="r:6379", what="{what}"}}' for what in ("used", "max"))
OTHER_MAX = 'dispatch_redis_memory_bytes{server="s:6379", what="max"}'
BACKUP, CERTIFICATE = "dispatch_backup_last_success_timestamp_seconds", "probe_ssl_earliest_cert_expiry"
OK, FAILED = 'dispatch_http_requests_total{status="200"}', 'dispatch_http_requests_total{status="503"}'
FAST, ALL = (f'dispatch_http_request_seconds_bucket{{area="api", le="{le}"}}' for le in ("1", "+Inf"))
SLOW = 'dispatch_http_request_seconds_bucket{area="api", le="10"}'
HEARTBEAT = 'dispatch_heartbeats_total{outcome="withheld"}'
FIGURES = ("dispatch_jobs_overdue", "dispatch_alerts_overdue", "dispatch_reader_lag_seconds")
POSTGRES = 'dispatch_circuit_failures_total{server="postgres"}'
EXPORTED = (FREE, CERTIFICATE, BACKUP)
Series = dict[str, str]


def level(metric: str, fires: float, silent: float = 0) -> tuple[Series, Series]:
    """Return a gauge at the one value, with which its alert fires, and at the other."""
    return {metric: f"{fires:g}x180"}, {metric: f"{silent:g}x180"}


def growth(metric: str, fires: float = 1, silent: float = 0) -> tuple[Series, Series]:
    """Return a counter that grows by these steps a minute."""
    return {metric: f"0+{fires:g}x180"}, {metric: f"0+{silent:g}x180"}


def halted(waiting: Series, done: str) -> tuple[Series, Series]:
    """Return work that waits while a counter stands still, and while it grows."""
    return {**waiting, done: "7x180"}, {**waiting, done: "0+5x180"}


def mean(metric: str, slow: float, fast: float) -> tuple[Series, Series]:
    """Return a histogram whose mean is `slow`, and one whose mean is `fast`."""
    return tuple(  # type: ignore[return-value]
        {f"{metric}_sum": f"0+{60 * value:g}x180", f"{metric}_count": "0+60x180"} for value in (slow, fast)
    )


def steps(loop: str) -> tuple[Series, Series]:
    """Return a loop whose steps all fail, and one whose steps succeed."""
    done, failed = (f'dispatch_loop_steps_total{{loop="{loop}", outcome="{o}"}}' for o in ("done", "failed"))
    return {done: "7x180", failed: "0+5x180"}, {done: "0+5x180", failed: "0+5x180"}


def only_failures(loop: str) -> Series:
    """Return a loop whose every step since the start has failed."""
    return {f'dispatch_loop_steps_total{{loop="{loop}", outcome="failed"}}': "0+5x180"}


DIALED = "dispatch_leads_due_to_dial_seconds_bucket"
DIALED_FAST, DIALED_ALL = f'{DIALED}{{le="30"}}', f'{DIALED}{{le="+Inf"}}'
DIALED_60 = f'{DIALED}{{le="60"}}'
LINES = {what: f'dispatch_number_lines{{number="1", what="{what}"}}' for what in ("used", "there", "leased")}
DEAD, DIALERS = 'dispatch_leads_repairs_total{what="dead_worker"}', "dispatch_leads_dialers"
CALLED = {outcome: f'dispatch_outbox_calls_total{{outcome="{outcome}"}}' for outcome in ("delivered", "failed")}

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
    "DatabaseRejectsWrites": level("dispatch_database_rejects_writes", 1),
    "RedisMemoryHigh": (
        {USED: "90x180", MAX: "100x180", OTHER_MAX: "1000x180"},
        {USED: "90x180", MAX: "0x180", OTHER_MAX: "100x180"},
    ),
    "RedisEvicts": (
        {'dispatch_redis_evicts{server="r:6379"}': "1x180"},
        {'dispatch_redis_evicts{server="r:6379"}': "0x180"},
    ),
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
    "SubmissionsNotStarted": level("dispatch_submissions_not_started", 1),
    "JobsOverdue": level("dispatch_jobs_overdue", 1),
    "WorkersGone": level('dispatch_workers{queue="dispatch-queue"}', 0, silent=1),
    "EventsQuarantined": (
        {'dispatch_reader_failed_events{reader="outbox", state="quarantined"}': "1x180"},
        {'dispatch_reader_failed_events{reader="outbox", state="retrying"}': "1x180"},
    ),
    "RedisFailing": (
        {'dispatch_circuit_failures_total{server="r:6379"}': "0+30x180", POSTGRES: "0x180"},
        {'dispatch_circuit_failures_total{server="r:6379"}': "0+1x180", POSTGRES: "0+30x180"},
    ),
    "DatabaseFailing": growth(POSTGRES, 8, silent=1),
    "RoadTimesFailing": growth('dispatch_circuit_failures_total{server="osrm"}', 2, silent=0.2),
    "CallsOfUnknownOutcome": level("dispatch_calls_oldest_unknown_seconds", 700, silent=500),
    "ProviderAccountOut": level('dispatch_provider_accounts_out{outage="refused"}', 1),
    "HostCutOff": level("dispatch_hosts_cut_off", 1),
    "AlertsNotEscalating": level("dispatch_alerts_overdue", 1),
    "AlertUnacknowledged": level("dispatch_alerts_oldest_open_seconds", 1900, silent=1700),
    "NotificationsNotLeaving": growth('dispatch_deliveries_total{channel="sms", status="failed"}'),
    "PushFailing": level("dispatch_push_failing_organizations", 1),
    "LeadersGivingUp": (
        {'dispatch_leaderships_given_up_total{name="placer", reason="failed"}': "0+1x180"},
        {'dispatch_leaderships_given_up_total{name="placer", reason="failed"}': "0x119 1x60"},
    ),
    "LeadsDispatchHalted": halted({"dispatch_leads_overdue": "3x180"}, "dispatch_leads_picked_total"),
    "LeadsLatencyHigh": (
        {
            DIALED_FAST: "0+50x180",
            DIALED_60: "0+100x180",
            DIALED_ALL: "0+100x180",
            "dispatch_leads_line_waits_total": "0x180",
        },
        {
            DIALED_FAST: "0+50x180",
            DIALED_60: "0+100x180",
            DIALED_ALL: "0+100x180",
            "dispatch_leads_line_waits_total": "0+1x180",
        },
    ),
    "LeadsSchedulingFailing": growth("dispatch_leads_schedule_failures_total"),
    "LeadsLineDrift": (
        {LINES["used"]: "3x180", LINES["there"]: "5x180", LINES["leased"]: "2x180"},
        {LINES["used"]: "3x180", LINES["there"]: "5x180", LINES["leased"]: "3x180"},
    ),
    "LeadsReconcilerBusy": growth('dispatch_leads_repairs_total{what="near"}', 10, silent=5),
    "LeadsClaimFailing": growth('dispatch_leads_picked_total{outcome="error"}'),
    "LeadsHotRoom": level('dispatch_leads_ready{pool="1"}', 6000, silent=4000),
    "LeadsWorkersDying": ({DEAD: "0+1x180", DIALERS: "0x180"}, {DEAD: "0+1x180", DIALERS: "1x180"}),
    "OutboxPollerStopped": steps("outbox_poller"),
    "OutboxBehind": level("dispatch_outbox_oldest_due_seconds", 130, silent=110),
    "OutboxFarBehind": level("dispatch_outbox_oldest_due_seconds", 910, silent=890),
    "OutboxQueueUnavailable": growth('dispatch_outbox_published_total{outcome="failed"}'),
    "OutboxRoutersIdle": halted(
        {'dispatch_outbox_open_messages{status="QUEUED"}': "3x180"},
        'dispatch_outbox_calls_total{outcome="delivered"}',
    ),
    "OutboxGroupsBlocked": level("dispatch_outbox_blocked_groups", 1),
    "OutboxManyFail": (
        {CALLED["failed"]: "0+6x180", CALLED["delivered"]: "0+4x180"},
        {CALLED["failed"]: "0+4x180", CALLED["delivered"]: "0+6x180"},
    ),
    "OutboxCircuitOpen": level("dispatch_outbox_open_circuits", 1),
    "OutboxEndpointDisabled": (
        {"dispatch_outbox_disabled_endpoints": "0x90 1x90"},
        {"dispatch_outbox_disabled_endpoints": "1x180"},
    ),
    "OutboxPointerQuarantined": (
        {"dispatch_outbox_quarantined_pointers": "2x90 3x90"},
        {"dispatch_outbox_quarantined_pointers": "3x180"},
    ),
    "OutboxBlind": growth('dispatch_gauge_failures_total{gauge="dispatch_outbox_open_messages"}'),
    "SchedulesBehind": level("dispatch_schedules_oldest_due_seconds", 40, silent=20),
    "SchedulesWithoutExecutor": level("dispatch_schedules_shards_without_executor", 1),
    "SchedulesWorkersBehind": halted(
        {'dispatch_schedules_open_runs{status="in_progress"}': "3x180"}, "dispatch_schedules_attempts_total"
    ),
    "SchedulesStartLate": mean("dispatch_schedules_start_lag_seconds", 6, 4),
    "SchedulesStatusBehind": level("dispatch_schedules_oldest_running_seconds", 310, silent=290),
    "SchedulesReconcilerStopped": steps("schedules_reconciler"),
    "SchedulesManyRepairs": growth("dispatch_schedules_repaired_total", 10, silent=5),
    "SchedulesFailing": level("dispatch_schedules_failing", 1),
    "SchedulesWaitForSlots": level("dispatch_schedules_oldest_slot_wait_seconds", 3700, silent=3500),
    "SchedulesBlind": growth('dispatch_gauge_failures_total{gauge="dispatch_schedules_failing"}'),
}
# Alerts about what does not happen → situations in which its counter has no series: nothing was counted since the
# processes started, or none runs.
UNCOUNTED: dict[str, list[Series]] = {
    "LeadsDispatchHalted": [{"dispatch_leads_overdue": "3x180"}],
    "LeadsLatencyHigh": [{DIALED_FAST: "0+50x180", DIALED_60: "0+100x180", DIALED_ALL: "0+100x180"}],
    "OutboxPollerStopped": [only_failures("outbox_poller"), {WEB: "1x180"}],
    "OutboxRoutersIdle": [{'dispatch_outbox_open_messages{status="QUEUED"}': "3x180"}],
    "SchedulesWorkersBehind": [{'dispatch_schedules_open_runs{status="in_progress"}': "3x180"}],
    "SchedulesReconcilerStopped": [only_failures("schedules_reconciler"), {WEB: "1x180"}],
}
# Alerts about rare events → a counter that was 0, and jumps once within a scrape interval.
FIRST: dict[str, Series] = {
    "HeartbeatFailing": {HEARTBEAT: "0x118 4x60"},
    "LeadsClaimFailing": {'dispatch_leads_picked_total{outcome="error"}': "0x118 1x60"},
    "LeadsWorkersDying": {DEAD: "0x110 1x60", DIALERS: "0x180"},
    "NotificationsNotLeaving": {'dispatch_deliveries_total{channel="email", status="failed"}': "0x110 6x60"},
    "WebhooksRefused": {'dispatch_webhooks_refused_total{reason="wrong_signature"}': "0x118 4x60"},
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


def all_rules() -> dict[str, dict[str, Any]]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def evaluate(folder: Path, cases: dict[str, list[dict[str, Any]]]) -> None:
    """Let promtool evaluate each alert in its cases."""
    rules, files = all_rules(), []
    for alert, tests in cases.items():
        # With its own rule only, because promtool evaluates every rule of a file for every test in it.
        rule, test = folder / f"{alert}.rules.yml", folder / f"{alert}.test.yml"
        rule.write_text(yaml.safe_dump({"groups": [{"name": alert, "rules": [rules[alert]]}]}))
        test.write_text(yaml.safe_dump({"rule_files": [str(rule)], "evaluation_interval": "1m", "tests": tests}))
        files.append(str(test))
    done = subprocess.run(["promtool", "test", "rules", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@PROMTOOL
def test_alerts_fire_in_their_situation_only(tmp_path: Path) -> None:
    cases = {
        alert: [case(alert, fires, 1), case(alert, silent, 0)] for alert, (fires, silent) in SITUATIONS.items()
    }
    evaluate(tmp_path, cases)


@PROMTOOL
def test_alerts_about_a_halt_fire_without_a_series_of_the_counter(tmp_path: Path) -> None:
    evaluate(tmp_path, {alert: [case(alert, series, 1) for series in found] for alert, found in UNCOUNTED.items()})


@PROMTOOL
def test_alerts_about_rare_events_fire_at_the_first_one(tmp_path: Path) -> None:
    evaluate(tmp_path, {alert: [case(alert, series, 1)] for alert, series in FIRST.items()})


GROWTH = re.compile(r"(?:increase|rate)\((\w+)(?:\{([^}]*)\})?\[")
# Matchers of a label's values, as `="a"` or `=~"a|b"`; others match names that are not known beforehand.
VALUES = re.compile(r'(\w+)=~?"([a-z_]+(?:\|[a-z_]+)*)"')


def named_values() -> set[tuple[str, str, str]]:
    """Return (counter, label, value) of each value that rules name. A loop's counters are those of its runner."""
    return {
        (name, label, value)
        for rule in all_rules().values()
        for name, selector in GROWTH.findall(rule["expr"])
        for label, values in VALUES.findall(selector)
        for value in values.split("|")
        if name.endswith("_total") and 'loop="' not in selector
    }


def test_counters_in_rules_are_exported_before_their_first_increment() -> None:
    """Prometheus sees no growth in a series that begins with its first increment."""
    start = (
        "import django; django.setup(); from dispatch.core.runtime import loops; loops.all_loops();"
        "from dispatch.core.observability import metrics; print(metrics.render_metrics().decode())"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run([sys.executable, "-c", start], env=env, cwd=ROOT, check=True, capture_output=True)
    exported = {
        (sample.name, label, value)
        for family in text_string_to_metric_families(done.stdout.decode())
        for sample in family.samples
        for label, value in sample.labels.items()
    }
    named = named_values()
    assert ("dispatch_leads_picked_total", "outcome", "error") in named
    assert named - exported == set()


def test_no_rule_compares_a_growth_with_zero() -> None:
    """A counter with labels has no series before its first increment, and the sum of no series is not 0."""
    halts = re.compile(r"(increase|rate)\(.*\) == 0")
    assert not [name for name, rule in all_rules().items() if halts.search(rule["expr"])]


def test_every_alert_is_tried() -> None:
    assert set(all_rules()) == set(SITUATIONS)
