"""The short path of `POST /submissions/` answers and stores what the view would, and leaves the rest to it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.settings import api_settings

from accounts.models import ApiKey, Organization, OrganizationLimits
from dispatch.core import clock
from dispatch.core.api import idempotency
from dispatch.core.db import fast_rows, prepared
from dispatch.core.models import Event, RememberedAnswer
from dispatch.core.runtime.queues import rq_queue
from dispatch.jobs import services
from dispatch.jobs.api import intake
from dispatch.jobs.models import Submission
from tests.jobs.test_auditor import without_redis
from tests.support import factories
from tests.support.database import note_statements

__all__ = ["without_redis"]
pytestmark = pytest.mark.django_db

MIDDLEWARE = "dispatch.jobs.api.intake.SubmissionIntakeMiddleware"
OWN = "<own slug>"


@dataclass(frozen=True)
class Sent:
    """One request. `key` names one of the organization's API keys, or is the whole header."""

    body: Any = None
    key: str = "site"
    method: str = "POST"
    path: str = "/api/v1/submissions/"
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


class Path:
    """One way through the application, with an organization that has the same rows on every way."""

    def __init__(self, name: str, *, is_short: bool, settings: Any) -> None:
        self.organization = factories.organization("Copper State Plumbing", slug=name)
        factories.service_type(self.organization, "plumbing")
        factories.service_type(self.organization, "retired", is_active=False)
        expired = clock.now() - timedelta(days=1)
        self.keys = {
            "site": factories.api_key(self.organization, name="Site"),
            "reader": factories.api_key(self.organization, "read", name="Reader"),
            "revoked": factories.api_key(self.organization, name="Revoked", revoked_at=expired),
            "expired": factories.api_key(self.organization, name="Expired", expires_at=expired),
        }
        self.technician = factories.technician(self.organization, "Ann")
        both = settings.MIDDLEWARE
        settings.MIDDLEWARE = both if is_short else [each for each in both if each != MIDDLEWARE]
        self.client = Client(raise_request_exception=False)
        self.client.handler.load_middleware()
        settings.MIDDLEWARE = both

    def send(self, sent: Sent) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body, with ids and times replaced."""
        whole = self.keys.get(sent.key)
        headers = {"Authorization": f"Bearer {whole}" if whole else sent.key} if sent.key else {}
        headers |= {name: value.replace(OWN, self.organization.slug) for name, value in sent.headers.items()}
        body = sent.body(self) if callable(sent.body) else sent.body
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.client.generic(sent.method, sent.path, data, sent.content_type, headers=headers)
        found = {name: _comparable(value) for name, value in answer.headers.items()}
        found.pop("RateLimit-Reset", None)
        if sent.method != "HEAD":
            assert int(found.pop("Content-Length")) == len(answer.content)  # ids differ in their digits
        return answer.status_code, found, _comparable(answer.content.decode())

    def stored(self) -> Any:
        """Return what the requests stored, without ids and times."""
        own = {"organization_id": self.organization.pk}
        submissions = list(Submission.objects.filter(**own).order_by("id").values())
        for row in submissions:
            row["form"].pop("preferred_technician", None)
            assert (row["preferred_technician_id"] or self.technician.pk) == self.technician.pk
            for name in _VARYING:
                del row[name]
        events = list(
            Event.objects.filter(**own, kind="submission.received")
            .order_by("id")
            .values("subject_type", "actor_type", "actor_label", "data")
        )
        answers = [
            (row.endpoint, row.key, row.body_hash, row.status_code, _comparable(row.body))
            for row in RememberedAnswer.objects.filter(**own).order_by("id")
        ]
        used = ApiKey.objects.filter(**own, last_used_at__isnull=False).values_list("name", flat=True)
        return submissions, events, answers, sorted(used)


_VARYING = {
    "id", "organization_id", "service_type_id", "api_key_id", "created_at", "next_start_at",
    "preferred_technician_id",
}  # fmt: skip


def _comparable(text: str) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>", text)
    text = re.sub(r"/submissions/\d+/", "/submissions/<id>/", text)
    text = re.sub(r'"id": ?\d+', '"id":<id>', text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "<request id>", text)
    return re.sub(r"id \d+\.", "id <id>.", re.sub(r"available in \d+ sec", "available in <n> sec", text))


def form(**changes: Any) -> dict[str, Any]:
    return factories.form("plumbing", **{"customer_phone": "+16025550123", **changes})


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in form().items() if name not in names}


def with_key(key: str, body: Any = None, **more: Any) -> Sent:
    return Sent(form() if body is None else body, headers={"Idempotency-Key": key}, **more)


TOMORROW = {name: (clock.now() + timedelta(hours=n)).isoformat() for name, n in (("start", 24), ("end", 26))}


# The requests, and whether the short path accepts the last of them.
ACCEPTED: dict[str, list[Sent]] = {
    "plain": [Sent(form())],
    "with a key": [with_key("order-1")],
    "two with different keys": [with_key("order-1"), with_key("order-2")],
    "least": [Sent(without("priority", "notes", "lat", "lng"))],
    "no address": [Sent(without("address"))],
    "text around": [Sent(form(customer_name="  Dana  ", notes=" gate\n4711 ", address=" 1 Main St "))],
    "unicode": [Sent(form(customer_name="Åsa Čapek 🔧", extra={"ß": ["日本", {"x": None}], "n": 1.5e-7}))],
    "national phone": [Sent(form(customer_phone="(602) 555-0123"))],
    "numbers as texts": [Sent(form(lat="33.4", lng="-112", expected_minutes="60", customer_name=7))],
    "priority by name": [Sent(form(priority="URGENT"))],
    "everything": [
        Sent(
            lambda path: form(
                language="es",
                preferred_technician=path.technician.pk,
                arrival_window=TOMORROW,
                expected_minutes=90,
            )
        )
    ],
    "nulls": [
        Sent(form(preferred_technician=None, arrival_window=None, expected_minutes=None, lat=None, lng=None))
    ],
    "a member twice": [Sent(json.dumps(form())[:-1].encode() + b', "notes": "the last counts"}')],
    "charset": [Sent(form(), content_type="application/json; charset=UTF-8")],
    "accept": [Sent(form(), headers={"Accept": "application/json, text/plain, */*"})],
    "own request id": [Sent(form(), headers={"X-Request-ID": "caller-0001"})],
    "bad request id": [Sent(form(), headers={"X-Request-ID": "x"})],
    "after a refused one": [Sent(form(priority=9)), with_key("order-1", without("notes"))],
}
LEFT_TO_THE_VIEW: dict[str, list[Sent]] = {
    "repeated key": [with_key("order-1"), with_key("order-1")],
    "repeated key, other order": [with_key("order-1"), with_key("order-1", dict(reversed(form().items())))],
    "key reused": [with_key("order-1"), with_key("order-1", form(notes="else"))],
    "key reused, invalid body": [with_key("order-1"), with_key("order-1", form(priority=9))],
    "key with spaces": [with_key("order 1")],
    "key too long": [with_key("x" * 256)],
    "key not ASCII": [with_key("ordér")],
    "long body": [Sent(form(notes="x" * 4000, extra={"x": "y" * 13_000}))],
    "long body with a key": [with_key("order-1", form(extra={"x": "y" * 16_300}))],
    "preferred technician of others": [Sent(form(preferred_technician=1))],
    "accept with parameters": [Sent(form(), headers={"Accept": "application/json; indent=2"})],
    "accept html": [Sent(form(), headers={"Accept": "text/html"})],
    "query": [Sent(form(), path="/api/v1/submissions/?x=1")],
    "query format": [Sent(form(), path="/api/v1/submissions/?format=xml")],
    "own organization": [Sent(form(), headers={"X-Organization": OWN})],
    "other organization": [Sent(form(), headers={"X-Organization": "someone-else"})],
    "cookie": [Sent(form(), headers={"Cookie": "csrftoken=x; sessionid=y"})],
    "scheme in lower case": [Sent(form(), key="bearer dk_aaaaaaaa_" + "x" * 43)],
    "no key": [Sent(form(), key="")],
    "basic": [Sent(form(), key="Basic dXNlcjpwYXNz")],
    "no credentials": [Sent(form(), key="Bearer")],
    "unknown key": [Sent(form(), key="Bearer dk_aaaaaaaa_" + "x" * 43)],
    "malformed key": [Sent(form(), key="Bearer dk_x")],
    "revoked key": [Sent(form(), key="revoked")],
    "expired key": [Sent(form(), key="expired")],
    "key without the scope": [Sent(form(), key="reader")],
    "form data": [Sent(b"customer_name=Dana", content_type="application/x-www-form-urlencoded")],
    "no content type": [Sent(form(), content_type="")],
    "latin-1": [Sent(form(customer_name="Åsa"), content_type="application/json; charset=latin-1")],
    "empty": [Sent(b"")],
    "not JSON": [Sent(b"{")],
    "not UTF-8": [Sent(b'{"customer_name": "\xff"}')],
    "byte order mark": [Sent(b"\xef\xbb\xbf" + json.dumps(form()).encode())],
    "list": [Sent([form()])],
    "null": [Sent(None)],
    "text": [Sent("form")],
    "NaN": [Sent(json.dumps(form(lat=float("nan"))).encode())],
    "1e999": [Sent(json.dumps(form(extra={"n": 1})).replace('"n": 1', '"n": 1e999').encode())],
    "NUL": [Sent(form(notes="a\0b"))],
    "surrogate": [Sent(form(extra={"\ud800": 1}))],
    "nested too deeply": [Sent(form(extra={"x": json.loads("[" * 70 + "]" * 70)}))],
    **{f"without {name}": [Sent(without(name))] for name in ("customer_name", "customer_phone", "service_type")},
    **{
        f"{name} {value!r:.30}": [Sent(form(**{name: value}))]
        for name, value in [
            ("customer_name", ""), ("customer_name", "x" * 121), ("customer_name", None), ("customer_name", []),
            ("customer_phone", "12"), ("customer_phone", "+1602555"), ("customer_phone", 16025550123.5),
            ("service_type", "unknown"), ("service_type", "retired"), ("service_type", 5), ("service_type", True),
            ("service_type", ["plumbing"]), ("service_type", ""), ("service_type", None),
            ("priority", 9), ("priority", True), ("lat", 91), ("lat", "north"), ("lat", True), ("lat", None),
            ("address", "x" * 301), ("notes", "x" * 4001), ("notes", None), ("notes", {}),
            ("extra", []), ("extra", {"x": "y" * 17_000}), ("language", "de"), ("preferred_technician", "Ann"),
            ("arrival_window", {}), ("arrival_window", {"start": "now", "end": 1}), ("expected_minutes", 4),
            ("unknown_field", 1),
        ]
    },
    "GET": [Sent(form()), Sent(b"", method="GET")],
    "HEAD": [Sent(b"", method="HEAD")],
    "OPTIONS": [Sent(b"", method="OPTIONS")],
    "PUT": [Sent(form(), method="PUT")],
    "DELETE": [Sent(b"", method="DELETE")],
    "without the slash": [Sent(form(), path="/api/v1/submissions")],
    "other path": [Sent(form(), path="/api/v1/submissions/1/")],
}  # fmt: skip


@pytest.fixture
def paths(settings: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the way through the view alone, and the one with the short path, with buckets that fill slowly."""
    monkeypatch.setitem(api_settings.DEFAULT_THROTTLE_RATES, "write", "1000/d")
    return Path("general", is_short=False, settings=settings), Path("short", is_short=True, settings=settings)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record of each request that was plain whether the short path accepted it."""
    seen: list[bool] = []
    accept = intake.accept

    def record(*given: Any) -> Any:
        response = accept(*given)
        seen.append(response is not None)
        return response

    monkeypatch.setattr(intake, "accept", record)
    return seen


def compare(paths: tuple[Path, Path], requests: list[Sent]) -> list[tuple[int, dict[str, str], str]]:
    """Send the requests both ways; assert that responses and rows are the same. Return the responses."""
    general, short = paths
    wanted = [general.send(each) for each in requests]
    assert [short.send(each) for each in requests] == wanted
    assert short.stored() == general.stored()
    return wanted


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_requests_get_and_store_the_same(name: str, paths: Any, taken: list[bool]) -> None:
    answers = compare(paths, ACCEPTED[name])
    assert answers[-1][0] == 202
    assert taken[-1:] == [True]


@pytest.mark.parametrize("name", LEFT_TO_THE_VIEW)
def test_other_requests_get_and_store_the_same(name: str, paths: Any, taken: list[bool]) -> None:
    compare(paths, LEFT_TO_THE_VIEW[name])
    assert len(taken) < len(LEFT_TO_THE_VIEW[name]) or taken[-1] is False


def test_throttled_requests_get_the_same(paths: Any, taken: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(api_settings.DEFAULT_THROTTLE_RATES, "write", "3/d")
    answers = compare(paths, [Sent(form()), Sent(form(priority=9)), with_key("order-1"), Sent(form())])
    assert [status for status, _, _ in answers] == [202, 400, 202, 429]
    assert [headers["RateLimit-Remaining"] for _, headers, _ in answers] == ["2", "1", "0", "0"]
    assert taken == [True, False, True, False]


def test_repeated_key_takes_one_token_for_each_request(paths: Any) -> None:
    answers = compare(paths, [with_key("order-1")] * 3)
    assert [headers["RateLimit-Remaining"] for _, headers, _ in answers] == ["999", "998", "997"]


def test_limit_of_the_whole_organization_gives_the_same(paths: Any) -> None:
    for path in paths:
        OrganizationLimits.objects.create(organization=path.organization, requests_per_minute=1)
    answers = compare(paths, [Sent(form()), Sent(form())])
    assert [status for status, _, _ in answers] == [202, 429]


def test_inactive_organization_gets_the_same(paths: Any) -> None:
    Organization.objects.update(is_active=False)
    assert compare(paths, [Sent(form())])[0][0] == 403


def test_senders_with_wrong_keys_are_blocked_the_same(paths: Any, settings: Any) -> None:
    settings.API_BAD_KEY_RATE = "2/d"
    wrong = Sent(form(), key="Bearer dk_bbbbbbbb_" + "x" * 43)
    general, short = paths
    wanted = [general.send(wrong)[0] for _ in range(4)]
    unknown = Sent(form(), key="Bearer dk_cccccccc_" + "x" * 43)
    assert [short.send(unknown)[0] for _ in range(4)] == wanted
    assert wanted[-1] == 429


def test_expired_response_is_replaced_as_by_the_view(paths: Any, settings: Any) -> None:
    for path in paths:
        path.send(with_key("order-1"))
    clock.travel(86400 * settings.IDEMPOTENCY_KEEP_DAYS + 1)
    assert compare(paths, [with_key("order-1", form(notes="a week later"))])[0][0] == 202
    assert Submission.objects.count() == 4


def test_service_type_of_others_is_not_found(paths: Any) -> None:
    for path in paths:
        factories.service_type(factories.organization(), f"only-theirs-{path.organization.slug}")
    answer = compare(paths, [Sent(form(service_type="only-theirs-short"))])[0]
    assert (answer[0], Submission.objects.count()) == (400, 0)


def test_one_submission_takes_two_statements(paths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    short = paths[1]
    short.send(Sent(form()))  # the key is marked as used, and the organization's limits are read
    statements = note_statements(monkeypatch)
    with CaptureQueriesContext(connection) as queries:
        assert short.send(with_key("order-1"))[0] == 202
    assert [sql.split()[0] for sql, _ in statements] == ["SELECT", "WITH"]
    assert queries.captured_queries == []


@pytest.mark.django_db(transaction=True)
def test_both_ways_enqueue_the_same_job(paths: Any, settings: Any, taken: list[bool]) -> None:
    compare(paths, [with_key("order-1")])
    queue = rq_queue(settings.DISPATCH_QUEUE)
    jobs = [queue.fetch_job(job_id) for job_id in queue.job_ids]
    pks = list(Submission.objects.order_by("id").values_list("pk", "organization_id"))
    assert [(job.func_name, job.args, job.meta) for job in jobs] == [
        (services.submissions.START_JOB, [pk], {"organization": organization}) for pk, organization in pks
    ]
    assert taken == [True]


@pytest.mark.django_db(transaction=True)
def test_without_redis_both_ways_accept(paths: Any, without_redis: None, taken: list[bool]) -> None:
    assert compare(paths, [with_key("order-1")])[0][0] == 202
    assert taken == [True]


def test_failed_lookup_is_left_to_the_view(paths: Any, taken: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(intake.submission_sql, "find_sender", fail)
    assert compare(paths, [with_key("order-1")])[0][0] == 202
    assert taken == [False]


@pytest.mark.django_db(transaction=True)
def test_lost_reply_of_the_database_stores_one_submission(paths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    short = paths[1]
    fetch_all = prepared.fetch_all

    def lose(sql: str, params: Any = None) -> Any:
        rows = fetch_all(sql, params)
        if "jobs_submission" in sql and sql.startswith("WITH"):
            raise OperationalError("server closed the connection unexpectedly")
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(fast_rows.prepared, "fetch_all", lose)
        status, headers, body = short.send(with_key("order-1"))
        assert (status, headers["Retry-After"], json.loads(body)["type"]) == (
            503,
            "5",
            "urn:dispatch:problem:unavailable",
        )
        assert "may or may not have been saved" in json.loads(body)["detail"]
    assert Submission.objects.count() == 1
    assert short.send(with_key("order-1"))[0] == 202  # the client asks again
    assert Submission.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_failed_insert_leaves_no_claim_of_the_key(paths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    short = paths[1]
    make = services.new_submission
    with monkeypatch.context() as patch:
        patch.setattr(services, "new_submission", lambda *given, **named: _misplaced(make(*given, **named)))
        assert short.send(with_key("order-1"))[0] == 500
    assert (Submission.objects.count(), RememberedAnswer.objects.count()) == (0, 0)
    assert short.send(with_key("order-1"))[0] == 202


def _misplaced(submission: Submission) -> Submission:
    submission.lng = None  # the table has a constraint: both coordinates or none
    return submission


def test_guarded_insert_refuses_a_value_that_is_too_long(paths: Any) -> None:
    organization = paths[1].organization
    submission = services.new_submission(
        organization,
        {
            "customer_name": "x" * 121,
            "customer_phone": "+16025550123",
            "service_type": factories.service_type(organization, "heating"),
        },
        raw={},
        api_key=None,
        idempotency_key="",
    )
    guard = idempotency.guard(organization.pk, "submissions", "order-1", {}, 202, {})
    with pytest.raises(DataError):
        fast_rows.insert_row(submission, guard=guard)


def test_headers_that_every_response_has_are_set(paths: Any) -> None:
    _, headers, _ = paths[1].send(Sent(form()))
    assert {"X-Frame-Options", "Content-Security-Policy", "X-Content-Type-Options", "X-Request-ID"} <= set(headers)
