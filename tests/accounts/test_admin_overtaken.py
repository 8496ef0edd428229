"""What others remove or add while the admin saves a form is reported on a page. It is no server error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.test import Client

import accounts.services
from accounts.admin.base import OwnedAdmin
from accounts.admin.inlines import OwnedInlineFormSet
from accounts.models import ApiKey
from dispatch.core.models import Event
from dispatch.technicians import services
from dispatch.technicians.models import Skill, Technician
from notifications.models import EscalationPolicy, EscalationStep
from tests.core.threads import Elsewhere
from tests.support import factories as make
from tests.support.admin_forms import open_form, path_of, send_form
from tests.support.factories import browser

pytestmark = pytest.mark.django_db(transaction=True)
SAVE_ROWS = (OwnedInlineFormSet, "save_existing_objects")


def root() -> Client:
    return browser(make.user("Root", is_superuser=True))


@contextmanager
def meanwhile(change: Callable[[], object], where: Any = OwnedAdmin, before: str = "save_form") -> Iterator[None]:
    """Let another session make and commit this change after the admin has read and checked what it is to save."""
    done: list[bool] = []
    function = getattr(where, before)

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        if not done:
            done.append(True)
            Elsewhere(change).finish()
        return function(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, before, overtaken)
        yield
    assert done


def said(answer: Any) -> str:
    return " ".join(str(message) for message in answer.context["messages"])


def test_change_of_a_row_that_is_removed_meanwhile_finds_none() -> None:
    skill = make.skill(make.organization(), "gas")
    person = root()
    form = {**open_form(person, skill), "name": "Gas lines"}
    with meanwhile(lambda: Skill.objects.all().delete()):
        answer = person.post(path_of(skill), form, follow=True)
    assert "Perhaps it was deleted?" in said(answer)
    assert not Skill.objects.exists()
    assert not Event.objects.filter(kind="skill.changed").exists()


def test_code_that_is_taken_meanwhile_is_refused_on_the_form() -> None:
    organization = make.organization()
    person = browser(make.admin(organization))
    with meanwhile(lambda: make.skill(organization, "gas")):
        new = {"organization": organization.pk, "name": "Gas lines", "code": "gas"}
        answer = person.post("/admin/technicians/skill/add/", new)
    page = answer.content.decode()
    assert "already exists" in page
    assert 'value="Gas lines"' in page
    assert Skill.objects.count() == 1


def two_steps() -> EscalationPolicy:
    organization = make.organization()
    policy = EscalationPolicy.objects.create(organization=organization)
    for position in (1, 2):
        EscalationStep.objects.create(
            organization=organization, policy=policy, position=position, audience="admins"
        )
    return policy


def remove_first_step() -> None:
    EscalationStep.objects.get(position=1).delete()


def test_row_under_a_parent_that_is_removed_meanwhile_is_refused_on_the_form() -> None:
    policy, person = two_steps(), root()
    form = {**open_form(person, policy), "steps-0-after_s": 97, "repeat_s": 243}
    with meanwhile(remove_first_step, *SAVE_ROWS):
        page = person.post(path_of(policy), form).content.decode()
    assert "Someone else has removed this since you opened the page." in page
    assert page.count('value="97"') == page.count('value="243"') == 1
    policy.refresh_from_db()
    assert policy.repeat_s is None


def test_row_that_is_removed_while_rows_exchange_places_stays_removed() -> None:
    policy, person = two_steps(), root()
    form = {**open_form(person, policy), "steps-0-position": 2, "steps-1-position": 1}
    with meanwhile(remove_first_step, *SAVE_ROWS):
        page = person.post(path_of(policy), form).content.decode()
    assert "Someone else has removed this since you opened the page." in page
    assert [step.position for step in EscalationStep.objects.all()] == [2]
    send_form(person, policy, {**form, "steps-0-DELETE": "on"})
    assert [step.position for step in EscalationStep.objects.all()] == [1]


@pytest.mark.parametrize("is_list", [False, True])
def test_row_that_two_people_delete_is_removed_once(is_list: bool) -> None:
    organization = make.organization()
    skill, person, other = make.skill(organization, "gas"), root(), browser(make.admin(organization))
    page = f"/admin/technicians/skill/{skill.pk}/delete/"
    with meanwhile(lambda: other.post(page, {"post": "yes"}), before="log_deletions"):
        if is_list:
            chosen = {"action": "delete_selected", "_selected_action": [skill.pk], "post": "yes"}
            answer = person.post("/admin/technicians/skill/", chosen, follow=True)
        else:
            answer = person.post(page, {"post": "yes"}, follow=True)
            assert "Perhaps it was deleted?" in said(answer)
    assert answer.status_code == 200
    assert Event.objects.filter(kind="skill.removed").count() == 1


def test_action_on_a_row_that_is_removed_meanwhile_does_the_others() -> None:
    organization = make.organization()
    gone, kept = make.technician(organization, "Ana"), make.technician(organization, "Bob")
    chosen = {"action": "off_duty_now", "_selected_action": [gone.pk, kept.pk], "confirmed": "1", "seen": "2"}
    person = root()
    with meanwhile(lambda: Technician.objects.filter(pk=gone.pk).delete(), services, "set_duty"):
        answer = person.post("/admin/technicians/technician/", chosen, follow=True)
    assert "Ana: Removed by someone else" in said(answer)
    kept.refresh_from_db()
    assert not kept.on_duty


def test_action_that_stops_at_a_row_that_is_removed_meanwhile_says_so() -> None:
    organization = make.organization()
    make.api_key(organization), make.api_key(organization)
    ids = list(ApiKey.objects.order_by("pk").values_list("pk", flat=True))
    chosen = {"action": "revoke", "_selected_action": ids, "confirmed": "1", "seen": "2"}
    person = root()
    with meanwhile(lambda: ApiKey.objects.get(pk=ids[0]).delete(), accounts.services, "revoke_api_key"):
        answer = person.post("/admin/accounts/apikey/", chosen, follow=True)
    assert "Someone else has removed a row meanwhile." in said(answer)
