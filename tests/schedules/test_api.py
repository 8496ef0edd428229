"""The API of schedules, runs and bulk imports."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatch.core import clock, fault_injection
from dispatch.core.api.serializers import MAX_LATEST
from dispatch.core.events import SYSTEM
from dispatch.schedules.api.bulk import ImportParser
from dispatch.schedules.models import BulkImport, Run, RunReport, Schedule
from dispatch.schedules.services import bulk_import, concurrency_limits
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.harness.schedules import World
from tests.support import factories
from tests.support.waiting import PATIENCE

HTTP = {"url": "https://example.com/hook"}


@pytest.fixture
def api(world: World) -> Api:
    return Api(key=factories.api_key(world.organization))


def body(**fields: Any) -> dict[str, Any]:
    return {"name": "Visit", "kind": "http", "payload": HTTP, "cron": "0 9 * * MON#1", **fields}


def made(api: Api, **fields: Any) -> dict[str, Any]:
    answer = api.post("schedules/", body(**fields))
    assert answer.status_code == 201, answer.content
    return answer.json()


def refusal(answer: Any) -> dict[str, str]:
    assert answer.status_code == 400, answer.content
    return {str(error["field"]): error["detail"] for error in answer.json()["errors"]}


def test_a_schedule_is_made_and_read(api: Api, world: World) -> None:
    world.travel_to("2026-12-02 00:00")
    answer = api.post("schedules/", body(time_zone="America/New_York", headers={"X-Key": "s3cret"}))
    assert answer.status_code == 201
    found = answer.json()
    assert answer["Location"].endswith(f"/api/v1/schedules/{found['id']}/")
    assert answer["ETag"] == '"1"'
    assert found["status"] == "active"
    assert found["when"] == "At 09:00 on the first Monday of the month (America/New_York)"
    assert found["summary"] == "note"
    assert found["header_names"] == ["X-Key"]
    assert "s3cret" not in answer.content.decode()
    assert found["next_at"] == "2026-12-07T14:00:00Z"
    assert [one["words"] for one in found["next"]][:2] == [
        "Mon, Dec 7, 2026, 09:00 EST",
        "Mon, Jan 4, 2027, 09:00 EST",
    ]
    assert len(found["next"]) == 10
    again = api.get(f"schedules/{found['id']}/")
    assert again.json()["runs"][0]["status"] == "scheduled"


def test_the_same_key_makes_one_schedule(api: Api) -> None:
    first = api.post("schedules/", body(), Idempotency_Key="abc")
    second = api.post("schedules/", body(), Idempotency_Key="abc")
    assert first.content == second.content, "byte for byte"
    assert second["Idempotency-Replayed"] == "true"
    assert Schedule.objects.count() == 1
    assert api.post("schedules/", body(name="Other"), Idempotency_Key="abc").status_code == 422


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"cron": ""}, "trigger_at"),
        ({"every": 5, "unit": "day"}, "trigger_at"),
        ({"cron": "0 9 * *"}, "cron"),
        ({"cron": None}, "cron"),
        ({"cron": "", "every": 5}, "unit"),
        ({"cron": "", "every": 5, "unit": "second"}, "every"),
        ({"cron": "", "trigger_at": "2020-01-01T00:00"}, "trigger_at"),
        ({"cron": "", "trigger_at": "2099-01-01T00:00", "max_occurrences": 2}, "max_occurrences"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"ends_at": "2020-01-01T00:00Z"}, "cron"),
        ({"kind": "dance"}, "kind"),
        ({"payload": [1]}, "payload"),
        ({"missed": "some"}, "missed"),
        ({"overlap": "maybe"}, "overlap"),
        ({"retry_schedule_s": [-1]}, "retry_schedule_s.0"),
        ({"name": ""}, "name"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_invalid_values_are_reported_with_their_field(api: Api, fields: dict[str, Any], wrong: str) -> None:
    assert wrong in refusal(api.post("schedules/", body(**fields)))
    assert not Schedule.objects.exists()


@pytest.mark.django_db
def test_a_payload_is_checked_as_the_kinds_own_api(transactional_db: None) -> None:
    organization = factories.organization()
    api = Api(key=factories.api_key(organization))
    found = refusal(api.post("schedules/", body(kind="submission", payload={"customer_name": "Dana"})))
    assert {"payload.customer_phone", "payload.service_type"} <= set(found)


def test_a_time_without_an_offset_is_the_zones_own(api: Api, world: World) -> None:
    world.travel_to("2026-12-02 00:00")
    found = made(api, cron="", trigger_at="2027-07-01T09:00", time_zone="America/New_York")
    assert found["next_at"] == "2027-07-01T13:00:00Z"
    found = made(api, cron="", trigger_at="2027-07-01T09:00Z", time_zone="America/New_York")
    assert found["next_at"] == "2027-07-01T09:00:00Z"
    found = made(api, cron="", trigger_at="2027-03-14T02:30", time_zone="America/New_York")  # does not exist
    assert found["next_at"] == "2027-03-14T07:00:00Z"


def test_a_start_alone_is_a_trigger_time_and_with_an_interval_its_anchor(api: Api, world: World) -> None:
    world.travel_to("2026-12-02 00:00")
    assert made(api, cron="", starts_at="2027-01-31T09:00Z")["trigger_at"] == "2027-01-31T09:00:00Z"
    found = made(api, cron="", every=1, unit="month", starts_at="2027-01-31T09:00Z", time_zone="UTC")
    assert [one["at"][:10] for one in found["next"]][:3] == ["2027-01-31", "2027-02-28", "2027-03-31"]


def test_a_limit_leaves_the_time_of_day(api: Api, world: World) -> None:
    world.travel_to("2027-03-01 16:00")
    found = made(api, cron="", every=1, unit="day")
    world.travel_to("2027-03-01 22:20")
    for change in ({"ends_at": "2027-06-01T00:00Z"}, {"max_occurrences": 30}):
        answer = api.patch(f"schedules/{found['id']}/", change)
        assert answer.status_code == 200, answer.content
        assert "09:00" in answer.json()["when"]
        assert answer.json()["next"][0]["words"] == found["next"][0]["words"]


def test_a_preview_makes_nothing(api: Api, world: World) -> None:
    world.travel_to("2027-03-13 00:00")
    answer = api.post("schedules/preview/", {"cron": "30 2 * * *", "time_zone": "America/New_York"})
    assert answer.status_code == 200
    assert answer.json()["words"] == "At 02:30 every day (America/New_York)"
    found = answer.json()["next"]
    assert len(found) == 10
    assert (found[1]["words"], found[1]["moved"]) == ("Sun, Mar 14, 2027, 03:00 EDT", True)
    assert not Schedule.objects.exists()
    assert "cron" in refusal(api.post("schedules/preview/", {"cron": "every day"}))


def test_a_change_and_the_version_it_was_decided_on(api: Api) -> None:
    found = made(api)
    at = f"schedules/{found['id']}/"
    answer = api.patch(at, {"name": "Other", "cron": "0 10 * * *"}, If_Match='"1"')
    assert answer.status_code == 200
    assert (answer.json()["name"], answer.json()["version"], answer["ETag"]) == ("Other", 2, '"2"')
    late = api.patch(at, {"name": "Third"}, If_Match='"1"')
    assert late.status_code == 409
    assert late.json()["conflict"]["version"] == 2
    assert api.patch(at, {"every": 2, "unit": "day"}).json()["cron"] == ""
    assert "unit" in refusal(api.patch(at, {"unit": ""}))
    assert "payload" in refusal(api.patch(at, {"payload": 5}))


def add_reports(run: int, count: int) -> None:
    """Add reports as of a run that its receiver defers again and again."""
    organization = Run.objects.get(pk=run).organization
    RunReport.objects.bulk_create(
        RunReport(
            organization=organization, run_id=run, epoch=1000 + number, attempt=1, outcome="deferred",
            ended_at=clock.now(),
        )
        for number in range(count)
    )  # fmt: skip


def test_pause_resume_run_now_delete(api: Api, world: World) -> None:
    found = made(api)
    at = f"schedules/{found['id']}/"
    assert api.post(at + "pause/", {"note": "holiday"}).json()["status"] == "paused"
    assert api.get(at).json()["next"] == []
    assert api.post(at + "resume/").json()["status"] == "active"
    first = api.post(at + "run-now/", Idempotency_Key="k")
    second = api.post(at + "run-now/", Idempotency_Key="k")
    assert first.status_code == 202
    assert first.json()["id"] == second.json()["id"]
    world.go()
    run = api.get(f"runs/{first.json()['id']}/").json()
    assert run["status"] == "succeeded"
    assert [entry["kind"] for entry in run["log"]] == ["run.in_progress", "run.running", "run.succeeded"]
    assert run["reports"][0]["outcome"] == "succeeded"
    add_reports(run["id"], MAX_LATEST)
    shown = api.get(f"runs/{run['id']}/").json()["reports"]
    assert (len(shown), shown[0]["outcome"]) == (MAX_LATEST, "deferred"), "the last ones, oldest first"
    assert api.delete(at).status_code == 204
    assert api.delete(at).status_code == 204
    assert api.get(at).json()["status"] == "deleted"
    assert api.get("schedules/").json()["results"] == []
    assert len(api.get("schedules/?status=deleted").json()["results"]) == 1
    assert api.post(at + "pause/").status_code == 409


def test_lists_and_their_filters(api: Api, world: World) -> None:
    soon = made(api, name="Soon", cron="", trigger_at=(clock.now() + timedelta(minutes=1)).isoformat())
    later = made(api, name="Later")
    ids = {one["id"] for one in api.get("schedules/").json()["results"]}
    assert ids == {soon["id"], later["id"]}
    assert [one["name"] for one in api.get("schedules/?name=soo").json()["results"]] == ["Soon"]
    until = (clock.now() + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert [one["name"] for one in api.get(f"schedules/?next_before={until}").json()["results"]] == ["Soon"]
    assert api.get("schedules/?failing=true").json()["results"] == []
    assert api.get("schedules/?kind=message").json()["results"] == []
    assert len(api.get(f"runs/?schedule={soon['id']}").json()["results"]) == 1
    assert len(api.get("runs/?status=scheduled&status=failed").json()["results"]) == 2
    assert len(api.get(f"runs/?trigger_before={until}").json()["results"]) == 1
    assert api.get("runs/?schedule=999999").status_code == 400


def test_a_run_is_cancelled_and_tried_again(api: Api, world: World) -> None:
    from dispatch.schedules.kinds.base import Outcome

    found = made(api, cron="", trigger_at=clock.now().isoformat(), retry_schedule_s=[])
    world.note.answers = [Outcome("failed", error="x")]
    world.go()
    run = Run.objects.get(schedule=found["id"])
    answer = api.post(f"runs/{run.pk}/retry/", {"note": "mended"})
    assert answer.json()["status"] == "retrying"
    assert api.post(f"runs/{run.pk}/cancel/").json()["status"] == "cancelled"
    assert api.post(f"runs/{run.pk}/cancel/").status_code == 409


def test_key_needs_the_scope_of_the_scheduled_work(world: World) -> None:
    bare = Api(key=factories.api_key(world.organization, "schedules:write", "read"))
    assert "kind" in refusal(bare.post("schedules/", body()))
    full = Api(key=factories.api_key(world.organization, "schedules:write", "messages:write"))
    found = made(full)
    assert "kind" in refusal(bare.patch(f"schedules/{found['id']}/", {"payload": HTTP}))
    assert "kind" in refusal(bare.patch(f"schedules/{found['id']}/", {"headers": {"X": "y"}}))
    assert bare.patch(f"schedules/{found['id']}/", {"name": "Renamed"}).status_code == 200
    assert Api(key=factories.api_key(world.organization, "read")).post("schedules/", body()).status_code == 403


# --- Bulk import
# -----------------------------------------------------------------------------------------------------


def work_bulk(world: World) -> None:
    from django.conf import settings

    for message in world.messages(settings.SCHEDULE_IMPORT_QUEUE):
        message.deliver()


def test_many_schedules_are_created_by_a_worker_with_progress_and_refusals(
    api: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_import, "PART", 40)
    rows = [{"name": f"Visit {n}"} for n in range(100)]
    rows[7] = {"name": ""}
    rows[93] = {"name": "x", "cron": "never"}
    answer = api.post(
        "schedule-imports/",
        {"defaults": {"kind": "http", "payload": HTTP, "cron": "0 9 * * *"}, "schedules": rows},
        Idempotency_Key="bulk",
    )
    assert answer.status_code == 202
    at = f"schedule-imports/{answer.json()['id']}/"
    assert (answer.json()["status"], answer.json()["total"]) == ("received", 100)
    assert bulk_import.work_part(answer.json()["id"])
    assert (api.get(at).json()["status"], api.get(at).json()["created"]) == ("running", 39)
    work_bulk(world)
    found = api.get(at).json()
    assert (found["status"], found["created"], found["refused"]) == ("done", 98, 2)
    assert [(one["row"], one["errors"][0]["field"]) for one in found["row_errors"]] == [(7, "name"), (93, "cron")]
    assert Schedule.objects.count() == 98
    assert Run.objects.filter(status="scheduled").count() == 98
    assert Schedule.objects.order_by("-bulk_row").first().name == "Visit 99"
    assert len(api.get(f"schedules/?bulk={answer.json()['id']}&page_size=200").json()["results"]) == 98


def test_canceling_an_import_waits_for_the_part_that_a_worker_creates(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_import, "PART", 2)
    rows = [body(name=f"Visit {n}") for n in range(6)]
    at = f"schedule-imports/{api.post('schedule-imports/', {'schedules': rows}).json()['id']}/"
    bulk_id = BulkImport.objects.get().pk
    cancels: list[Elsewhere] = []

    def cancel() -> None:
        cancels.append(Elsewhere(lambda: bulk_import.cancel_import(bulk_id, actor=SYSTEM)))
        cancels[0].wait_for_lock()

    with fault_injection.arm_crash_point("schedules.bulk.before_commit", cancel):
        assert bulk_import.work_part(bulk_id)
    cancels[0].finish()
    assert not bulk_import.work_part(bulk_id)
    found = api.get(at).json()
    assert (found["status"], found["created"], Schedule.objects.count()) == ("cancelled", 2, 2)


def test_canceling_an_import_leaves_its_workers_no_other_part(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_import, "PART", 1)
    rows = [body(name=f"Visit {n}") for n in range(6)]
    at = f"schedule-imports/{api.post('schedule-imports/', {'schedules': rows}).json()['id']}/"
    bulk_id = BulkImport.objects.get().pk
    others: list[Elsewhere] = []
    is_working, may_end = threading.Event(), threading.Event()

    def act() -> None:
        if others:  # the second worker, which works longer
            is_working.set()
            assert may_end.wait(PATIENCE)
            return
        others.append(Elsewhere(lambda: bulk_import.work_part(bulk_id)))
        assert is_working.wait(PATIENCE)
        others.append(Elsewhere(lambda: bulk_import.cancel_import(bulk_id, actor=SYSTEM)))
        others[1].wait_for_lock()

    with fault_injection.arm_crash_point("schedules.bulk.before_commit", act):
        assert bulk_import.work_part(bulk_id)
        others[1].wait_for_lock()
        assert not bulk_import.work_part(bulk_id)
        may_end.set()
        for other in others:
            other.finish()
    found = api.get(at).json()
    assert (found["status"], found["created"], Schedule.objects.count()) == ("cancelled", 2, 2)


def test_the_second_cancellation_of_an_import_is_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_import, "PART", 1)
    rows = [body(name=f"Visit {n}") for n in range(3)]
    api.post("schedule-imports/", {"schedules": rows})
    bulk_id = BulkImport.objects.get().pk
    cancels: list[Elsewhere] = []

    def cancel() -> None:
        for _ in range(2):
            cancels.append(Elsewhere(lambda: bulk_import.cancel_import(bulk_id, actor=SYSTEM)))
            cancels[-1].wait_for_lock()
        raise fault_injection.Interrupted

    with (
        fault_injection.arm_crash_point("schedules.bulk.before_commit", cancel),
        pytest.raises(fault_injection.Interrupted),
    ):
        bulk_import.work_part(bulk_id)
    cancels[0].finish()
    with pytest.raises(bulk_import.NotInThisStatus):
        cancels[1].finish()
    assert (BulkImport.objects.get().status, Schedule.objects.count()) == ("cancelled", 0)


def test_rows_of_an_import_that_name_the_same_key_look_it_up_once(
    api: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_import, "PART", 20)
    concurrency_limits.create_limit(world.organization.pk, "reports", 2, actor=SYSTEM)
    stranger = factories.organization()
    concurrency_limits.create_limit(stranger.pk, "theirs", 2, actor=SYSTEM)
    rows = [{"name": f"Visit {n}", "concurrency_key": "theirs" if n % 4 == 3 else "reports"} for n in range(20)]
    answer = api.post(
        "schedule-imports/",
        {"defaults": {"kind": "http", "payload": HTTP, "cron": "0 9 * * *"}, "schedules": rows},
    )
    with CaptureQueriesContext(connection) as asked:
        bulk_import.work_part(answer.json()["id"])
    looked_up = [query for query in asked.captured_queries if 'concurrencylimit"."key" =' in query["sql"]]
    assert len(looked_up) == 2
    found = api.get(f"schedule-imports/{answer.json()['id']}/").json()
    assert (found["created"], found["refused"]) == (15, 5)
    assert {one["errors"][0]["field"] for one in found["row_errors"]} == {"concurrency_key"}
    assert all("theirs" in one["errors"][0]["detail"] for one in found["row_errors"])


def test_killed_bulk_import_resumes_without_duplicates(
    api: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dispatch.core import fault_injection

    monkeypatch.setattr(bulk_import, "PART", 10)
    rows = [body(name=f"Visit {n}") for n in range(35)]
    answer = api.post("schedule-imports/", {"schedules": rows})
    for point in ("schedules.bulk.before_commit", "schedules.bulk.committed"):
        with fault_injection.arm_crash_point(point), pytest.raises(fault_injection.Interrupted):
            work_bulk(world)
        assert bulk_import.enqueue_stalled() == 0
        world.travel(61)
        assert bulk_import.enqueue_stalled() == 1
    work_bulk(world)
    found = BulkImport.objects.get(pk=answer.json()["id"])
    assert (found.status, found.created) == ("done", 35)
    assert sorted(Schedule.objects.values_list("bulk_row", flat=True)) == list(range(35))


def test_a_bulk_creation_is_cancelled_and_keeps_what_it_made(
    api: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_import, "PART", 10)
    answer = api.post("schedule-imports/", {"schedules": [body(name=f"V{n}") for n in range(30)]})
    bulk_import.work_part(answer.json()["id"])
    assert api.post(f"schedule-imports/{answer.json()['id']}/cancel/").json()["status"] == "cancelled"
    work_bulk(world)
    assert Schedule.objects.count() == 10
    assert api.post(f"schedule-imports/{answer.json()['id']}/cancel/").status_code == 409


def test_bulk_creation_uses_the_scopes_of_the_caller(world: World) -> None:
    bare = Api(key=factories.api_key(world.organization, "schedules:write", "read"))
    answer = bare.post("schedule-imports/", {"schedules": [body()]})
    work_bulk(world)
    found = bare.get(f"schedule-imports/{answer.json()['id']}/").json()
    assert found["refused"] == 1
    assert found["row_errors"][0]["errors"][0]["field"] == "kind"


def test_bulk_limit_is_enforced_with_a_clear_error(
    api: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"name": f"Visit {n}", "payload": {"url": "https://example.com", "body": "x" * 200_000}} for n in range(20)
    ]
    body = {"defaults": {"kind": "http", "cron": "0 9 * * *"}, "schedules": rows}  # 4 MB
    made = api.post("schedule-imports/", body)
    assert made.status_code == 202
    work_bulk(world)
    assert api.get(f"schedule-imports/{made.json()['id']}/").json()["created"] == 20
    monkeypatch.setattr(ImportParser, "limit", 2**20)
    answer = api.post("schedule-imports/", body)
    assert answer.status_code == 413
    assert "The maximum is 1 MiB." in answer.json()["detail"]
    # other routes still reject a body of that size
    assert api.post("schedules/preview/", {"cron": "0 9 * * *", "x": "y" * 4_000_000}).status_code == 413


def test_too_many_or_none_are_refused(api: Api) -> None:
    assert "schedules" in refusal(api.post("schedule-imports/", {"schedules": []}))
    assert "schedules" in refusal(api.post("schedule-imports/", {"schedules": [{"name": "x" * 40}] * 100_001}))


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"])
@pytest.mark.parametrize("field", ["starts_at", "ends_at", "trigger_at"])
def test_a_moment_outside_of_all_years_is_refused(api: Api, field: str, moment: str) -> None:
    when = {} if field == "trigger_at" else {"every": 1, "unit": "days"}
    answer = api.post("schedules/preview/", {**when, "time_zone": "UTC", field: moment})
    assert answer.status_code == 400
