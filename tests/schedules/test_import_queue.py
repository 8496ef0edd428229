"""The import queue: no calendar is read twice for one reason, organizations take turns, no job is too long."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from accounts import limits
from accounts.models import OrganizationLimits
from dispatch.core.runtime.queues import rq_queue
from dispatch.schedules import ical
from dispatch.schedules.models import BulkImport, ExclusionCalendar, Schedule
from dispatch.schedules.services import bulk_import, calendars
from tests.api.client import Api
from tests.harness.schedules import ANA, World
from tests.schedules.test_calendars import GOOD, Receiver, api, body, day, ics, publish, publisher, work
from tests.support import factories

QUEUE = "dispatch-import-queue"

__all__ = ["api", "publisher"]


def waiting() -> list[tuple[str, int]]:
    """Return the task and the row of each message on the queue, in order."""
    return [(str(job.func_name).rpartition(".")[2], job.args[0]) for job in rq_queue(QUEUE).get_jobs()]


# --- Refreshes of one calendar -----------------------------------------------------------------------------------


def test_requests_while_a_refresh_waits_cause_no_further_one(world: World, api: Api, publisher: Receiver) -> None:
    made = api.post("exclusion-calendars/", {"name": "Public", "url": publisher.url}).json()
    publish(publisher)
    for _ in range(5):
        assert api.post(f"exclusion-calendars/{made['id']}/refresh/").status_code == 202
        world.travel(20)
    work(world)
    assert len(publisher.came) == 1
    assert ExclusionCalendar.objects.get().entries
    api.post(f"exclusion-calendars/{made['id']}/refresh/")
    work(world)
    assert len(publisher.came) == 2


def test_a_refresh_that_waits_long_is_done_once(world: World, api: Api, publisher: Receiver) -> None:
    api.post("exclusion-calendars/", {"name": "Public", "url": publisher.url})
    for _ in range(4):
        world.travel(601)
        calendars.enqueue_due()
    publish(publisher)
    work(world)
    assert len(publisher.came) == 1
    calendar = ExclusionCalendar.objects.get()
    assert calendar.entries
    assert calendar.refresh_at - calendar.refreshed_at > calendars.REFRESH_EVERY / 2


def test_a_new_calendar_is_enqueued_once(api: Api) -> None:
    api.post("exclusion-calendars/", {"name": "Public", "url": "https://example.com/a.ics"})
    calendars.enqueue_due()
    assert len(waiting()) == 1


def test_a_request_during_a_refresh_causes_another_one(
    world: World, api: Api, publisher: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = api.post("exclusion-calendars/", {"name": "Public", "url": publisher.url}).json()
    publish(publisher)
    publish(publisher, ics(day("20270302"), day("20270305")))
    read = ical.read_entries

    def read_slowly(content: str, now: Any) -> Any:
        if content == GOOD:
            for _ in range(2):
                api.post(f"exclusion-calendars/{made['id']}/refresh/")
        return read(content, now)

    monkeypatch.setattr(ical, "read_entries", read_slowly)
    work(world)
    assert len(ExclusionCalendar.objects.get().entries) == 1
    work(world)
    assert len(ExclusionCalendar.objects.get().entries) == 2
    work(world)
    assert len(publisher.came) == 2


def test_a_refresh_whose_worker_died_is_repeated(
    world: World, api: Api, publisher: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.post("exclusion-calendars/", {"name": "Public", "url": publisher.url})
    with monkeypatch.context() as patched:
        patched.setattr(ical, "read_entries", Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            work(world)
    world.travel(calendars.BEGUN_STALLED_AFTER.total_seconds())
    calendars.enqueue_due()
    publish(publisher)
    work(world)
    assert ExclusionCalendar.objects.get().entries


# --- Turns -------------------------------------------------------------------------------------------------------


def import_schedules(api: Api, count: int = 1) -> int:
    answer = api.post("schedule-imports/", {"schedules": [body(name=f"Visit {n}") for n in range(count)]})
    assert answer.status_code == 202, answer.content
    return int(answer.json()["id"])


def test_the_work_of_one_organization_delays_no_other(world: World, api: Api) -> None:
    for number in range(5):
        calendars.create_calendar(
            world.organization.pk, f"C{number}", url=f"https://example.com/{number}.ics", actor=ANA
        )
        import_schedules(api)
    other = World()
    theirs = Api(key=factories.api_key(other.organization))
    calendar = calendars.create_calendar(other.organization.pk, "C", url="https://example.com/c.ics", actor=ANA)
    bulk = import_schedules(theirs)
    order = waiting()
    assert len(order) == 12
    assert order.index(("refresh_calendar", calendar.pk)) <= 1
    assert order.index(("bulk_create", bulk)) <= 3


@pytest.mark.parametrize("how", ["continued", "stalled"])
def test_an_import_that_goes_on_keeps_its_turn(
    world: World, api: Api, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        import_schedules(api)
    theirs = Api(key=factories.api_key(World().organization))
    bulk = import_schedules(theirs)
    rq_queue(QUEUE).empty()
    for number in range(5):
        calendars.create_calendar(
            world.organization.pk, f"C{number}", url=f"https://example.com/{number}.ics", actor=ANA
        )
    if how == "continued":
        monkeypatch.setattr(bulk_import, "SHARE_OF_JOB", 0.0)
        bulk_import.work_import(bulk)
    else:
        world.travel(61)
        BulkImport.objects.exclude(pk=bulk).delete()
        assert bulk_import.enqueue_stalled() == 1
    assert ("bulk_create", bulk) in waiting()[:2]
    assert not Schedule.objects.exists()


# --- Limits ------------------------------------------------------------------------------------------------------


def test_schedules_that_an_import_has_not_created_yet_count(world: World, api: Api) -> None:
    OrganizationLimits.objects.create(organization=world.organization, schedules=5)
    import_schedules(api, 3)
    limits.reset()  # another process, or a minute later
    refused = api.post("schedule-imports/", {"schedules": [body()] * 3})
    assert (refused.status_code, refused.json()["limit"]["used"]) == (422, 3)
    import_schedules(api, 2)
    limits.reset()
    work(world)
    assert Schedule.objects.count() == 5
    assert api.post("schedules/", body()).status_code == 422


def test_refused_rows_and_canceled_imports_do_not_count(world: World, api: Api) -> None:
    OrganizationLimits.objects.create(organization=world.organization, schedules=5)
    assert api.post("schedule-imports/", {"schedules": [body(cron="0")] * 4}).status_code == 202
    work(world)
    limits.reset()
    canceled = import_schedules(api, 4)
    assert api.post(f"schedule-imports/{canceled}/cancel/").status_code == 200
    limits.reset()
    import_schedules(api, 5)


# --- Long work ---------------------------------------------------------------------------------------------------


def test_rows_that_take_longer_than_a_job_are_created_in_several(
    world: World, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_import, "SHARE_OF_PART", -1.0)
    rows = [body(name=f"Visit {number}") for number in range(4)]
    rows[2]["cron"] = "0 9 * *"
    answer = api.post("schedule-imports/", {"schedules": rows})
    bulk = BulkImport.objects.get(pk=answer.json()["id"])
    assert bulk_import.work_part(bulk.pk)
    assert bulk.parts.get().first_row == 1
    work(world)
    found = api.get(f"schedule-imports/{bulk.pk}/").json()
    assert (found["status"], found["created"], found["refused"]) == ("done", 3, 1)
    assert [error["row"] for error in found["row_errors"]] == [2]
    made = Schedule.objects.order_by("bulk_row").values_list("bulk_row", "name")
    assert list(made) == [(0, "Visit 0"), (1, "Visit 1"), (3, "Visit 3")]
    assert not bulk.parts.exists()
