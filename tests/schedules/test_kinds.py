"""Every kind of work, for real: created once, even if the worker dies; rejected; called."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rest_framework.exceptions import ValidationError

from accounts import limits
from accounts.models import OrganizationLimits
from dispatch.core import clock, fault_injection
from dispatch.core.http import webhook_signing
from dispatch.core.models import Event
from dispatch.jobs.models import Submission
from dispatch.outbox.models import Endpoint, Message, Target
from dispatch.outbox.services.intake import default_pool
from dispatch.schedules import kinds
from dispatch.schedules.models import Schedule
from tests.api.client import Api
from tests.harness.schedules import World
from tests.support import factories
from tests.support.waiting import PATIENCE

LEASE_S = 91.0


class Receiver:
    """A client's URL: records requests and responds as configured."""

    def __init__(self) -> None:
        self.came: list[dict[str, Any]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.came.append(
                    {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}
                )
                status, headers, answer = outer.answers.pop(0) if outer.answers else (200, {}, b"thanks")
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *args: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def form(world: World) -> dict[str, Any]:
    factories.service_type(world.organization, "maintenance")
    return factories.form("maintenance", notes="Every first Monday.")


# --- submission
# ------------------------------------------------------------------------------------------------------


def test_a_recurring_visit_becomes_a_submission_each_time(real: World) -> None:
    schedule = real.schedule(kind="submission", payload=form(real), every=1, unit="day")
    for _ in range(2):
        real.travel(86_400)
        real.go()
    first, second = Submission.objects.order_by("pk")
    assert first.notes == "Every first Monday."
    assert [real.run(schedule, n).result for n in (1, 2)] == [{"submission": first.pk}, {"submission": second.pk}]
    told = Event.objects.get(kind="submission.received", subject_id=first.pk)
    assert told.actor_label == "Schedule Visit"


@pytest.mark.parametrize("point", ["schedules.work.started", "schedules.work.done", "schedules.report.written"])
def test_a_worker_killed_at_any_point_leaves_one_submission(real: World, point: str) -> None:
    schedule = real.schedule(kind="submission", payload=form(real), trigger_at=clock.now())
    real.execute()
    with fault_injection.arm_crash_point(point), pytest.raises(fault_injection.Interrupted):
        real.work()
    real.travel(LEASE_S)
    real.reconcile()
    real.go()
    assert real.statuses(schedule) == ["succeeded"]
    assert real.run(schedule).result == {"submission": Submission.objects.get().pk}


def test_a_service_type_switched_off_meanwhile_is_refused_in_words(real: World) -> None:
    schedule = real.schedule(kind="submission", payload=form(real), trigger_at=clock.now())
    from dispatch.jobs.models import ServiceType

    ServiceType.objects.update(is_active=False)
    real.go()
    run = real.run(schedule)
    assert run.status == "failed"
    assert run.attempt == 1
    assert run.error.startswith("service_type: ")
    assert not Submission.objects.exists()


# --- message
# ---------------------------------------------------------------------------------------------------------


def endpoint(world: World, url: str = "https://example.com/hook") -> Endpoint:
    return Endpoint.objects.create(
        organization=world.organization,
        name="ERP",
        url=url,
        secret=webhook_signing.new_secret(),
        headers={"X-Tenant": "copper"},
        pool=default_pool(world.organization.pk),
    )


MESSAGE = {"endpoint": "ERP", "type": "report.due", "payload": {"week": 49}, "group": "reports"}


def test_messages_go_through_the_outbox_once_per_run(real: World) -> None:
    endpoint(real)
    schedules = [real.schedule(f"S{n}", kind="message", payload=MESSAGE, trigger_at=clock.now()) for n in range(5)]
    real.go()
    assert Message.objects.count() == 5
    results = {real.run(schedule).result["message"] for schedule in schedules}
    assert results == set(Message.objects.values_list("pk", flat=True))
    message = Message.objects.first()
    assert message is not None
    assert (message.type, json.loads(message.payload)) == ("report.due", {"week": 49})
    labels = dict(Event.objects.filter(kind="message.created").values_list("subject_id", "actor_label"))
    assert labels == {real.run(schedule).result["message"]: f"Schedule {schedule.name}" for schedule in schedules}


def test_a_message_sent_by_a_worker_that_died_is_found_again(real: World) -> None:
    endpoint(real)
    schedule = real.schedule(kind="message", payload=MESSAGE, trigger_at=clock.now())
    real.execute()
    with fault_injection.arm_crash_point("schedules.work.done"), pytest.raises(fault_injection.Interrupted):
        real.work()
    real.travel(LEASE_S)
    real.reconcile()
    assert real.run(schedule).result == {"message": Message.objects.get().pk}


def test_message_with_a_deleted_endpoint_is_rejected_alone(real: World) -> None:
    endpoint(real)
    good = real.schedule("good", kind="message", payload=MESSAGE, trigger_at=clock.now())
    bad = real.schedule("bad", kind="message", payload={**MESSAGE, "endpoint": "CRM"}, trigger_at=clock.now())
    real.go()
    assert real.run(good).status == "succeeded"
    assert real.run(bad).status == "failed"
    assert real.run(bad).error.startswith("endpoint: ")


def test_messages_over_the_limit_are_sent_by_a_retry(real: World) -> None:
    endpoint(real)
    again = {"kind": "message", "payload": MESSAGE, "trigger_at": clock.now(), "retry_schedule_s": [60]}
    schedules = [real.schedule(name, **again) for name in ("first", "second")]
    allowed = OrganizationLimits.objects.create(organization=real.organization, messages=1)
    limits.reset()
    real.go()
    assert sorted(real.run(schedule).status for schedule in schedules) == ["retrying", "succeeded"]
    allowed.delete()
    limits.reset()
    real.travel(90)
    real.go()
    assert [real.run(schedule).status for schedule in schedules] == ["succeeded"] * 2
    assert Message.objects.count() == 2


# --- http
# ------------------------------------------------------------------------------------------------------------


def test_a_call_to_a_clients_url_and_its_answer_is_recorded(real: World, receiver: Receiver) -> None:
    schedule = real.schedule(
        kind="http",
        payload={"url": receiver.url, "body": {"n": 1}},
        headers={"Authorization": "Bearer secret"},
        trigger_at=clock.now(),
    )
    real.go()
    run = real.run(schedule)
    assert run.status == "succeeded"
    assert (run.result["status"], run.result["answer"]) == (200, "thanks")
    (came,) = receiver.came
    assert came["method"] == "POST"
    assert json.loads(came["body"]) == {"n": 1}
    assert came["headers"]["Authorization"] == "Bearer secret"
    assert came["headers"]["Idempotency-Key"] == f"run-{run.pk}"
    assert came["headers"]["Dispatch-Attempt"] == "1"


def test_headers_are_encrypted_in_the_table(real: World) -> None:
    from django.db import connection

    real.schedule(
        kind="http",
        payload={"url": "https://example.com/"},
        headers={"Authorization": "Bearer hush"},
        cron="0 9 * * *",
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_jsonb(s)::text FROM schedules_schedule s")
        assert "hush" not in cursor.fetchone()[0]
    assert Schedule.objects.get().headers == {"Authorization": "Bearer hush"}


def test_a_call_to_an_endpoint_is_signed_and_has_its_headers(real: World, receiver: Receiver) -> None:
    to = endpoint(real, receiver.url)
    real.schedule(kind="http", payload={"endpoint": "ERP", "body": [1, 2]}, trigger_at=clock.now())
    real.go()
    (came,) = receiver.came
    assert came["headers"]["X-Tenant"] == "copper"
    signed = webhook_signing.headers([to.secret], came["headers"]["webhook-id"], clock.now(), came["body"])
    assert set(signed) <= {name.lower() for name in came["headers"]}


def test_headers_of_a_schedule_replace_the_endpoints_whatever_their_case(real: World, receiver: Receiver) -> None:
    endpoint(real, receiver.url)
    own = {"x-tenant": "silver", "content-type": "text/plain"}
    real.schedule(kind="http", payload={"endpoint": "ERP", "body": 1}, headers=own, trigger_at=clock.now())
    real.go()
    (came,) = receiver.came
    sent = [(name.lower(), came["headers"][name]) for name in came["headers"]]
    assert [pair for pair in sent if pair[0] in own] == list(own.items())


def test_header_of_a_schedule_in_two_cases_is_refused(real: World) -> None:
    body = {
        "name": "Call", "kind": "http", "payload": {"url": "https://erp.example/"}, "cron": "0 9 * * *",
        "headers": {"X-Key": "1", "x-key": "2"},
    }  # fmt: skip
    answer = Api(key=factories.api_key(real.organization)).post("schedules/", body)
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert error["field"].partition(".")[0] == "headers"
    assert error["detail"] == "The header x-key is set twice. Upper and lower case make no difference."


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"is_paused": True}, "The endpoint ERP is paused."),
        ({"disabled_at": clock.now()}, "The endpoint ERP is disabled."),
        ({}, "The endpoint ERP isn't responding."),
    ],
)
def test_a_closed_endpoint_is_not_called(
    real: World, receiver: Receiver, change: dict[str, Any], error: str
) -> None:
    to = endpoint(real, receiver.url)
    Endpoint.objects.filter(pk=to.pk).update(**change)
    if not change:
        until = clock.now() + timedelta(seconds=600)
        Target.objects.update_or_create(
            endpoint=to, defaults={"organization": to.organization, "open_until": until}
        )
    schedule = real.schedule(
        kind="http", payload={"endpoint": "ERP"}, trigger_at=clock.now(), retry_schedule_s=[10]
    )
    real.go()
    assert receiver.came == []
    run = real.run(schedule)
    assert (run.status, run.error) == ("retrying", error)
    Endpoint.objects.filter(pk=to.pk).update(is_paused=False, disabled_at=None)
    Target.objects.filter(endpoint=to).update(open_until=None)
    real.travel(610)
    real.go()
    assert len(receiver.came) == 1


def test_an_endpoints_own_permanent_codes_count(real: World, receiver: Receiver) -> None:
    to = endpoint(real, receiver.url)
    Endpoint.objects.filter(pk=to.pk).update(permanent_codes=[503])
    receiver.answers = [(503, {}, b"no")]
    schedule = real.schedule(
        kind="http", payload={"endpoint": "ERP"}, trigger_at=clock.now(), retry_schedule_s=[10]
    )
    real.go()
    assert real.run(schedule).status == "failed"


def test_a_server_error_is_retried_and_the_retry_has_the_same_key(real: World, receiver: Receiver) -> None:
    receiver.answers = [(503, {"Retry-After": "120"}, b"later")]
    schedule = real.schedule(
        kind="http", payload={"url": receiver.url}, trigger_at=clock.now(), retry_schedule_s=[10]
    )
    real.go()
    run = real.run(schedule)
    assert (run.status, run.error, run.result["status"]) == ("retrying", "The receiver answered HTTP 503.", 503)
    real.travel(100)
    real.go()
    assert len(receiver.came) == 1
    real.travel(25)
    real.go()
    assert real.run(schedule).status == "succeeded"
    assert len({came["headers"]["Idempotency-Key"] for came in receiver.came}) == 1
    assert [came["headers"]["Dispatch-Attempt"] for came in receiver.came] == ["1", "2"]


def test_call_rejected_by_the_receiver_is_not_retried(real: World, receiver: Receiver) -> None:
    receiver.answers = [(422, {}, b"no")]
    schedule = real.schedule(kind="http", payload={"url": receiver.url}, trigger_at=clock.now())
    real.go()
    assert real.run(schedule).status == "failed"
    assert len(receiver.came) == 1


def test_a_get(real: World, receiver: Receiver) -> None:
    real.schedule(kind="http", payload={"url": receiver.url, "method": "GET"}, trigger_at=clock.now())
    real.go()
    assert (receiver.came[0]["method"], receiver.came[0]["body"]) == ("GET", b"")


def test_private_addresses_are_not_called(real: World, settings: Any) -> None:
    settings.HTTP_ALLOWED_NETWORKS = []
    schedule = real.schedule(
        kind="http", payload={"url": "http://127.0.0.1:9/"}, trigger_at=clock.now(), retry_schedule_s=[1]
    )
    real.go()
    assert real.run(schedule).status == "failed"
    assert "can't be called" in real.run(schedule).error


def test_nobody_listening_is_retried(real: World) -> None:
    schedule = real.schedule(kind="http", payload={"url": "http://127.0.0.1:9/"}, trigger_at=clock.now())
    real.go()
    assert real.run(schedule).status in ("retrying", "failed")


def test_many_calls_of_one_message_are_made_side_by_side(real: World, receiver: Receiver) -> None:
    together = threading.Barrier(5, timeout=PATIENCE)
    schedules = [
        real.schedule(f"S{n}", kind="http", payload={"url": f"{receiver.url}/{n}"}, trigger_at=clock.now())
        for n in range(5)
    ]
    waited: list[int] = []
    handler = receiver._server.RequestHandlerClass
    answer = handler.do_POST  # type: ignore[attr-defined]

    def wait_then_answer(self: Any) -> None:
        together.wait()
        waited.append(1)
        answer(self)

    handler.do_POST = wait_then_answer  # type: ignore[attr-defined]
    real.go()
    assert len(waited) == 5
    assert all(real.run(schedule).status == "succeeded" for schedule in schedules)


# --- all of them
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload", "field"),
    [
        ("submission", {"customer_name": "x"}, "customer_phone"),
        ("submission", {"surprise": 1}, "surprise"),
        ("message", {"type": "a.b", "payload": {}}, "endpoint"),
        ("message", {**MESSAGE, "idempotency_key": "mine"}, "idempotency_key"),
        ("http", {}, "url"),
        ("http", {"url": "ftp://example.com"}, "url"),
        ("http", {"url": "https://example.com", "method": "DELETE"}, "method"),
        ("http", {"url": "https://example.com", "method": "GET", "body": 1}, "body"),
        ("http", {"url": "https://example.com", "timeout_s": 900}, "timeout_s"),
    ],
)
def test_a_payload_is_checked_as_the_kinds_own_api_would(
    real: World, kind: str, payload: dict[str, Any], field: str
) -> None:
    endpoint(real)
    with pytest.raises(ValidationError) as refused:
        kinds.get_kind(kind).check(real.organization, payload)
    assert field in refused.value.detail


def test_another_organizations_rows_cannot_be_named(real: World) -> None:
    endpoint(real)
    other = factories.organization()
    for kind, payload in (("message", MESSAGE), ("http", {"endpoint": "ERP"})):
        with pytest.raises(ValidationError):
            kinds.get_kind(kind).check(other, dict(payload))


def test_every_kind_has_a_queue_and_a_scope_and_says_what_it_does(real: World, settings: Any) -> None:
    from accounts.models import ApiKey

    for kind in kinds.all_kinds():
        assert kind.queue in settings.RQ_QUEUES
        assert kind.queue in settings.WORKERS
        assert kind.scope in ApiKey.Scope.values
        assert kind.label
    assert kinds.get_kind("http").summary({"url": "https://example.com"}) == "POST https://example.com"
