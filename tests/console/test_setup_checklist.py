"""An empty organization's board shows its Admins what is missing, until everything is there."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.models import ApiKey
from dispatch.console.setup_checklist import load_checklist
from dispatch.core import clock
from dispatch.jobs.models import PublicForm, Submission
from tests.support import factories as make

pytestmark = pytest.mark.django_db


def board(user) -> str:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client.get("/board/").content.decode()


def open_steps(organization) -> list[str]:
    return [step.title for step in load_checklist(organization) if not step.is_done]


def test_each_step_is_ticked_by_what_it_creates():
    organization, other = make.organization(), make.organization()
    make.number(other)
    make.technician(other)
    make.admin(organization)
    _, number, technicians, form, colleague, alerts = open_steps(organization)
    made = make.account(organization)
    assert open_steps(organization) == [number, technicians, form, colleague, alerts]
    make.number(organization, account=made)
    assert open_steps(organization) == [technicians, form, colleague, alerts]
    make.technician(organization)
    assert open_steps(organization) == [form, colleague, alerts]
    make.service_type(organization)
    assert open_steps(organization) == [form, colleague, alerts]
    PublicForm.objects.create(organization=organization)
    assert open_steps(organization) == [colleague, alerts]
    person = make.dispatcher(organization)
    assert open_steps(organization) == [alerts]
    person.phone = make.phone()
    person.save()
    make.confirm_phone(organization, person)
    assert load_checklist(organization) == []


def test_key_that_has_expired_is_no_entrance_for_forms():
    organization = make.organization()
    make.service_type(organization)
    steps = open_steps(organization)
    make.api_key(organization, "submissions:write")
    assert len(open_steps(organization)) == len(steps) - 1
    ApiKey.objects.update(expires_at=clock.now())
    assert open_steps(organization) == steps


def test_admins_see_the_checklist_until_the_first_form():
    organization = make.organization()
    admin, dispatcher = make.admin(organization), make.dispatcher(organization)
    page = board(admin)
    assert "Get ready for the first job" in page
    assert "1 of 6 done" in page
    assert "Get ready for the first job" not in board(dispatcher)
    Submission.objects.create(
        organization=organization, status="processed", form={}, customer_name="Ana", customer_phone=make.phone(),
        service_type=make.service_type(organization),
    )  # fmt: skip
    assert "Get ready for the first job" not in board(admin)
