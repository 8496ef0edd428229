"""A request repeated with its Idempotency-Key gets its first response, also if it would be invalid by now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from accounts.models import Organization
from dispatch.core import clock
from dispatch.jobs.models import ServiceType, Submission
from dispatch.leads.models import Campaign, Lead
from dispatch.outbox.models import Endpoint, Message
from dispatch.schedules.models import Run, Schedule
from tests.api.client import Api
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)
STRICT = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


@dataclass
class Case:
    """One request: its path, its body, what makes it invalid later, and what it adds."""

    path: str
    body: dict[str, Any]
    spoil: Callable[[], Any]
    adds: Any
    because: str


def in_hours(hours: float) -> str:
    return (clock.now() + timedelta(hours=hours)).isoformat()


def form(**fields: Any) -> dict[str, Any]:
    return make.form("plumbing", customer_phone="+16025550123", **fields)


def retire_service() -> None:
    ServiceType.objects.update(is_active=False)


def submission_whose_window_ends(api: Api) -> Case:
    window = {"start": in_hours(1), "end": in_hours(2)}
    later = 3 * 3600
    return Case("submissions/", form(arrival_window=window), lambda: clock.travel(later), Submission, "window")


def submission_of_a_retired_service(api: Api) -> Case:
    return Case("submissions/", form(), retire_service, Submission, "service_type")


def schedule_whose_time_passes(api: Api) -> Case:
    body = {"name": "Visit", "kind": "submission", "payload": form(), "trigger_at": in_hours(1)}
    return Case("schedules/", body, lambda: clock.travel(2 * 3600), Schedule, "passed")


def run_of_a_retired_service(api: Api) -> Case:
    body = {"name": "Visit", "kind": "submission", "payload": form(), "cron": "0 9 * * *"}
    schedule = api.post("schedules/", body).json()["id"]
    return Case(f"schedules/{schedule}/run-now/", {"payload": form()}, retire_service, Run, "service_type")


def published_message_with_a_stricter_type(api: Api) -> Case:
    made = api.post("event-types/", {"name": "order.changed", "schema": {"type": "object"}, "is_enforced": True})
    assert made.status_code == 201, made.content
    at = f"event-types/{made.json()['id']}/"
    Endpoint.objects.update(event_types=["order.changed"])
    body = {"type": "order.changed", "payload": {}}
    return Case("event-types/publish/", body, lambda: api.patch(at, {"schema": STRICT}), Message, "required")


def message_to_a_renamed_endpoint(api: Api) -> Case:
    body = {"endpoint": "ERP", "type": "order.changed", "payload": {}}
    return Case("messages/", body, lambda: Endpoint.objects.update(name="SAP"), Message, "endpoint")


def lead_of_a_renamed_campaign(api: Api) -> Case:
    body = {"campaign": "spring", "phone": "+16025550134"}
    return Case("leads/", body, lambda: Campaign.objects.update(code="summer"), Lead, "campaign")


def leads_of_a_renamed_campaign(api: Api) -> Case:
    body = {"campaign": "spring", "leads": [{"phone": "+16025550134"}]}
    return Case("leads/bulk/", body, lambda: Campaign.objects.update(code="summer"), Lead, "campaign")


CASES = [
    submission_whose_window_ends, submission_of_a_retired_service, schedule_whose_time_passes,
    run_of_a_retired_service, published_message_with_a_stricter_type, message_to_a_renamed_endpoint,
    lead_of_a_renamed_campaign, leads_of_a_renamed_campaign,
]  # fmt: skip


@pytest.fixture
def organization() -> Organization:
    found = make.organization()
    make.service_type(found, "plumbing")
    Campaign.objects.create(
        organization=found, pool=make.pool(found), code="spring", name="Spring", script="Hello."
    )
    messages = make.pool(found, kind="messages")
    Endpoint.objects.create(organization=found, pool=messages, name="ERP", url="https://example.com/hook")
    return found


@pytest.mark.parametrize("case_of", CASES, ids=lambda case_of: case_of.__name__)
def test_repeated_request_gets_its_first_response(organization: Organization, case_of: Any) -> None:
    api = Api(key=make.api_key(organization))
    case = case_of(api)
    before = case.adds.objects.count()
    first = api.post(case.path, case.body, Idempotency_Key="once")
    assert first.status_code in (201, 202), first.content
    added = case.adds.objects.count()
    assert added > before
    case.spoil()

    again = api.post(case.path, case.body, Idempotency_Key="once")
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again["Idempotency-Replayed"] == "true"
    refused = api.post(case.path, case.body, Idempotency_Key="another")
    assert refused.status_code == 400
    assert case.because in refused.content.decode()
    assert case.adds.objects.count() == added


def test_refused_request_leaves_its_key_free(organization: Organization) -> None:
    api = Api(key=make.api_key(organization))
    assert api.post("submissions/", form(priority=9), Idempotency_Key="once").status_code == 400
    assert api.post("submissions/", form(), Idempotency_Key="once").status_code == 202
