"""Two requests with the same version at the same time, on separate connections."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.db import transaction

from dispatch.capacity.models import DispatchPool
from dispatch.technicians.models import Skill
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.support import factories as make

ICAL = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//x//EN\r\nEND:VCALENDAR\r\n"


@pytest.mark.django_db(transaction=True)
def test_one_of_two_concurrent_edits_with_the_same_version_wins():
    pool = make.pool(organization := make.organization())
    admin = make.admin(organization)
    read = Api(user=admin).get(f"pools/{pool.pk}/")["ETag"]

    answers: list[int] = []

    def change(n: int) -> None:
        done = Api(user=admin).patch(f"pools/{pool.pk}/", {"concurrency": 20 + n}, If_Match=read)
        answers.append(done.status_code)

    for other in [Elsewhere(partial(change, n)) for n in range(2)]:
        other.finish()
    assert sorted(answers) == [200, 409]


@pytest.mark.django_db(transaction=True)
def test_edit_of_a_row_that_is_deleted_meanwhile_finds_none() -> None:
    admin = make.admin(organization := make.organization())
    skill = Skill.objects.create(organization=organization, name="Gas")
    path = f"skills/{skill.pk}/"
    read = Api(user=admin).get(path)["ETag"]
    answers: list[int] = []

    def edit() -> None:
        done = Api(user=admin).patch(path, {"name": "Gas fitting"}, If_Match=read)
        answers.append(done.status_code)

    with transaction.atomic():
        Skill.objects.filter(pk=skill.pk).delete()
        other = Elsewhere(edit)
        other.wait_for_lock()
    other.finish()
    assert answers == [404]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("skills/", {"code": "gas", "name": "Gas"}),
        ("pools/", {"code": "phoenix", "name": "Phoenix", "kind": "calls", "concurrency": 10}),
        ("closed-days/", {"date": "2026-12-25", "name": "Christmas Day"}),
        ("customer-rates/", {"customer": "acme", "most": 100, "per_s": 3600}),
        ("notification-rules/", {"kind": "endpoint.disabled", "to": "admins"}),
        ("endpoints/", {"name": "ERP", "url": "https://erp.example.com/hook"}),
        ("policies/", {"rounds": 2}),
    ],
)
def test_second_of_two_equal_rows_at_the_same_time_is_a_conflict(path: str, body: dict[str, Any]) -> None:
    key = make.api_key(make.organization())
    answers: list[Any] = []
    Api(key=key).get("me/")  # records when the key was used, which would lock its row
    with transaction.atomic():
        assert Api(key=key).post(path, body).status_code == 201
        other = Elsewhere(lambda: answers.append(Api(key=key).post(path, body)))
        other.wait_for_lock()
    other.finish()
    (refused,) = answers
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (409, "duplicate")
    assert refused.json()["detail"] == "Another request has just saved the same. Reload and try again."


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("concurrency-limits/", {"key": "erp", "max_runs": 2}),
        ("exclusion-calendars/", {"name": "Holidays", "content": ICAL}),
    ],
)
def test_second_of_two_deletions_at_the_same_time_finds_no_row(path: str, body: dict[str, Any]) -> None:
    key = make.api_key(make.organization())
    made = Api(key=key).post(path, body)
    assert made.status_code == 201, made.content
    row = f"{path}{made.json()['id']}/"
    answers: list[int] = []
    with transaction.atomic():
        assert Api(key=key).delete(row).status_code == 204
        other = Elsewhere(lambda: answers.append(Api(key=key).delete(row).status_code))
        other.wait_for_lock()
    other.finish()
    assert answers == [404]


@pytest.mark.django_db(transaction=True)
def test_action_on_a_row_that_is_deleted_meanwhile_finds_none() -> None:
    organization = make.organization()
    key, pool = make.api_key(organization), make.pool(organization)
    answers: list[int] = []
    Api(key=key).get("me/")
    with transaction.atomic():
        DispatchPool.objects.filter(pk=pool.pk).delete()
        other = Elsewhere(lambda: answers.append(Api(key=key).post(f"pools/{pool.pk}/pause/").status_code))
        other.wait_for_lock()
    other.finish()
    assert answers == [404]
