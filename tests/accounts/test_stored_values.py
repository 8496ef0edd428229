"""What people entered is shown in the admin as labels and values, and what programs exchange as indented JSON."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db.models import Model
from django.urls import reverse

from accounts.admin.stored_values import list_values, show_body
from dispatch.jobs.models import Submission
from dispatch.leads.models import Lead
from dispatch.outbox.models import EventType, EventTypeVersion, Message
from dispatch.schedules.models import Run, Schedule
from tests.support import factories as make
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db


def page_of(ours: Tenant, row: Model) -> str:
    name = f"admin:{row._meta.app_label}_{row._meta.model_name}_change"
    answer = make.browser(ours.admin).get(reverse(name, args=[row.pk]))
    assert answer.status_code == 200
    return answer.content.decode()


def values_of(page: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page))


def changed(row: Any, **fields: Any) -> Any:
    type(row).objects.filter(pk=row.pk).update(**fields)
    row.refresh_from_db()
    return row


def test_values_are_listed_and_what_is_nested_deeper_is_json():
    shown = list_values({"a": "<b>", "list": [1, {"x": True}], "none": None, "deep": {"b": {"c": {"d": 1}}}})
    assert values_of(shown)["a"] == "&lt;b&gt;"
    assert (
        '<ul class="values"><li>1</li><li><dl class="values"><div><dt>x</dt><dd>yes</dd></div></dl></li></ul>'
        in shown
    )
    assert "<dt>none</dt><dd>—</dd>" in shown
    assert "{\n  &quot;d&quot;: 1\n}</pre>" in shown
    assert [list_values(value) for value in (None, {}, [], "", 0, "text")] == ["—", "—", "—", "—", "0", "text"]


def test_bodies_are_indented_if_they_are_json():
    assert show_body('{"a":["ü"]}').endswith("{\n  &quot;a&quot;: [\n    &quot;ü&quot;\n  ]\n}</pre>")
    for text in ("<html>", "", "[" * 100_000, "9" * 5000):
        assert show_body(text).startswith("<pre")


def test_form_of_a_submission_is_shown_with_its_questions(ours: Tenant):
    form = {"customer_name": "Whitfield", "customer_phone": "+16025550123", "gate_code": "1234", "is_urgent": True}
    row = changed(ours.row(Submission), form=form, extra={"Gate code": "1234"})
    page = page_of(ours, row)
    values = values_of(page)
    assert values["Customer name"] == "Whitfield"
    assert values["Customer phone"] == "+16025550123", "as it was received"
    assert (values["Gate code"], values["Is urgent"]) == ("1234", "yes")
    assert "&quot;customer_name&quot;" not in page
    assert ">Other answers<" not in page_of(ours, changed(row, extra={}))


def test_data_of_a_lead_and_of_its_schedule_are_listed(ours: Tenant):
    lead = changed(ours.row(Lead), data={"first_name": "Ann", "balance": 12.5})
    values = values_of(page_of(ours, lead))
    assert (values["first_name"], values["balance"]) == ("Ann", "12.5")


def test_schedules_list_forms_and_show_bodies_as_json(ours: Tenant):
    form = {"customer_name": "Whitfield", "priority": 2}
    schedule = changed(ours.row(Schedule), kind="submission", payload=form)
    assert values_of(page_of(ours, schedule)) == {"Customer name": "Whitfield", "Priority": "2"}
    page = page_of(ours, changed(schedule, kind="http", payload={"order": {"id": 7}}))
    assert "{\n  &quot;order&quot;: {\n    &quot;id&quot;: 7\n  }\n}</pre>" in page
    run = changed(ours.row(Run), result={"status": 200, "answer": "thanks"})
    assert values_of(page_of(ours, run))["Answer"] == "thanks"


def test_payloads_and_schemas_are_indented_json(ours: Tenant):
    message = changed(ours.row(Message), payload='{"order":{"id":7}}')
    assert "{\n  &quot;order&quot;: {\n    &quot;id&quot;: 7\n  }\n}</pre>" in page_of(ours, message)
    kind = ours.row(EventType)
    EventTypeVersion.objects.create(
        organization=ours.organization, event_type=kind, number=7, schema={"type": "object"}
    )
    page = page_of(ours, kind)
    assert '<pre class="whitespace-pre-wrap break-all">{\n  &quot;type&quot;: &quot;object&quot;\n}</pre>' in page
    assert re.search(r"<summary>7 \(\d{4}-\d\d-\d\d \d\d:\d\d MST\)</summary>", page)
