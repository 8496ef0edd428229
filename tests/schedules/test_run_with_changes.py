"""Run now with another payload: validated like the schedule's, shown on the run, and for that run only."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.models import ApiKey
from dispatch.core import clock
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject, StillNeeded
from dispatch.jobs.models import Submission
from dispatch.schedules.kinds.base import Outcome
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.rules.outcomes import FAILED
from dispatch.schedules.services import schedules
from tests.api.client import Api
from tests.harness.schedules import ANA, World
from tests.support import factories

BACKEND = "django.contrib.auth.backends.ModelBackend"
DANA = "+16025550123"


@pytest.fixture
def visit(real: World) -> Schedule:
    factories.service_type(real.organization, "maintenance")
    return real.schedule(
        kind="submission", payload=factories.form("maintenance", notes="As usual."), cron="0 9 * * *"
    )


def run_now(api: Api, schedule: Schedule, **body: Any) -> Any:
    return api.post(f"schedules/{schedule.pk}/run-now/", body)


def test_changed_payload_is_used_once_and_shown(real: World, visit: Schedule) -> None:
    api = Api(key=factories.api_key(real.organization))
    changed = {**visit.payload, "notes": "Bring the long ladder."}
    made = run_now(api, visit, payload=changed, note="For Dana")
    assert made.status_code == 202, made.content
    assert made.json()["has_own_payload"] is True
    assert run_now(api, visit).json()["has_own_payload"] is False
    real.go()
    assert list(Submission.objects.order_by("pk").values_list("notes", flat=True)) == [
        "Bring the long ladder.", "As usual.",
    ]  # fmt: skip
    assert api.get(f"runs/{made.json()['id']}/").json()["payload"] == changed
    visit.refresh_from_db()
    assert visit.payload["notes"] == "As usual."
    assert (visit.version, visit.occurrences) == (1, 1)


def test_retry_uses_the_changed_payload(world: World) -> None:
    schedule = world.schedule(cron="0 9 * * *", payload={"n": 1}, retry_schedule_s=[10])
    world.note.answers = [Outcome(FAILED)]
    schedules.run_now(schedule.pk, actor=ANA, payload={"n": 2}, kind="http")
    world.go()
    world.travel(11)
    world.go()
    assert [one.payload for one in world.note.done] == [{"n": 2}, {"n": 2}]


def test_payload_is_validated_like_the_schedules(real: World, visit: Schedule) -> None:
    api = Api(key=factories.api_key(real.organization))
    for field, value in (("service_type", "plumbing"), ("surprise", 1)):
        answer = run_now(api, visit, payload={**visit.payload, field: value})
        assert answer.status_code == 400
        assert [error["field"] for error in answer.json()["errors"]] == [f"payload.{field}"]
    assert run_now(api, visit, payload="none").status_code == 400
    assert not Run.objects.filter(number=None).exists()


def test_another_payload_needs_the_scope_of_its_kind(real: World, visit: Schedule) -> None:
    key = factories.api_key(real.organization, ApiKey.Scope.SCHEDULES, ApiKey.Scope.READ)
    answer = run_now(Api(key=key), visit, payload=visit.payload)
    assert answer.status_code == 400
    assert "Also requires the scope" in answer.json()["errors"][0]["detail"]
    assert run_now(Api(key=key), visit).status_code == 202


def test_same_key_with_another_payload_is_rejected(real: World, visit: Schedule) -> None:
    api = Api(key=factories.api_key(real.organization))
    path, headers = f"schedules/{visit.pk}/run-now/", {"Idempotency_Key": "once"}
    first = api.post(path, {"payload": visit.payload}, **headers)
    assert api.post(path, {"payload": visit.payload}, **headers).json() == first.json()
    other = api.post(path, {"payload": {**visit.payload, "notes": "x"}}, **headers)
    assert other.status_code in (409, 422)
    assert Run.objects.filter(number=None).count() == 1


def test_run_with_its_own_payload_keeps_its_kind(world: World) -> None:
    """A payload of one kind must not reach the workers of another."""
    schedule = world.schedule(cron="0 9 * * *")
    own = schedules.run_now(schedule.pk, actor=ANA, payload={"url": "https://example.com/2"}, kind="http")
    other = schedules.run_now(schedule.pk, actor=ANA)
    changed = {"kind": "message", "payload": {"endpoint": "ERP", "type": "a", "payload": {}}}
    schedules.change_schedule(schedule.pk, changed, actor=ANA)
    kinds = dict(Run.objects.values_list("pk", "kind"))
    assert (kinds[own.pk], kinds[other.pk]) == ("http", "message")
    with pytest.raises(schedules.Conflict, match="kind of this schedule has changed"):
        schedules.run_now(schedule.pk, actor=ANA, payload={"url": "https://example.com/3"}, kind="http")


def test_personal_data_in_a_changed_payload_is_exported_and_erased(world: World) -> None:
    schedule = world.schedule(cron="0 9 * * *", payload={"phone": "+16025550199"}, name="Weekly")
    person = DataSubject(world.organization.pk, phone=DANA)
    run = schedules.run_now(schedule.pk, actor=ANA, payload={"phone": "(602) 555-0123"}, kind="http")
    with pytest.raises(StillNeeded, match=f"Run {run.pk} has not ended"):
        personal_data.erase_person(person, actor=ANA)
    world.go()
    exported = personal_data.export_person(person, actor=ANA)
    assert [row["id"] for row in exported["runs"]] == [run.pk]
    personal_data.erase_person(person, actor=ANA)
    run.refresh_from_db()
    assert (run.payload, run.result) == ({}, None)
    schedule.refresh_from_db()
    assert schedule.payload == {"phone": "+16025550199"}


def test_the_page_runs_with_changed_values(real: World, visit: Schedule, client: Client) -> None:
    client.force_login(factories.dispatcher(real.organization, "Dora"), backend=BACKEND)
    address = f"/schedules/{visit.pk}/run/"
    page = client.get(address).content.decode()
    assert "As usual." in page
    entered = {
        f"p-{name}": str(visit.payload[name])
        for name in ("customer_name", "customer_phone", "service_type", "address")
    }
    wrong = client.post(address, {**entered, "p-customer_phone": "12", "p-notes": "x"})
    assert wrong.status_code == 422
    assert "Not queued." in wrong.content.decode()
    answer = client.post(address, {**entered, "p-notes": "Ring twice.", "note": "Asked by phone", "version": "1"})
    run = Run.objects.get(number=None)
    assert answer["Location"].endswith(f"/schedules/runs/{run.pk}/")
    assert run.payload["notes"] == "Ring twice."
    assert "Ring twice." in client.get(f"/schedules/runs/{run.pk}/").content.decode()
    assert (
        "requested a run now with another payload: Asked by phone"
        in client.get(f"/schedules/{visit.pk}/").content.decode()
    )
    assert client.post(address, {**entered, "version": "9"}).status_code == 409


def test_the_page_of_another_organization_is_not_found(real: World, visit: Schedule, client: Client) -> None:
    client.force_login(factories.dispatcher(factories.organization("Other"), "Dora"), backend=BACKEND)
    assert client.post(f"/schedules/{visit.pk}/run/", {}).status_code == 404
    assert clock.now()
