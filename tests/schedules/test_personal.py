"""What schedules keep of a person is handed out, and taken away when they have ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatch.core import clock, personal
from dispatch.core.models import Event
from dispatch.core.personal import Person, StillNeeded
from dispatch.schedules.kinds.base import Outcome
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.rules.outcomes import FAILED, SUCCEEDED
from dispatch.schedules.services import managing
from tests.schedules.world import ANA, World

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
    dana = Person(world.organization.pk, phone=DANA)
    found = personal.export(dana, actor=ANA)
    assert [row["id"] for row in found["schedules"]] == [one.pk]
    assert found["runs"][0]["result"] == {"answer": "Thank you, Dana Whitfield"}
    with pytest.raises(StillNeeded, match=f"Schedule {one.pk} is still to run: delete it first"):
        personal.erase(dana, actor=ANA)
    managing.delete(one.pk, actor=ANA)
    assert personal.erase(dana, actor=ANA)["schedules"] == 1
    left = everything(world)
    for word in ("Whitfield", "Elm Street", written):
        assert word not in left
    assert world.again(one).name == "erased"
    assert world.again(other).payload == {"customer_phone": "602-555-0199"}
    assert personal.erase(dana, actor=ANA) == {}


def test_another_country_with_the_same_digits_is_somebody_else(world: World) -> None:
    world.schedule(payload={"phone": "+496025550123"}, every=1, unit="day")
    assert "schedules" not in personal.export(Person(world.organization.pk, phone=DANA), actor=ANA)


def test_what_still_runs_is_told(world: World) -> None:
    world.note.answers = [Outcome(FAILED)]
    one = world.schedule(payload={"phone": DANA}, trigger_at=clock.now())
    world.go()
    assert world.again(one).status == "ended"
    run = world.run(one)
    assert run.status == "retrying"
    with pytest.raises(StillNeeded, match=f"Run {run.pk} has not ended"):
        personal.erase(Person(world.organization.pk, phone=DANA), actor=ANA)
