"""A campaign has one open lead to a phone, however leads arrive, unless it allows more."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction

from dispatch.core.models import Event
from dispatch.leads.models import Campaign, Lead
from dispatch.leads.services import intake
from dispatch.leads.services.intake import NewLead
from tests.api.client import Api
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB, CAT = "+16025550101", "+16025550102", "+16025550103"


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization()
    return add_campaign(organization, "spring")


def add_campaign(organization: Any, code: str, **fields: Any) -> Campaign:
    pool = make.pool(organization)
    return Campaign.objects.create(
        organization=organization, pool=pool, code=code, name=code, script="Hello.", **fields
    )


@pytest.fixture
def api(campaign) -> Api:
    return Api(key=make.api_key(campaign.organization, "leads:write", "read", "manage"))


def phones() -> list[str]:
    return sorted(str(phone) for phone in Lead.objects.values_list("phone", flat=True))


def finish(**which: Any) -> None:
    Lead.objects.filter(**which).update(status="finished", outcome="answered", finished_at="2026-11-20T10:00Z")


def test_a_phone_twice_in_one_request_is_added_once(api):
    lines = [
        {"phone": ANN, "external_id": "A"},
        {"phone": "(602) 555-0101"},
        {"phone": BOB},
        {"phone": ANN, "external_id": "B"},
        {"phone": ANN, "external_id": "A"},
    ]
    told = api.post("leads/bulk/", {"campaign": "spring", "leads": lines}).json()
    counts = {name: told[name] for name in ("accepted", "known", "duplicates", "rejected")}
    assert counts == {"accepted": 2, "known": 1, "duplicates": 2, "rejected": 0}
    first = told["results"][0]["id"]
    left_out = {"id": first, "is_new": False, "is_duplicate": True}
    assert told["results"][1] == {"line": 2, **left_out}
    assert told["results"][3] == {"line": 4, **left_out}
    assert told["results"][4] == {"line": 5, "id": first, "is_new": False}
    assert phones() == [ANN, BOB]
    assert Event.objects.get(kind="campaign.leads_added").data["count"] == 2


def test_an_open_lead_keeps_a_second_one_to_its_phone_out(api):
    first = api.post("leads/", {"campaign": "spring", "phone": ANN, "external_id": "A"}).json()
    second = api.post("leads/", {"campaign": "spring", "phone": ANN, "external_id": "B"})
    assert second.status_code == 409
    assert second.json()["detail"] == "This campaign already has an open lead to this phone."
    assert second.json()["conflict"]["lead"] == first["id"]
    again = api.post("leads/", {"campaign": "spring", "phone": ANN, "external_id": "A"})
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    bulk = api.post("leads/bulk/", {"campaign": "spring", "leads": [{"phone": ANN}, {"phone": BOB}]}).json()
    assert (bulk["accepted"], bulk["duplicates"]) == (1, 1)


def test_a_refused_duplicate_is_accepted_once_the_first_lead_ended(api):
    body = {"campaign": "spring", "phone": ANN}
    api.post("leads/", body)
    assert api.post("leads/", body, Idempotency_Key="second").status_code == 409
    finish(phone=ANN)
    assert api.post("leads/", body, Idempotency_Key="second").status_code == 201
    assert api.post("leads/", body).status_code == 409
    assert Lead.objects.count() == 2


def test_another_campaign_may_call_the_same_phone(api, campaign):
    add_campaign(campaign.organization, "autumn")
    for code in ("spring", "autumn"):
        assert api.post("leads/", {"campaign": code, "phone": ANN}).status_code == 201


def test_a_campaign_may_allow_duplicates_and_forbid_them_again(api, campaign):
    assert api.get(f"campaigns/{campaign.pk}/").json()["allows_duplicates"] is False
    api.patch(f"campaigns/{campaign.pk}/", {"allows_duplicates": True})
    told = api.post("leads/bulk/", {"campaign": "spring", "leads": [{"phone": ANN}] * 3}).json()
    assert (told["accepted"], told["duplicates"]) == (3, 0)
    api.patch(f"campaigns/{campaign.pk}/", {"allows_duplicates": False})
    told = api.post("leads/bulk/", {"campaign": "spring", "leads": [{"phone": ANN}, {"phone": BOB}]}).json()
    assert (told["accepted"], told["duplicates"]) == (1, 1)
    finish(phone=ANN)
    assert api.post("leads/", {"campaign": "spring", "phone": ANN}).status_code == 201


def test_leads_of_the_previous_version_count_as_open(campaign):
    rows = [Lead(organization=campaign.organization, campaign=campaign, phone=ANN) for _ in range(2)]
    Lead.objects.bulk_create(rows)  # as they were written before: doubled, and in no constraint
    (answer,) = intake.accept_leads(campaign, [NewLead(ANN)])
    assert (answer.is_duplicate, answer.id) == (True, max(row.pk for row in rows))


def in_threads(count: int, do: Any) -> None:
    """Run `do(number)` in `count` concurrent threads; raise what one of them raised."""
    barrier, errors = threading.Barrier(count), []

    def run(number: int) -> None:
        try:
            barrier.wait()
            do(number)
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_requests_at_once_make_no_duplicates_and_no_deadlock(campaign):
    wanted = [make.phone() for _ in range(400)]
    answers: list[list[intake.Accepted]] = []

    def add(number: int) -> None:
        turned = wanted[number * 50 :] + wanted[: number * 50]
        some = turned[::-1] if number % 2 else turned
        answers.append(intake.accept_leads(campaign, [NewLead(phone) for phone in some]))

    in_threads(6, add)
    assert phones() == sorted(wanted)
    assert sum(answer.is_new for some in answers for answer in some) == len(wanted)
    assert all(answer.is_new or answer.is_duplicate for some in answers for answer in some)


def waiting_sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")
        return int(cursor.fetchone()[0])


def test_requests_with_external_ids_in_any_order_do_not_deadlock(campaign):
    """Both wait for a third request, whose lead is the second of each."""
    campaign = add_campaign(campaign.organization, "twice", allows_duplicates=True)
    answers: list[list[intake.Accepted]] = []

    def add(number: int) -> None:
        if number == 2:
            with transaction.atomic():
                intake.accept_leads(campaign, [NewLead(CAT, external_id="M")])
                first_is_in.set()
                wait_until(lambda: waiting_sessions() == 2)
                transaction.set_rollback(True)
            return
        first_is_in.wait()
        names = ["A", "M", "Z"] if number else ["Z", "M", "A"]
        answers.append(intake.accept_leads(campaign, [NewLead(ANN, external_id=name) for name in names]))

    first_is_in = threading.Event()
    in_threads(3, add)
    assert sorted(campaign.leads.values_list("external_id", flat=True)) == ["A", "M", "Z"]
    added, known = sorted(answers, key=lambda some: not some[0].is_new)
    ids = [answer.id or 0 for answer in added]
    assert ids == sorted(ids), "in the order of the request"
    assert [answer.id for answer in known] == ids[::-1]


def test_single_requests_at_once_make_one_lead(campaign):
    answers: list[intake.Accepted] = []

    def add(number: int) -> None:
        lead = NewLead(ANN, external_id=f"A-{number}")
        answers.extend(intake.accept_leads(campaign, [lead]))

    in_threads(8, add)
    assert phones() == [ANN]
    assert sorted(answer.is_new for answer in answers) == [False] * 7 + [True]


def test_the_database_refuses_a_second_open_lead(campaign):
    of = {"organization": campaign.organization, "phone": ANN, "is_only_of_phone": True}
    first = campaign.leads.create(**of)
    with pytest.raises(IntegrityError, match="one_open_lead_per_phone"):
        campaign.leads.create(**of)
    finish(pk=first.pk)
    campaign.leads.create(**of)
