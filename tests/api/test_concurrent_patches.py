"""A PATCH changes only the fields that it names, whatever others have changed since it read the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.db import models, transaction

from accounts.models import User
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core.models import Event
from dispatch.jobs.models import DispatchPolicy, ServiceType
from dispatch.leads.models import Campaign
from dispatch.schedules.services import schedules
from dispatch.technicians.models import Skill
from dispatch.telephony.models import SpendCap
from notifications.models import Preference, Route
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.harness.schedules import ANA, World
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)


class Patch(NamedTuple):
    """A request of one client, and what another changes meanwhile."""

    path: str
    make: Callable[[Any], models.Model]
    sent: dict[str, Any]
    meanwhile: dict[str, Any]


def add_campaign(of: Any) -> Campaign:
    return Campaign.objects.create(
        organization=of, pool=make.pool(of), code="spring", name="Spring", script="Hello."
    )


def add_policy(of: Any) -> DispatchPolicy:
    return DispatchPolicy.objects.create(organization=of, rounds=2, ring_timeout_s=20)


def add_route(of: Any) -> Route:
    return Route.objects.create(organization=of, kind="endpoint.disabled", to="admins")


PATCHES = [
    Patch("service-types", make.service_type, {"expected_minutes": 45}, {"is_active": False}),
    Patch("policies", add_policy, {"rounds": 3}, {"ring_timeout_s": 30}),
    Patch("skills", make.skill, {"name": "Gas fitting"}, {"code": "gas"}),
    Patch("notification-rules", add_route, {"to": "dispatchers"}, {"is_on": False}),
    Patch("campaigns", add_campaign, {"name": "Fall"}, {"is_paused": True}),
    Patch("pools", make.pool, {"concurrency": 7}, {"is_paused": True}),
    Patch("numbers", make.number, {"name": "Front"}, {"is_paused": True}),
]


def patch_meanwhile(of: Any, path: str, sent: dict[str, Any], change: Callable[[], object]) -> Any:
    """Send the PATCH while `change` is not committed yet, and return its response."""
    api, answers = Api(key=make.api_key(of)), []
    with transaction.atomic():
        change()
        other = Elsewhere(lambda: answers.append(api.patch(path, sent)))
        other.wait_for_lock()
    other.finish()
    return answers[0]


@pytest.mark.parametrize("patch", PATCHES, ids=[patch.path for patch in PATCHES])
def test_a_patch_keeps_what_another_changed_meanwhile(patch: Patch) -> None:
    row: Any = patch.make(of := make.organization())
    rows = type(row).objects.filter(pk=row.pk)
    answer = patch_meanwhile(of, f"{patch.path}/{row.pk}/", patch.sent, lambda: rows.update(**patch.meanwhile))
    assert answer.status_code == 200, answer.content
    wanted = {**patch.sent, **patch.meanwhile}
    assert rows.values(*wanted).get() == wanted
    shown = answer.json()
    assert {name: shown[name] for name in wanted} == wanted


def test_a_patch_to_the_value_that_another_has_replaced_sets_it_again() -> None:
    pool = make.pool(of := make.organization(), concurrency=7)
    rows = DispatchPool.objects.filter(pk=pool.pk)
    answer = patch_meanwhile(of, f"pools/{pool.pk}/", {"concurrency": 7}, lambda: rows.update(concurrency=9))
    assert (answer.status_code, rows.get().concurrency) == (200, 7)


def test_a_patch_is_validated_with_what_another_changed_meanwhile() -> None:
    number = make.number(of := make.organization(), max_channels=4)
    rows = OutboundNumber.objects.filter(pk=number.pk)
    sent = {"reserved_for_alerts": 3}
    answer = patch_meanwhile(of, f"numbers/{number.pk}/", sent, lambda: rows.update(max_channels=2))
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "max_channels")
    assert rows.get().reserved_for_alerts == number.reserved_for_alerts


def test_a_patch_of_skills_keeps_the_other_fields() -> None:
    gas = make.skill(of := make.organization(), "gas")
    service = make.service_type(of)
    rows = ServiceType.objects.filter(pk=service.pk)
    sent = {"required_skills": ["gas"]}
    answer = patch_meanwhile(of, f"service-types/{service.pk}/", sent, lambda: rows.update(is_active=False))
    assert (answer.status_code, answer.json()["required_skills"]) == (200, ["gas"])
    assert (rows.get().is_active, list(rows.get().required_skills.all())) == (False, [gas])


def test_a_patch_of_a_row_that_is_deleted_meanwhile_is_404() -> None:
    skill = make.skill(of := make.organization())
    rows = Skill.objects.filter(pk=skill.pk)
    answer = patch_meanwhile(of, f"skills/{skill.pk}/", {"name": "Gas"}, lambda: rows.delete())
    assert answer.status_code == 404
    assert not rows.exists()
    assert not Event.objects.filter(kind="skill.changed").exists()


@pytest.mark.parametrize(
    "sent", [{"max_occurrences": 5}, {"name": "New"}, {"payload": {"url": "https://x.example/"}}]
)
def test_a_patch_of_a_schedule_keeps_the_timing_that_another_saved_meanwhile(sent: dict[str, Any]) -> None:
    world = World()
    schedule = world.schedule(cron="0 9 * * *", kind="http", payload={"url": "https://example.com/hook"})

    def change() -> None:
        schedules.change_schedule(schedule.pk, {"cron": "0 17 * * *"}, actor=ANA)

    answer = patch_meanwhile(world.organization, f"schedules/{schedule.pk}/", sent, change)
    assert answer.status_code == 200, answer.content
    found = world.again(schedule)
    assert (found.cron, {name: getattr(found, name) for name in sent}) == ("0 17 * * *", sent)
    fields = Event.objects.filter(kind="schedule.changed").last().data["fields"]
    assert fields == list(sent)


def test_a_payload_is_validated_for_the_kind_that_the_schedule_has_by_now() -> None:
    world = World()
    schedule = world.schedule(cron="0 9 * * *", kind="http", payload={"url": "https://example.com/hook"})
    make.service_type(world.organization, "plumbing")
    visit = {"kind": "submission", "payload": make.form("plumbing")}
    sent = {"payload": {"url": "https://example.com/other"}}
    answer = patch_meanwhile(
        world.organization,
        f"schedules/{schedule.pk}/",
        sent,
        lambda: schedules.change_schedule(schedule.pk, visit, actor=ANA),
    )
    assert answer.status_code == 400
    assert (world.again(schedule).kind, world.again(schedule).payload) == (visit["kind"], visit["payload"])


def test_a_patch_of_the_spending_cap_keeps_what_another_changed_meanwhile() -> None:
    of = make.organization()
    cap = SpendCap.objects.create(organization=of, amount=100, currency="USD")
    rows = SpendCap.objects.filter(pk=cap.pk)
    answer = patch_meanwhile(of, "spend-cap/", {"amount": "100"}, lambda: rows.update(amount=50))
    assert (answer.status_code, rows.get().amount) == (200, 100)


def test_a_patch_of_a_preference_keeps_what_another_changed_meanwhile() -> None:
    ann: User = make.dispatcher(of := make.organization())
    path = "notification-preferences/job.pending/"
    own = Preference.objects.filter(user=ann, kind="job.pending")
    mine, answers = Api(user=ann), []
    assert mine.patch(path, {"sms": True}).status_code == 200
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=ann.pk)
        other = Elsewhere(lambda: answers.append(mine.patch(path, {"voice": False})))
        other.wait_for_lock()
        own.update(sms=False)
    other.finish()
    assert answers[0].status_code == 200
    assert (own.get().sms, own.get().voice, own.get().organization_id) == (False, False, of.pk)
