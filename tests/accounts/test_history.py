"""The admin's history of a row shows who did what, wherever it was done, in local time."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import ApiKey, Membership, RetentionRule, User
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import events
from dispatch.core.events import Actor
from dispatch.jobs.models import CustomerTextPolicy, DispatchPolicy, Job, PublicForm, ServiceType
from dispatch.leads.models import Campaign, DoNotCall, Lead
from dispatch.leads.services import actions
from dispatch.outbox.models import Endpoint, Message
from dispatch.schedules.models import Run, Schedule
from dispatch.technicians.models import Technician
from notifications.models import EscalationPolicy, Route
from tests.support import factories as make
from tests.support.tenants import Tenant, tenant

pytestmark = pytest.mark.django_db

SUBJECTS = {
    ApiKey: "api_key",
    Campaign: "campaign",
    CustomerTextPolicy: "customer_texts",
    DispatchPolicy: "policy",
    DispatchPool: "pool",
    DoNotCall: "do_not_call",
    Endpoint: "endpoint",
    EscalationPolicy: "escalation_policy",
    Job: "job",
    Lead: "lead",
    Message: "message",
    OutboundNumber: "number",
    ProviderAccount: "account",
    PublicForm: "public_form",
    RetentionRule: "retention",
    Route: "notification_rule",
    Run: "run",
    Schedule: "schedule",
    ServiceType: "service_type",
    Technician: "technician",
}


@pytest.fixture
def ours() -> Tenant:
    return tenant("Alphaville")


def history(ours: Tenant, row) -> str:
    browser = Client()
    browser.force_login(ours.admin, backend="django.contrib.auth.backends.ModelBackend")
    page = browser.get(reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_history", args=[row.pk]))
    assert page.status_code == 200
    return " ".join(page.content.decode().split())


def rename(admin: User, person: User, name: str) -> None:
    sent = {"email": person.email, "name": name, "phone": "", "is_active": "on"}
    sent |= {"memberships-TOTAL_FORMS": "0", "memberships-INITIAL_FORMS": "0"}
    page = reverse("admin:accounts_user_change", args=[person.pk])
    assert make.browser(admin).post(page, sent).status_code == 302


@pytest.mark.parametrize("model", SUBJECTS, ids=lambda model: model.__name__)
def test_history_shows_only_the_events_of_its_row(ours, model):
    row, theirs = ours.row(model), tenant("Bravotown")
    kim, bob = Actor("user", 7, "Kim Ash"), Actor("user", 8, "Bob Marsh")
    told = {
        "fields": ["name", "is_paused"],
        "note": "she asked for it",
        "seconds": 30,
        "is_on": False,
        "gone": None,
        "x_id": 5,
    }
    events.append(ours.organization.pk, f"{SUBJECTS[model]}.set_right", row.pk, actor=kim, **told)
    events.append(theirs.organization.pk, f"{SUBJECTS[model]}.set_right", row.pk, actor=bob)
    events.append(ours.organization.pk, f"{SUBJECTS[model]}.set_right", row.pk + 1, actor=bob)
    page = history(ours, row)
    assert "Kim Ash" in page
    assert "Set right" in page
    assert re.search(r"fields: [\w ]*name, (is )?paused;", page)
    assert re.search(r"\b(is )?(on|active|enabled): no", page)
    for said in ("note: she asked for it", "seconds: 30"):
        assert said in page
    assert "x id" not in page
    assert "Bob Marsh" not in page


def test_a_lead_that_a_dispatcher_cancelled_says_so(ours):
    lead = ours.row(Lead)
    actions.cancel_lead(lead.pk, actor=Actor("user", 7, "Kim Ash"))
    page = history(ours, lead)
    assert "Kim Ash" in page
    assert "Finished" in page


def test_history_of_a_user_names_nobody_of_a_former_organization(ours):
    """The person was a member elsewhere, where an Admin corrected their name."""
    theirs, person = make.organization("Bravotown"), make.dispatcher(ours.organization, "Dana")
    olga, root = make.admin(theirs, "Olga Petrova"), make.user("Rosa Root", is_superuser=True)
    Membership.objects.filter(user=person).update(organization=theirs)
    rename(olga, person, "Dana W")
    Membership.objects.filter(user=person).update(organization=ours.organization)
    rename(ours.admin, person, "Dana Whitfield")
    rename(root, person, "Dana Whitfield-Ash")
    page = history(ours, person)
    assert "Alphaville admin" in page
    assert not re.search("Petrova|Rosa|user [0-9]", page)
    seen_by_root = make.browser(root).get(reverse("admin:accounts_user_history", args=[person.pk]))
    assert all(word in seen_by_root.content.decode() for word in ("Petrova", "Rosa", "Alphaville admin"))


def test_a_row_without_events_shows_what_was_saved(ours):
    from dispatch.core.models import Event

    row = ours.row(Technician)
    Event.objects.all().delete()
    assert "doesn’t have a change history" in history(ours, row)


def test_admin_shows_times_in_the_organizations_time_zone(ours):
    ours.organization.time_zone = "America/Phoenix"
    ours.organization.save()
    done = events.append(ours.organization.pk, "technician.duty_off", ours.row(Technician).pk)
    page = history(ours, ours.row(Technician))
    assert f"{done.at.astimezone(ZoneInfo('America/Phoenix')):%H:%M:%S}" in page
    assert "America/Phoenix" in page
