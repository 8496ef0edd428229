"""A selection in the admin is deleted whole, in a transaction that stays short."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.admin import base
from dispatch.core.models import Event
from dispatch.leads.models import ClosedDay, DoNotCall
from dispatch.technicians.models import Skill
from tests.support import factories as make

pytestmark = pytest.mark.django_db


def delete_all(page: Any, path: str, pk: int, **fields: str) -> str:
    """Delete all rows of a list, as the link "Select all" does; return the page that follows."""
    chosen = {"action": "delete_selected", "_selected_action": [pk], "select_across": "1", "index": "0", **fields}
    return page.post(f"/admin/leads/{path}/", chosen, follow=True).content.decode()


@pytest.mark.parametrize("fields", [{}, {"post": "yes"}])
def test_more_rows_than_a_service_deletes_at_once_are_refused(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]
) -> None:
    monkeypatch.setattr(base, "MAX_DELETED", 2)
    organization = make.organization()
    page = make.browser(make.admin(organization))
    rows = [DoNotCall.objects.create(organization=organization, phone=f"+1602555010{n}") for n in range(3)]
    assert "Delete at most 2 rows at once." in delete_all(page, "donotcall", rows[0].pk, **fields)
    assert DoNotCall.objects.count() == 3
    assert not LogEntry.objects.exists()
    rows[0].delete()
    delete_all(page, "donotcall", rows[1].pk, post="yes")
    assert not DoNotCall.objects.exists()
    assert Event.objects.filter(kind="do_not_call.removed").count() == 2


def test_rows_without_a_service_are_deleted_at_once() -> None:
    organization = make.organization()
    page = make.browser(make.admin(organization))
    first = date(2030, 1, 1)
    days = [ClosedDay(organization=organization, date=first + timedelta(n), name="x") for n in range(40)]
    ClosedDay.objects.bulk_create(days)
    with CaptureQueriesContext(connection) as queries:
        delete_all(page, "closedday", days[0].pk, post="yes")
    assert not ClosedDay.objects.exists()
    deletions = [query["sql"] for query in queries if query["sql"].startswith('DELETE FROM "leads_closedday"')]
    assert len(deletions) == 1


def test_deletion_of_a_skill_lists_no_nameless_relationships() -> None:
    organization = make.organization()
    technician = make.technician(organization, "Ann")
    skill = Skill.objects.create(organization=organization, name="Gas", code="gas")
    technician.skills.add(skill)
    page = make.browser(make.admin(organization))
    shown = page.get(f"/admin/technicians/skill/{skill.pk}/delete/").content.decode()
    assert "object (" not in shown
    assert "Relationships" in shown, "counted in the summary"


@pytest.mark.parametrize("relation", ["required_skills", "preferred_skills"])
def test_skill_of_a_service_type_is_not_deleted(relation: str) -> None:
    organization = make.organization()
    skill, other = make.skill(organization, "gas"), make.skill(organization, "oil")
    service = make.service_type(organization, "repair", name="AC repair")
    getattr(service, relation).add(skill)
    page = make.browser(make.admin(organization))
    words = "Service types use this skill: AC repair. Remove it there first."
    for address, sent in (
        (f"/admin/technicians/skill/{skill.pk}/delete/", {}),
        ("/admin/technicians/skill/", {"action": "delete_selected", "_selected_action": [other.pk, skill.pk]}),
    ):
        shown = page.post(address, {**sent, "post": "yes"}, follow=True)
        assert words in " ".join(str(message) for message in shown.context["messages"])
    assert Skill.objects.count() == 2
    getattr(service, relation).clear()
    page.post(f"/admin/technicians/skill/{skill.pk}/delete/", {"post": "yes"})
    assert list(Skill.objects.all()) == [other]
