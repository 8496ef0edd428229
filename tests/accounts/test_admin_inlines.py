"""Rows that a page of the admin edits under their parent: what others change meanwhile stays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import time
from typing import Any

import pytest
from django.contrib import admin
from django.db.models import Model
from django.test import Client
from django.utils.datastructures import MultiValueDict

from accounts.models import Organization
from dispatch.leads.models import Campaign, DispositionRule, KeyBranch, RetryRule, VoiceAgent
from dispatch.technicians.models import Shift, Technician
from notifications.models import EscalationPolicy, EscalationStep
from notifications.models.preferences import MAX_STEPS
from tests.support import factories as make
from tests.support.admin_forms import filled_in, open_form, path_of, send_form
from tests.support.factories import browser
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db

REMOVED = "Someone else has removed this since you opened the page."


def campaign(organization: Organization) -> Campaign:
    return Campaign.objects.create(
        organization=organization, pool=make.pool(organization), code="spring", name="Spring", script="Hello."
    )


def shift(organization: Organization, **fields: Any) -> Shift:
    hours: dict[str, Any] = {"weekday": 0, "starts": time(8), "ends": time(16), **fields}
    parent = Technician.objects.first() or make.technician(organization)
    return Shift.objects.create(organization=organization, technician=parent, **hours)


def branch(organization: Organization) -> KeyBranch:
    return KeyBranch.objects.create(organization=organization, campaign=campaign(organization), key="1", say="Hi.")


def agent(organization: Organization) -> VoiceAgent:
    return VoiceAgent.objects.create(
        organization=organization, campaign=campaign(organization), url="wss://bots.example.com/a", greeting="Hi.",
        starts="key",
    )  # fmt: skip


def rule(organization: Organization) -> DispositionRule:
    return DispositionRule.objects.create(
        organization=organization, campaign=campaign(organization), disposition="interested", then="again"
    )


def retry_rule(organization: Organization) -> RetryRule:
    return RetryRule.objects.create(organization=organization, campaign=campaign(organization), outcome="busy")


def step(organization: Organization) -> EscalationStep:
    policy = EscalationPolicy.objects.create(organization=organization)
    return EscalationStep.objects.create(organization=organization, policy=policy, audience="admins")


@pytest.fixture
def root() -> Client:
    return browser(make.user("Root", is_superuser=True))


def parent_of(row: Any) -> Any:
    return getattr(row, {Shift: "technician", EscalationStep: "policy"}.get(type(row), "campaign"))


@pytest.mark.parametrize(
    ("create", "prefix", "theirs", "mine", "of_parent"),
    [
        (shift, "shifts", {"ends": time(18)}, {"weekday": 3}, {"name": "Ana R."}),
        (branch, "branches", {"say": "Welcome."}, {"disposition": "asks"}, {"name": "Fall"}),
        (agent, "agent", {"greeting": "Welcome."}, {"limit_s": 120}, {"name": "Fall"}),
        (rule, "disposition_rules", {"disposition": "asks"}, {"delay_h": 5}, {"name": "Fall"}),
        (retry_rule, "retry_rules", {"attempts": 7}, {"delay_s": 60}, {"name": "Fall"}),
        (step, "steps", {"voice": False}, {"after_s": 90}, {"repeat_s": 240}),
        (step, "steps", {"audience": "on_duty"}, {"after_s": 90}, {"repeat_s": 240}),
    ],
)
def test_open_page_keeps_what_another_person_changed_in_its_rows(
    root: Client,
    create: Callable[[Organization], Any],
    prefix: str,
    theirs: dict[str, Any],
    mine: dict[str, Any],
    of_parent: dict[str, Any],
) -> None:
    row = create(make.organization("Ours"))
    parent = parent_of(row)
    form = open_form(root, parent)
    type(row).objects.filter(pk=row.pk).update(**theirs)
    send_form(root, parent, {**form, **of_parent})
    row.refresh_from_db()
    assert {name: getattr(row, name) for name in theirs} == theirs
    send_form(root, parent, {**form, **{f"{prefix}-0-{name}": value for name, value in mine.items()}})
    row.refresh_from_db()
    assert {name: getattr(row, name) for name in {**theirs, **mine}} == {**theirs, **mine}
    assert {name: getattr(parent, name) for name in of_parent} == of_parent


def test_open_page_sets_a_switch_of_its_rows(root: Client) -> None:
    row = step(make.organization("Ours"))
    form = open_form(root, row.policy)
    form.pop("steps-0-voice")
    send_form(root, row.policy, form)
    row.refresh_from_db()
    assert (row.voice, row.sms) == (False, True)


def test_row_that_another_person_removed_stays_removed(root: Client) -> None:
    organization = make.organization("Ours")
    gone, kept = shift(organization), shift(organization, weekday=1)
    form = open_form(root, kept.technician)
    gone.delete()
    send_form(root, kept.technician, {**form, "name": "Ana R.", "shifts-1-ends": "18:00"})
    kept.refresh_from_db()
    assert (kept.technician.name, kept.ends) == ("Ana R.", time(18))
    assert Shift.objects.get() == kept
    send_form(root, kept.technician, {**form, "shifts-0-DELETE": "on"})
    assert Shift.objects.get() == kept


def test_change_of_a_row_that_another_person_removed_is_refused(root: Client) -> None:
    organization = make.organization("Ours")
    gone, kept = shift(organization), shift(organization, weekday=1)
    form = {**open_form(root, kept.technician), "shifts-0-ends": "18:00", "shifts-1-ends": "19:00"}
    Shift.objects.filter(pk=gone.pk).delete()
    answer = root.post(path_of(kept.technician), form)
    page = answer.content.decode()
    assert REMOVED in page
    assert "Select a valid choice" not in page
    assert page.count('value="18:00"') == page.count('value="19:00"') == 1
    assert "Removed by someone else" in page
    assert str(kept) in page
    kept.refresh_from_db()
    assert kept.ends == time(16)
    form = {**filled_in(answer), "shifts-0-DELETE": "on"}
    send_form(root, kept.technician, form)
    assert [row.ends for row in Shift.objects.all()] == [time(19)]


def test_row_that_another_person_added_stays_beside_those_of_the_page(root: Client) -> None:
    organization = make.organization("Ours")
    ours = shift(organization, weekday=3)
    form = open_form(root, ours.technician)
    theirs = shift(organization, weekday=0)
    refused = root.post(path_of(ours.technician), {**form, "name": ""}).content.decode()
    assert str(ours) in refused
    assert str(theirs) not in refused
    send_form(root, ours.technician, {**form, "shifts-0-ends": "18:00"})
    assert [(row.weekday, row.ends) for row in Shift.objects.all()] == [(0, time(16)), (3, time(18))]


def test_row_that_another_person_added_too_is_refused(root: Client) -> None:
    parent = campaign(organization := make.organization("Ours"))
    form = open_form(root, parent)
    RetryRule.objects.create(organization=organization, campaign=parent, outcome="busy", attempts=7)
    new = {"outcome": "busy", "attempts": 3, "delay_s": 60, "factor": 2, "longest_s": 600, "jitter": 0}
    form |= {f"retry_rules-0-{name}": value for name, value in new.items()} | {"retry_rules-TOTAL_FORMS": 1}
    page = root.post(path_of(parent), form).content.decode()
    assert "Someone else has added the same since you opened the page: Spring: busy." in page
    send_form(root, parent, {**form, "retry_rules-0-outcome": "no_answer"})
    assert {row.outcome: row.attempts for row in RetryRule.objects.all()} == {"busy": 7, "no_answer": 3}


def test_rows_of_an_outdated_page_and_of_others_are_limited_together(root: Client) -> None:
    first = step(organization := make.organization("Ours"))
    form = open_form(root, first.policy)

    def added(count: int) -> dict[str, Any]:
        rows: dict[str, Any] = {"steps-TOTAL_FORMS": 1 + count}
        for number in range(1, 1 + count):
            new = {"position": 100 + number, "audience": "admins", "after_s": 60, "spacing_s": 0, "sms": "on"}
            rows |= {f"steps-{number}-{name}": value for name, value in new.items()}
        return {**form, **rows}

    for position in range(2, MAX_STEPS):
        EscalationStep.objects.create(
            organization=organization, policy=first.policy, audience="admins", position=position
        )
    page = root.post(path_of(first.policy), added(2)).content.decode()
    assert f"At most {MAX_STEPS} entries." in page
    assert EscalationStep.objects.count() == MAX_STEPS - 1
    send_form(root, first.policy, {**added(2), "steps-0-DELETE": "on"})
    assert EscalationStep.objects.count() == MAX_STEPS
    send_form(root, first.policy, {**open_form(root, first.policy), "repeat_s": 240})


def test_agent_that_another_person_added_too_is_refused(root: Client) -> None:
    parent = campaign(organization := make.organization("Ours"))
    form = open_form(root, parent)
    new = {"kind": "relay", "url": "wss://bots.example.com/b", "starts": "key", "limit_s": 120, "then": "hang_up"}
    form |= {f"agent-0-{name}": value for name, value in new.items()} | {"agent-TOTAL_FORMS": 1}
    VoiceAgent.objects.create(organization=organization, campaign=parent, url="wss://bots.example.com/a")
    page = root.post(path_of(parent), form).content.decode()
    assert "Voice agent with this Campaign already exists." in page


def test_agent_that_another_person_added_makes_a_script_unnecessary(root: Client) -> None:
    row = branch(organization := make.organization("Ours"))
    form = open_form(root, row.campaign)
    VoiceAgent.objects.create(organization=organization, campaign=row.campaign, url="wss://bots.example.com/a")
    Campaign.objects.update(script="")
    KeyBranch.objects.update(action="agent")
    send_form(root, row.campaign, {**form, "name": "Fall"})
    assert (row.campaign.name, row.campaign.script) == ("Fall", "")
    form = open_form(root, row.campaign)
    VoiceAgent.objects.all().delete()
    page = root.post(path_of(row.campaign), {**form, "name": "Winter"}).content.decode()
    assert "Add a voice agent" in page


def test_field_that_is_refused_has_one_error(root: Client) -> None:
    row = branch(make.organization("Ours"))
    form = {**open_form(root, row.campaign), "branches-0-say": "x" * 1001}
    new = {"kind": "relay", "url": "http://bots.example.com", "starts": "key", "limit_s": 120, "then": "hang_up"}
    form |= {f"agent-0-{name}": value for name, value in new.items()} | {"agent-TOTAL_FORMS": 1}
    page = root.post(path_of(row.campaign), form)
    agents, branches = (inline.formset for inline in page.context["inline_admin_formsets"][:2])
    assert [len(errors) for errors in agents.forms[0].errors.values()] == [1]
    (problem,) = branches.forms[0].errors["say"]
    assert problem.startswith("Ensure this value has at most 1000 characters")


def steps(organization: Organization, *audiences: str) -> EscalationPolicy:
    policy = EscalationPolicy.objects.create(organization=organization)
    for position, audience in enumerate(audiences, start=1):
        policy.steps.create(organization=organization, audience=audience, position=position, after_s=position)
    return policy


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps-0-position": 2, "steps-1-position": 1}, [(1, "admins"), (2, "on_duty"), (3, "dispatchers")]),
        ({"steps-0-position": 2, "steps-1-position": 3, "steps-2-position": 1},
         [(1, "dispatchers"), (2, "on_duty"), (3, "admins")]),
        ({"steps-0-position": 2, "steps-1-position": 3, "steps-2-position": 4},
         [(2, "on_duty"), (3, "admins"), (4, "dispatchers")]),
        ({"steps-0-position": 3, "steps-2-DELETE": "on"}, [(2, "admins"), (3, "on_duty")]),
    ],
)  # fmt: skip
def test_rows_exchange_their_places(root: Client, changes: dict[str, Any], expected: list[Any]) -> None:
    policy = steps(make.organization("Ours"), "on_duty", "admins", "dispatchers")
    keys = {row.audience: (row.pk, row.after_s) for row in policy.steps.all()}
    send_form(root, policy, {**open_form(root, policy), **changes})
    assert [(row.position, row.audience) for row in policy.steps.all()] == expected
    assert all(keys[row.audience] == (row.pk, row.after_s) for row in policy.steps.all())


def test_place_of_a_row_that_another_person_removed_is_free(root: Client) -> None:
    policy = steps(make.organization("Ours"), "on_duty", "admins")
    form = open_form(root, policy)
    policy.steps.get(position=1).delete()
    policy.steps.update(position=1)
    answer = root.post(path_of(policy), {**form, "repeat_s": 240, "steps-0-after_s": 90})
    assert REMOVED in answer.content.decode()
    assert "duplicate" not in answer.content.decode()
    send_form(root, policy, {**form, "repeat_s": 240})
    assert policy.repeat_s == 240
    assert [(row.position, row.audience) for row in policy.steps.all()] == [(1, "admins")]


def test_two_rows_with_one_place_are_refused(root: Client) -> None:
    policy = steps(make.organization("Ours"), "on_duty", "admins")
    page = root.post(path_of(policy), {**open_form(root, policy), "steps-1-position": 1}).content.decode()
    assert "Please correct the duplicate" in page


def test_no_row_of_an_unchanged_page_counts_as_changed(ours: Tenant, root: Client) -> None:
    counted: dict[str, list[str]] = {}
    for model, page_of_model in admin.site._registry.items():
        if not page_of_model.inlines or model not in ours.rows | ours.known:
            continue
        row: Model = ours.row(model)
        page = root.get(path_of(row))
        sent = MultiValueDict()
        for name, value in filled_in(page).items():
            sent.setlist(name, value if isinstance(value, list) else [value])
        for inline in page.context["inline_admin_formsets"]:
            shown = inline.formset
            again = type(shown)(data=sent, instance=row, prefix=shown.prefix, queryset=shown.queryset)
            counted |= {f"{shown.prefix}-{n}": form.changed_data for n, form in enumerate(again.initial_forms)}
    assert {name: changed for name, changed in counted.items() if changed} == {}
    assert len(counted) >= 5
