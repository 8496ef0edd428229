"""Submitting a form through the API, as a client with a key does."""

from __future__ import annotations

import json
import threading

import pytest
from django.conf import settings
from django.db import connections

from dispatch.core.runtime.queues import rq_queue
from dispatch.jobs.models import Job, ServiceType, Submission
from tests.api.client import Api
from tests.jobs.test_auditor import without_redis  # noqa: F401
from tests.support import factories
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization():
    made = factories.organization("Copper State Plumbing")
    factories.service_type(made, "plumbing")
    return made


@pytest.fixture
def api(organization) -> Api:
    return Api(key=factories.api_key(organization))


def form(**fields):
    return factories.form("plumbing", **{"priority": "urgent", **fields})


def refused(answer, field: str) -> str:
    """The detail of the one error, which must name `field`."""
    assert answer.status_code == 400, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    (error,) = answer.json()["errors"]
    assert error["field"] == field, error
    return str(error["detail"])


@pytest.mark.django_db(transaction=True)
def test_form_is_stored_and_the_response_has_the_status_url(api, organization):
    answer = api.post("submissions/", form(customer_phone="(602) 555-0123", extra={"gate": "4711"}))
    assert answer.status_code == 202, answer.content
    body = answer.json()
    assert (
        body["status_url"] == answer["Location"] == f"{settings.PUBLIC_BASE_URL}/api/v1/submissions/{body['id']}/"
    )
    submission = Submission.objects.get(pk=body["id"])
    assert (str(submission.customer_phone), submission.priority) == ("+16025550123", 2)
    assert submission.extra == {"gate": "4711"}
    assert submission.form["customer_phone"] == "(602) 555-0123", "kept as it came"
    assert submission.organization == organization
    (job_id,) = rq_queue(settings.DISPATCH_QUEUE).job_ids
    assert rq_queue(settings.DISPATCH_QUEUE).fetch_job(job_id).args == [submission.pk]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"customer_name": ""}, "customer_name"),
        ({"customer_name": "x" * 121}, "customer_name"),
        ({"customer_phone": "12"}, "customer_phone"),
        ({"customer_phone": "+1602555"}, "customer_phone"),
        ({"service_type": "unheard-of"}, "service_type"),
        ({"priority": "yesterday"}, "priority"),
        ({"priority": 9}, "priority"),
        ({"priority": True}, "priority"),
        ({"lat": 91, "lng": 0}, "lat"),
        ({"lat": 0, "lng": -180.5}, "lng"),
        ({"lat": "nan", "lng": 0}, "lat"),
        ({"lat": 33.4, "lng": None}, "lng"),
        ({"lat": None, "lng": None, "address": " "}, "address"),
        ({"address": "x" * 301}, "address"),
        ({"notes": "x" * 4001}, "notes"),
        ({"extra": ["a list"]}, "extra"),
        ({"extra": {"big": "x" * 17_000}}, "extra"),
        ({"custmer_name": "misspelled"}, "custmer_name"),
    ],
)
def test_invalid_fields_are_named(api, changes, field):
    assert refused(api.post("submissions/", form(**changes)), field)
    assert not Submission.objects.exists()


@pytest.mark.parametrize("name", ["customer_name", "customer_phone", "service_type"])
def test_missing_fields_are_named(api, name):
    body = form()
    del body[name]
    assert refused(api.post("submissions/", body), name) == "This field is required."


def test_inactive_or_foreign_service_type_is_rejected_with_alternatives(api, organization):
    factories.service_type(organization, "retired", is_active=False)
    factories.service_type(organization, "heating")
    factories.service_type(factories.organization(), "theirs")
    for code in ("retired", "theirs", 'a "b" {c}'):
        told = refused(api.post("submissions/", form(service_type=code)), "service_type")
        assert told == f"No service type {json.dumps(code)}. Choose one of: heating, plumbing."


def test_error_lists_some_service_types_or_says_there_are_none(api, organization):
    for n in range(24):
        factories.service_type(organization, f"kind-{n:02}")
    told = refused(api.post("submissions/", form(service_type="x" * 500)), "service_type")
    assert told.startswith(f'No service type "{"x" * 60} …". 25 exist, among them kind-00, ')
    assert told.endswith(", kind-19.")
    ServiceType.objects.update(is_active=False)
    told = refused(api.post("submissions/", form()), "service_type")
    assert told == 'No service type "plumbing". None exists yet.'


@pytest.mark.parametrize("code", [["plumbing"], {"code": "plumbing"}, True])
def test_service_type_that_is_not_text_is_rejected_clearly(api, code):
    told = refused(api.post("submissions/", form(service_type=code)), "service_type")
    assert told == "Must be the code of the service type, as a string."


@pytest.mark.django_db(transaction=True)
def test_same_key_gets_the_first_response_and_one_submission(api):
    body = form()
    first = api.post("submissions/", body, Idempotency_Key="order-1")
    again = api.post("submissions/", body, Idempotency_Key="order-1")
    assert (again.status_code, again.content, again["Location"]) == (202, first.content, first["Location"])
    other = api.post("submissions/", form(notes="something else"), Idempotency_Key="order-1")
    assert other.status_code == 422
    assert Submission.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_same_key_at_the_same_moment_makes_one_submission(organization):
    key, body, ids = factories.api_key(organization), form(), []

    def send() -> None:
        ids.append(Api(key=key).post("submissions/", body, Idempotency_Key="order-2").json()["id"])
        connections.close_all()

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(ids) == 6
    assert len(set(ids)) == Submission.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_form_is_accepted_without_redis(api, without_redis):  # noqa: F811
    answer = api.post("submissions/", form())
    assert answer.status_code == 202
    submission = Submission.objects.get()
    assert (submission.status, submission.next_start_at is not None) == ("received", True)


def test_status_includes_the_job_once_it_exists(api):
    from dispatch.jobs import services

    made = api.post("submissions/", form()).json()
    before = api.get(f"submissions/{made['id']}/").json()
    assert (before["status"], before["job"]) == ("received", None)
    services.start_job(made["id"])
    after = api.get(f"submissions/{made['id']}/").json()
    job = Job.objects.get()
    assert after["status"] == "processed"
    assert after["job"]["id"] == job.pk
    assert after["job"]["pending_reason"] == "nobody_near"


def test_lists_hold_only_ones_own_and_others_are_not_found(api, organization):
    theirs = Api(key=factories.api_key(factories.organization()))
    made = api.post("submissions/", form()).json()
    assert [row["id"] for row in api.get("submissions/").json()["results"]] == [made["id"]]
    assert theirs.get("submissions/").json()["results"] == []
    assert theirs.get(f"submissions/{made['id']}/").status_code == 404


def test_a_key_without_the_scope_may_not_submit(organization):
    reader = Api(key=factories.api_key(organization, "read"))
    assert reader.post("submissions/", form()).status_code == 403
    assert Api().post("submissions/", form()).status_code == 401
