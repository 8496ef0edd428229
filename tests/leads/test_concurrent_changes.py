"""A saved form or request changes only its edited fields, whatever others have switched meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.urls import reverse

from dispatch.capacity import services as capacity
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.leads.models import Campaign
from dispatch.leads.services import switches
from tests.api.client import Api
from tests.support import factories as make
from tests.support.admin_forms import open_form, send_form
from tests.support.factories import browser
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization()
    return Campaign.objects.create(
        organization=organization, pool=make.pool(organization), code="spring", name="Spring", script="Hello."
    )


def patch(campaign: Campaign) -> int:
    api = Api(key=make.api_key(campaign.organization, "manage"))
    return int(api.patch(f"campaigns/{campaign.pk}/", {"name": "Fall"}).status_code)


def save_form(campaign: Campaign) -> int:
    form = {
        "organization": campaign.organization_id, "name": "Fall", "code": "spring", "pool": campaign.pool_id,
        "window_from": "08:00", "window_until": "21:00", "weekdays": ["0", "1"], "patience_h": "168",
        "max_attempts": "3", "max_attempts_24h": "3", "opt_out_key": "9", "ring_timeout_s": "30",
        "time_limit_s": "300", "precheck_timeout_s": "2", "precheck_without_answer": "later", "script": "Hello.",
        "new_secret": "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    }  # fmt: skip
    for prefix in ("retry_rules", "branches", "disposition_rules", "agent"):
        form |= {f"{prefix}-{name}": "0" for name in ("TOTAL_FORMS", "INITIAL_FORMS")}
    admin = browser(make.admin(campaign.organization))
    return admin.post(reverse("admin:leads_campaign_change", args=[campaign.pk]), form).status_code


def begin(request: Callable[[], int]) -> Callable[[], int]:
    """Start a request in another thread until it ends or waits for a lock. The result returns its response."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(request())
        finally:
            connection.close()

    def waits_for_a_lock() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(cursor.fetchone()[0])

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: waits_for_a_lock() or not thread.is_alive())

    def result() -> int:
        thread.join()
        return int(found[0])

    return result


@pytest.mark.parametrize(("save", "status"), [(patch, 200), (save_form, 302)])
def test_saving_a_campaign_keeps_a_concurrent_pause(
    campaign: Campaign, save: Callable[[Campaign], int], status: int
) -> None:
    with transaction.atomic():
        switches.pause_campaign(campaign.pk, True, actor=SYSTEM)
        saved = begin(lambda: save(campaign))  # it has read the row before the pause is committed
    assert saved() == status
    campaign.refresh_from_db()
    assert (campaign.name, campaign.is_paused) == ("Fall", True)


def test_a_patch_keeps_what_another_changed_meanwhile(campaign: Campaign) -> None:
    with transaction.atomic():
        Campaign.objects.filter(pk=campaign.pk).update(customer="acme")
        saved = begin(lambda: patch(campaign))
    assert saved() == 200
    campaign.refresh_from_db()
    assert (campaign.name, campaign.customer) == ("Fall", "acme")


# --- Forms that were opened before a switch was set


def test_an_open_form_does_not_lift_the_kill_switch(campaign: Campaign) -> None:
    switch = switches.set_engine(is_stopped=False, actor=SYSTEM)
    root = browser(make.user("Root", is_superuser=True))
    form = open_form(root, switch)
    switches.set_engine(is_stopped=True, actor=SYSTEM)
    send_form(root, switch, {**form, "promoter_paused": "on"})
    assert (switch.is_stopped, switch.promoter_paused) == (True, True)
    form = open_form(root, switch)
    form.pop("is_stopped")
    send_form(root, switch, form)
    assert (switch.is_stopped, switch.promoter_paused) == (False, True)


def test_an_open_form_does_not_switch_lead_calling_back(campaign: Campaign) -> None:
    dispatch = switches.set_dispatch(campaign.organization_id, mode="live", actor=SYSTEM)
    admin = browser(make.admin(campaign.organization))
    form = open_form(admin, dispatch)
    switches.set_dispatch(campaign.organization_id, mode="off", is_paused=True, actor=SYSTEM)
    send_form(admin, dispatch, {**form, "agent_hosts": "bots.example.com"})
    assert (dispatch.mode, dispatch.is_paused, dispatch.agent_hosts) == ("off", True, "bots.example.com")
    send_form(admin, dispatch, {**open_form(admin, dispatch), "mode": "dry_run"})
    assert (dispatch.mode, dispatch.is_paused) == ("dry_run", True)


@pytest.mark.parametrize("kind", ["number", "pool"])
def test_an_open_form_resumes_no_number_and_no_pool(campaign: Campaign, kind: str) -> None:
    number = make.number(campaign.organization, pool=campaign.pool)
    row = number if kind == "number" else number.pool
    admin = browser(make.admin(campaign.organization))
    form = open_form(admin, row)
    capacity.set_paused(row, True, actor=SYSTEM)
    send_form(admin, row, {**form, "name": "Desk"})
    assert (row.name, row.is_paused) == ("Desk", True)
    assert not Event.objects.filter(kind=f"{kind}.resumed").exists()
    form = open_form(admin, row)
    form.pop("is_paused")
    send_form(admin, row, form)
    assert not row.is_paused


def test_an_open_form_does_not_reactivate_an_account(campaign: Campaign) -> None:
    account = make.account(campaign.organization)
    admin = browser(make.admin(campaign.organization))
    form = open_form(admin, account)
    account.is_active = False
    capacity.save_row(account, {"is_active": False}, actor=SYSTEM)
    send_form(admin, account, {**form, "name": "Main"})
    assert (account.name, account.is_active) == ("Main", False)
