"""The alert rules parse, use existing metrics and have runbooks; a failing schedule raises an alert."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from django.conf import settings as django_settings

from dispatch.core.observability import metrics
from dispatch.core.runtime.loops import find_loop
from dispatch.schedules.kinds.base import Outcome
from dispatch.schedules.services import schedules
from notifications.loops import reader
from notifications.models import Notification
from tests.core.horizon import all_readable
from tests.core.test_alerts import DURATION, known, parse
from tests.harness.schedules import ANA, World
from tests.support import factories

RULES = django_settings.BASE_DIR / "deploy" / "prometheus" / "schedules.rules.yml"
PAGE = django_settings.BASE_DIR / "docs" / "guides" / "schedules.md"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


by_rule = pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])


@by_rule
def test_an_alert_is_whole_and_has_its_runbook(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert DURATION.fullmatch(rule["for"])
    assert rule["annotations"]["summary"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert page == "docs/guides/schedules.md"
    assert anchor in {heading.lower() for heading in re.findall(r"^### (.+)$", PAGE.read_text(), re.MULTILINE)}


@by_rule
def test_alert_uses_existing_metrics_and_labels(rule: dict[str, Any]) -> None:
    names = known()
    for name, matchers in parse(rule["expr"]):
        base = re.sub(r"_bucket$", "", name)
        assert name in names or base in names, f"there is no metric {name}"
        assert set(matchers) <= names.get(name, names.get(base, set()))
        if "loop" in matchers:
            assert find_loop(matchers["loop"][1]).elected


def test_every_metric_is_documented() -> None:
    own = [name for name in known() if name.startswith("dispatch_schedules_") and not name.endswith("_created")]
    bases = {re.sub(r"_(bucket|count|sum)$", "", name) for name in own}
    assert not [name for name in bases if name.removesuffix("_total") not in PAGE.read_text()]


def figures() -> dict[str, Any]:
    own = {
        name: gauge for name, (_, _, gauge) in metrics._gauges.items() if name.startswith("dispatch_schedules_")
    }
    return {name: list(gauge()) for name, gauge in own.items()}


def test_every_figure_can_be_read(world: World) -> None:
    world.schedule(every=1, unit="minute")
    world.travel(3600)
    read = {
        name: list(gauge())
        for name, (_, _, gauge) in metrics._gauges.items()
        if name.startswith("dispatch_schedules")
    }
    assert read["dispatch_schedules_oldest_due_seconds"][0][1] > 3000
    world.execute()
    read = {
        name: list(gauge())
        for name, (_, _, gauge) in metrics._gauges.items()
        if name.startswith("dispatch_schedules")
    }
    assert read["dispatch_schedules_open_runs"] == [(("http", "in_progress"), 1)]
    world.go()


def read_all() -> None:
    """Run the notifier until nothing is left."""
    all_readable()
    while reader.step():
        pass


def test_permanent_failure_alerts_dispatchers_until_recovery(world: World) -> None:
    ann, bob = factories.dispatcher(world.organization), factories.dispatcher(world.organization)
    schedule = world.schedule("Boiler maintenance", every=1, unit="hour", retry_schedule_s=[])
    world.note.answers = [Outcome("failed", error="The receiver answered HTTP 503.")] * 2
    for _ in range(2):
        world.travel(3600)
        world.go()
    read_all()
    alerts = Notification.objects.filter(kind="schedule.failing")
    assert {alert.user for alert in alerts} == {ann, bob}
    assert alerts[0].title == "Schedule Boiler maintenance is failing: The receiver answered HTTP 503."
    assert alerts[0].level == "critical"
    world.travel(3600)
    world.go()
    read_all()
    assert all(alert.settled_at for alert in Notification.objects.filter(kind="schedule.failing"))
    assert schedules.pause_schedule(schedule.pk, actor=ANA).status == "paused"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_agrees() -> None:
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
