"""Concurrency limits in the API and on pages: their use, their changes and who may edit them."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from accounts.models import Organization
from dispatch.core.api.problems import Conflict
from dispatch.core.models import Event
from dispatch.schedules.admin import concurrency_limits as limits_admin
from dispatch.schedules.models import ConcurrencyLimit, Schedule
from dispatch.schedules.services import concurrency_limits, schedules
from tests.api.client import Api
from tests.harness.schedules import ANA, World
from tests.schedules.concurrency import due, limited, limits_hold, run_of, two
from tests.support import factories

__all__ = ["limits_hold", "two"]
LIMITS_PAGE = "/admin/schedules/concurrencylimit/"


def test_a_waiting_run_says_why_in_api_and_page(world: World) -> None:
    one = limited(world, 1)
    made = due(world, 2, one)
    world.execute()
    waiting = run_of(made[1])
    member = factories.admin(world.organization)
    api = Api(user=member)
    reason = "Waiting for a slot of the key reports: 1 of 1 in use."
    seen = api.get(f"runs/{waiting.pk}/").json()
    assert [seen[name] for name in ("waiting_for", "waiting_reason", "concurrency_key")] == [
        "concurrency", reason, "reports",
    ]  # fmt: skip
    assert "waits for a slot of the key reports" in seen["log"][-1]["text"]
    assert [row["waiting_reason"] for row in api.get("runs/").json()["results"]] == [reason, ""]
    pages = Client()
    pages.force_login(member, backend="django.contrib.auth.backends.ModelBackend")
    assert reason in pages.get(f"/schedules/runs/{waiting.pk}/").content.decode()
    assert reason in pages.get(f"/admin/schedules/run/{waiting.pk}/change/").content.decode()
    shown = pages.get(f"/admin/schedules/concurrencylimit/{one.pk}/change/").content.decode()
    assert "1 running, 1 waiting" in shown


def test_admin_list_reads_the_use_of_all_limits_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = limited(world, 1)
    limited(world, 3, "invoices")
    due(world, 2, one)
    world.execute()
    read = Mock(wraps=limits_admin.read_use)
    monkeypatch.setattr(limits_admin, "read_use", read)
    browser = factories.browser(factories.admin(world.organization))
    page = browser.get("/admin/schedules/concurrencylimit/").content.decode()
    assert "1 running, 1 waiting" in page
    assert "0 running, 0 waiting" in page
    assert read.call_count == 1


def test_limits_in_the_api(world: World) -> None:
    api = Api(key=factories.api_key(world.organization))
    made = api.post("concurrency-limits/", {"key": "reports", "max_runs": 1})
    assert made.status_code == 201, made.content
    path = f"concurrency-limits/{made.json()['id']}/"
    assert (
        api.post("concurrency-limits/", {"key": "reports", "max_runs": 9}).json()["errors"][0]["code"]
        == "duplicate"
    )
    for bad in (0, 1001, "x", None):
        assert api.post("concurrency-limits/", {"key": "other", "max_runs": bad}).status_code == 400
    limit = ConcurrencyLimit.objects.get()
    schedule = due(world, 1, limit)[0]
    run = api.post(f"schedules/{schedule.pk}/run-now/").json()
    world.execute()
    seen = api.get(path).json()
    assert (seen["running"], seen["waiting"]) == (1, 1)
    assert api.send("DELETE", path).json()["errors"][0]["code"] == "in_use"
    assert api.patch(path, {"max_runs": 2}).json()["running"] == 2
    assert api.get("concurrency-limits/").json()["results"][0]["max_runs"] == 2
    world.go()
    assert api.get(f"runs/{run['id']}/").json()["status"] == "succeeded"
    schedules.delete_schedule(schedule.pk, actor=ANA)
    assert api.send("DELETE", path).status_code == 204
    assert api.get(f"runs/{run['id']}/").json()["concurrency_key"] is None


def test_schedules_and_manual_runs_name_a_key_in_the_api(world: World, two: ConcurrencyLimit) -> None:
    limited(world, 1, "invoices")
    other = limited(World(), 1, "theirs")
    api = Api(key=factories.api_key(world.organization))
    body = {"name": "Visit", "kind": "http", "payload": {"url": "https://example.com/"}, "cron": "0 9 * * *"}
    refused = api.post("schedules/", {**body, "concurrency_key": other.key})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "concurrency_key")
    made = api.post("schedules/", {**body, "concurrency_key": "reports"}).json()
    assert made["concurrency_key"] == "reports"
    assert api.get("schedules/").json()["results"][0]["concurrency_key"] == "reports"
    run = api.post(f"schedules/{made['id']}/run-now/", {"concurrency_key": "invoices"}).json()
    assert run["concurrency_key"] == "invoices"
    assert api.patch(f"schedules/{made['id']}/", {"concurrency_key": None}).json()["concurrency_key"] is None


def test_only_managers_edit_limits(world: World, two: ConcurrencyLimit) -> None:
    scheduler = Api(key=factories.api_key(world.organization, "schedules:write", "read"))
    dispatcher = Api(user=factories.dispatcher(world.organization))
    for api in (scheduler, dispatcher):
        assert api.get("concurrency-limits/").status_code == 200
        assert api.post("concurrency-limits/", {"key": "x", "max_runs": 1}).status_code == 403
        assert api.patch(f"concurrency-limits/{two.pk}/", {"max_runs": 1}).status_code == 403
        assert api.send("DELETE", f"concurrency-limits/{two.pk}/").status_code == 403
    elsewhere = Api(key=factories.api_key(World().organization))
    assert elsewhere.patch(f"concurrency-limits/{two.pk}/", {"max_runs": 1}).status_code == 404


def test_limit_in_use_is_not_deleted(world: World, two: ConcurrencyLimit) -> None:
    schedule = world.schedule(every=1, unit="day", concurrency_limit=two)
    with pytest.raises(Conflict, match="Visit"):
        concurrency_limits.delete_limit(two.pk, actor=ANA)
    schedules.change_schedule(schedule.pk, {"concurrency_limit": None}, actor=ANA)
    concurrency_limits.delete_limit(two.pk, actor=ANA)
    assert Event.objects.filter(kind="concurrencylimit.deleted").exists()


def deletes(organization: Organization, *limits: ConcurrencyLimit, one: bool) -> str:
    """Delete the limits in the admin, from the page of one or as a selection; return the page that follows."""
    browser = factories.browser(factories.admin(organization))
    if one:
        return browser.post(f"{LIMITS_PAGE}{limits[0].pk}/delete/", {"post": "yes"}, follow=True).content.decode()
    chosen = {"action": "delete_selected", "_selected_action": [limit.pk for limit in limits], "post": "yes"}
    return browser.post(LIMITS_PAGE, chosen, follow=True).content.decode()


@pytest.mark.parametrize("one", [True, False])
def test_admin_hears_that_a_limit_is_in_use_and_nothing_else(
    world: World, two: ConcurrencyLimit, one: bool
) -> None:
    free = limited(world, 1, "free")
    world.schedule(every=1, unit="day", concurrency_limit=two)
    page = deletes(world.organization, *([two] if one else [free, two]), one=one)
    assert "In use by Visit." in page
    assert "uccessfully" not in page
    assert ConcurrencyLimit.objects.count() == 2
    assert not LogEntry.objects.exists()
    assert "uccessfully" in deletes(world.organization, free, one=one)
    assert ConcurrencyLimit.objects.get() == two


def test_schedule_whose_limit_was_just_deleted_is_a_conflict(
    world: World, two: ConcurrencyLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = schedules.create_schedule

    def create_late(*args: Any, **fields: Any) -> Schedule:
        concurrency_limits.delete_limit(two.pk, actor=ANA)
        return create(*args, **fields)

    monkeypatch.setattr(schedules, "create_schedule", create_late)
    body = {"name": "Visit", "kind": "http", "payload": {"url": "https://example.com/"}, "cron": "0 9 * * *"}
    api = Api(key=factories.api_key(world.organization))
    answer = api.post("schedules/", {**body, "concurrency_key": two.key})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (409, "missing_reference")
    assert not Schedule.objects.exists()


def test_an_organization_has_a_limited_number_of_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency_limits, "MAX_LIMITS", 1)
    limited(world, 1)
    with pytest.raises(Conflict, match="at most 1 concurrency limits"):
        limited(world, 1, "other")
    limited(World(), 1)
