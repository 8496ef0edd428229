"""Personal data of schedules is exported, and erased once they have ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject, StillNeeded
from dispatch.schedules.kinds.base import Outcome
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.rules.outcomes import FAILED, SUCCEEDED
from dispatch.schedules.services import schedules
from tests.harness.schedules import ANA, World

DANA = "+16025550123"
VISIT = {"customer_name": "Dana Whitfield", "address": "9 Elm Street"}
WRITTEN = (DANA, "(602) 555-0123", "1 602 555 0123", "011 1 602 555 0123")


def everything(world: World) -> str:
    rows: list[Any] = list(Schedule.objects.values("name", "payload"))
    rows += Run.objects.values("result", "error", "reports__result", "reports__error")
    rows += Event.objects.filter(subject_type__in=("schedule", "run")).values("data")
    return json.dumps(rows)


@pytest.mark.parametrize("written", WRITTEN)
def test_a_customer_is_found_however_the_phone_was_written(world: World, written: str) -> None:
    world.note.answers = [Outcome(SUCCEEDED, {"answer": "Thank you, Dana Whitfield"})]
    one = world.schedule(
        "Boiler, Dana Whitfield", every=1, unit="day", payload={**VISIT, "customer_phone": written}
    )
    other = world.schedule("Boiler, Copper Hotel", every=1, unit="day", payload={"customer_phone": "602-555-0199"})
    world.travel(86_400)
    world.go()
    dana = DataSubject(world.organization.pk, phone=DANA)
    found = personal_data.export_person(dana, actor=ANA)
    assert [row["id"] for row in found["schedules"]] == [one.pk]
    assert found["runs"][0]["result"] == {"answer": "Thank you, Dana Whitfield"}
    with pytest.raises(StillNeeded, match=f"Schedule {one.pk} still has runs to come. Delete it first"):
        personal_data.erase_person(dana, actor=ANA)
    schedules.delete_schedule(one.pk, actor=ANA)
    assert personal_data.erase_person(dana, actor=ANA)["schedules"] == 1
    left = everything(world)
    for word in ("Whitfield", "Elm Street", written):
        assert word not in left
    assert world.again(one).name == "erased"
    assert world.again(other).payload == {"customer_phone": "602-555-0199"}
    assert personal_data.erase_person(dana, actor=ANA) == {}


def test_another_country_with_the_same_digits_is_somebody_else(world: World) -> None:
    world.schedule(payload={"phone": "+496025550123"}, every=1, unit="day")
    assert "schedules" not in personal_data.export_person(
        DataSubject(world.organization.pk, phone=DANA), actor=ANA
    )


def test_retrying_run_prevents_erasure(world: World) -> None:
    world.note.answers = [Outcome(FAILED)]
    one = world.schedule(payload={"phone": DANA}, trigger_at=clock.now())
    world.go()
    assert world.again(one).status == "ended"
    run = world.run(one)
    assert run.status == "retrying"
    with pytest.raises(StillNeeded, match=f"Run {run.pk} has not ended"):
        personal_data.erase_person(DataSubject(world.organization.pk, phone=DANA), actor=ANA)
