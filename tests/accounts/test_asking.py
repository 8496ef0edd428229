"""Bulk actions ask for confirmation."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from dispatch.capacity.models import DispatchPool
from tests.support import factories as make

pytestmark = pytest.mark.django_db
POOLS = "admin:capacity_dispatchpool_changelist"


@pytest.fixture
def phoenix():
    return make.organization("Desert Air")


@pytest.fixture
def boss(phoenix) -> Client:
    client = Client()
    client.force_login(make.admin(phoenix), backend="django.contrib.auth.backends.ModelBackend")
    return client


def text(answer) -> str:
    return " ".join(answer.content.decode().split())


def hidden(page) -> dict[str, object]:
    """Return what the page's form would send back."""
    context = page.context
    return {
        "action": context["action"], "confirmed": "1", "seen": context["count"],
        "select_across": context["everywhere"], "_selected_action": context["chosen"],
    }  # fmt: skip


def test_confirmation_lists_the_rows_and_then_acts(phoenix, boss):
    pools = [make.pool(phoenix, name=code) for code in ("north", "south")]
    make.pool(phoenix, name="west")
    asked = boss.post(reverse(POOLS), {"action": "pause", "_selected_action": [pool.pk for pool in pools]})
    page = text(asked)
    assert "Pause: 2 dispatch pools" in page
    assert "No new calls; calls in progress continue." in page
    assert "<li>north</li><li>south</li>" in page
    assert "west" not in page
    assert not DispatchPool.objects.filter(is_paused=True).exists()
    assert "2 paused." in text(boss.post(reverse(POOLS), hidden(asked), follow=True))
    assert DispatchPool.objects.get(is_paused=False).name == "west"


def test_select_all_asks_again_if_more_rows_match(phoenix, boss):
    make.pool(phoenix, kind="messages")
    for _ in range(2):
        make.pool(phoenix)
    make.pool(make.organization("Elsewhere"))
    calls = reverse(POOLS) + "?kind__exact=calls"
    asked = boss.post(calls, {"action": "pause", "select_across": "1", "_selected_action": ["0"]})
    assert "Pause: 2 dispatch pools" in text(asked)
    make.pool(phoenix)
    again = boss.post(calls, hidden(asked))
    assert "there were 2 when you opened this page, and now there are 3" in text(again)
    assert not DispatchPool.objects.filter(is_paused=True).exists()
    boss.post(calls, hidden(again))
    assert DispatchPool.objects.filter(is_paused=True).count() == 3


def test_only_listed_actions_skip_confirmation():
    without = {
        f"{model._meta.label_lower}.{name}"
        for model, own in admin.site._registry.items()
        for name in getattr(own, "actions_without_asking", ())
    }
    assert without == {
        "technicians.technician.export_selected", "jobs.job.assign_selected", "jobs.job.dispatch_selected_again",
        "notifications.alertchannel.send_test",
        "notifications.notification.acknowledge", "notifications.notification.mark_read",
    }  # fmt: skip
