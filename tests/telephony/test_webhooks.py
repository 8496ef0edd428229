"""Webhooks: only the account's own count, each once, in whatever order they come."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import requests
from django.db import transaction
from structlog.testing import capture_logs
from twilio.request_validator import RequestValidator

from dispatch.capacity import services as capacity
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.telephony import metrics, services, webhook_urls
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.services import bulk
from tests.harness.calls import place_call
from tests.phones import answer, busy, manual
from tests.support import factories
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, history, now_is

ANN = "+16025550101"
NONSENSE: list[dict[str, Any]] = [
    {"SequenceNumber": "first"},
    {"SequenceNumber": "-1"},
    {"SequenceNumber": "9" * 40},
    {"SequenceNumber": "٣"},
    {"CallDuration": "a while"},
    {"CallStatus": "levitating"},
    {"CallStatus": ""},
    {"CallStatus": None},
    {"Note": "nothing\0here"},
    {"No\0te": "here"},
    {"Digits": "1" * 500},
    {"": "empty"},
    {"CallToken": "😀" * 900},
    {"AnsweredBy": "x" * 500, "ErrorCode": "y" * 500, "ErrorMessage": "z" * 5000, "CallStatus": "failed"},
]
STATUSES = ["initiated", "ringing", "in-progress", "completed"]


class Post:
    """Speaks as the provider about one call: signed with the account's token unless told otherwise."""

    def __init__(self, caller: Caller, app_url: str) -> None:
        self.caller, self.app_url = caller, app_url
        caller.sim.phone(ANN).will(manual())
        self.call = caller.create(ANN)
        Call.objects.filter(pk=self.call.pk).update(status="submitted", sid="CA0001")
        self.token = caller.sim.auth_token

    def __call__(
        self, kind: str = "status", *, token: str | None = None, call_id: Any = None, path: str = "", **form: Any
    ) -> requests.Response:
        path = path or f"/telephony/twilio/calls/{call_id or self.call.pk}/{kind}"
        fields = {"CallSid": "CA0001", "AccountSid": self.caller.sim.account_sid, "CallStatus": "ringing", **form}
        fields = {name: str(value) for name, value in fields.items() if value is not None}
        url = f"{self.app_url}{path}"
        signature = RequestValidator(self.token if token is None else token).compute_signature(url, fields)
        return requests.post(url, data=fields, headers={"X-Twilio-Signature": signature}, timeout=60)

    def status(self) -> str:
        return Call.objects.get(pk=self.call.pk).status


@pytest.fixture
def post(caller: Caller, app_url: str) -> Post:
    return Post(caller, app_url)


def test_only_what_the_account_signed_counts(post: Post) -> None:
    path = f"/telephony/twilio/calls/{post.call.pk}/status"
    form = {"CallSid": "CA0001", "AccountSid": post.caller.sim.account_sid, "CallStatus": "completed"}
    answers = [
        requests.post(f"{post.app_url}{path}", data=form, timeout=60),
        requests.post(f"{post.app_url}{path}", data=form, headers={"X-Twilio-Signature": ""}, timeout=60),
        requests.post(f"{post.app_url}{path}", data=form, headers={"X-Twilio-Signature": "é"}, timeout=60),
        requests.post(f"{post.app_url}{path}", json=form, headers={"X-Twilio-Signature": "x"}, timeout=60),
        post(token="another", CallStatus="completed"),
        post(token="", CallStatus="completed"),
        post(call_id=post.call.pk + 999, CallStatus="completed"),
        post(call_id=10**30, CallStatus="completed"),
        post(kind="voices", CallStatus="completed"),
        post(path=f"/telephony/vonage/calls/{post.call.pk}/status", CallStatus="completed"),
        post(CallSid="CA0002", CallStatus="completed"),
        post(CallSid=None, CallStatus="completed"),
        post(AccountSid="AC" + "0" * 32, CallStatus="completed"),
    ]

    assert [answer.status_code for answer in answers] == [403] * len(answers)
    assert len({answer.content for answer in answers}) == 1, "nobody learns which calls exist"
    assert post.status() == "submitted"
    assert not CallEvent.objects.exists()


def test_a_stranger_does_not_wait_for_a_call_that_is_being_changed(post: Post) -> None:
    """Who is not the provider takes no lock, and cannot occupy a thread until the row is free."""
    path = f"/telephony/twilio/calls/{post.call.pk}/status"
    with transaction.atomic():
        Call.objects.select_for_update(no_key=True).get(pk=post.call.pk)
        answers = [
            requests.post(f"{post.app_url}{path}", data={"AccountSid": post.caller.sim.account_sid}, timeout=60),
            post(token="another", AccountSid="AC" + "0" * 32),
        ]
    assert [answer.status_code for answer in answers] == [403, 403]


@pytest.mark.parametrize(("kind", "form"), [("status", {}), ("voice", {"CallStatus": "in-progress"})])
def test_a_webhook_reads_its_call_once(
    post: Post, kind: str, form: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    execute = prepared._execute

    def record(database: Any, sql: str, params: Any) -> Any:
        if isinstance(params, list) and post.call.pk in params:
            found.append(sql)
        return execute(database, sql, params)

    monkeypatch.setattr(prepared, "_execute", record)
    assert post(kind, **form).status_code in (200, 204)
    about_calls = [sql for sql in found if 'FROM "telephony_call"' in sql]
    assert len(about_calls) == 1
    assert about_calls[0].endswith("FOR NO KEY UPDATE OF t")


def test_another_accounts_token_does_not_open_this_accounts_calls(post: Post) -> None:
    other = factories.account(factories.organization())

    assert post(token=other.auth_token, AccountSid=other.account_sid).status_code == 403
    assert post(token=other.auth_token).status_code == 403


def test_a_call_of_another_account_with_the_same_sid_is_not_taken_over(post: Post) -> None:
    stranger = post.caller.create("+16025550102")

    assert post(call_id=stranger.pk).status_code == 403
    assert Call.objects.get(pk=stranger.pk).sid is None


def test_a_get_is_refused(post: Post) -> None:
    url = f"{post.app_url}/telephony/twilio/calls/{post.call.pk}/voice"
    assert requests.get(url, timeout=60).status_code == 405


def test_the_signature_is_of_the_public_address(post: Post, settings: Any) -> None:
    """A proxy passes requests on: what counts is the configured address, never the Host header."""
    settings.PUBLIC_BASE_URL = "https://dispatch.example.com"
    assert post().status_code == 403

    form = {"CallSid": "CA0001", "AccountSid": post.caller.sim.account_sid, "CallStatus": "ringing"}
    path = f"/telephony/twilio/calls/{post.call.pk}/status"
    signature = RequestValidator(post.token).compute_signature(f"https://dispatch.example.com{path}", form)
    answer = requests.post(
        f"{post.app_url}{path}", data=form, headers={"X-Twilio-Signature": signature}, timeout=60
    )

    assert answer.status_code == 204
    assert post.status() == "ringing"


def test_both_tokens_count_while_a_key_is_rotated(post: Post) -> None:
    account = ProviderAccount.objects.get(pk=post.caller.account.pk)
    before = account.auth_token
    capacity.set_token(account, "the-new-one", actor=SYSTEM)

    assert post(token=before, CallStatus="initiated", SequenceNumber=0).status_code == 204
    assert post(token="the-new-one", CallStatus="ringing", SequenceNumber=1).status_code == 204
    capacity.end_rotation(account, actor=SYSTEM)
    assert post(token=before, CallStatus="completed", SequenceNumber=2).status_code == 403
    assert post.status() == "ringing"


def test_a_key_rotation_during_a_call(caller: Caller) -> None:
    """The provider signs with the old token until it knows the new one."""
    phone = caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    ringing = phone.rings()

    capacity.set_token(ProviderAccount.objects.get(pk=caller.account.pk), "rotated", actor=SYSTEM)

    ringing.answer().press("1").ended("completed")
    now_is(call, "completed")


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
def test_in_whatever_order_they_come(post: Post, order: tuple[int, ...]) -> None:
    furthest = []
    for i in order:
        assert post(CallStatus=STATUSES[i], SequenceNumber=i, CallDuration=3).status_code == 204
        furthest.append(max(order[: len(furthest) + 1]))
        expected = ["submitted", "ringing", "answered", "completed"][furthest[-1]]
        assert post.status() == expected

    assert CallEvent.objects.count() == 4
    assert history(post.call).count("completed") == 1
    wait_until(lambda: post.caller.listener.told(post.call)[-1:] == ["completed"])


def test_each_is_stored_once(post: Post) -> None:
    for _ in range(3):
        assert post(CallStatus="ringing", SequenceNumber=1).status_code == 204
        assert post(CallStatus="ringing", SequenceNumber=None, Timestamp="x").status_code == 204

    assert CallEvent.objects.count() == 2
    assert history(post.call).count("ringing") == 1


def test_after_the_end_nothing_moves(post: Post) -> None:
    post(CallStatus="no-answer", SequenceNumber=2)
    ended = Call.objects.get(pk=post.call.pk)

    for status in ("ringing", "completed", "busy"):
        assert post(CallStatus=status, SequenceNumber=len(status)).status_code == 204

    row = Call.objects.get(pk=post.call.pk)
    assert (row.status, row.ended_at) == ("no_answer", ended.ended_at)


def test_repeated_webhook_reaches_a_handler_that_failed(post: Post) -> None:
    """Our commit stood, the purpose did not hear of it: the repetition heals it."""
    post.caller.listener.fail_next = 1
    assert post(CallStatus="busy", SequenceNumber=2).status_code == 500
    assert post.status() == "busy"
    assert post.caller.listener.told(post.call) == []

    assert post(CallStatus="busy", SequenceNumber=2).status_code == 204

    wait_until(lambda: post.caller.listener.told(post.call) == ["busy"])
    assert history(post.call).count("busy") == 1


def test_the_providers_repetitions_heal_a_purpose_in_trouble(caller: Caller) -> None:
    caller.sim.phone(ANN).will(busy())
    call = caller.create(ANN)
    caller.listener.fail_next = 5

    place_call(call.pk)

    wait_until(lambda: caller.listener.told(call)[-1:] == ["busy"])


def test_a_repeated_key_press_gets_the_same_answer(post: Post) -> None:
    path = f"/telephony/twilio/calls/{post.call.pk}/gather?step=1&keys=12"
    first = post(path=path, CallStatus="in-progress", Digits="1")
    second = post(path=path, CallStatus="in-progress", Digits="1")

    assert first.status_code == second.status_code == 200
    assert first.content == second.content
    assert Call.objects.get(pk=post.call.pk).keys_pressed == "1"
    assert history(post.call).count("key_pressed") == 1


def test_a_key_after_the_end_says_nothing_and_counts(post: Post) -> None:
    post(CallStatus="completed", SequenceNumber=3)
    path = f"/telephony/twilio/calls/{post.call.pk}/gather?step=1&keys=12"

    answer = post(path=path, CallStatus="in-progress", Digits="1")

    assert answer.status_code == 200
    assert b"<Say" not in answer.content
    assert b"<Hangup" in answer.content
    assert post.caller.listener.keys == [(post.call.pk, "1")]


@pytest.mark.parametrize("kind", ["status", "gather", "voice"])
def test_malformed_webhooks_cause_no_error(post: Post, kind: str) -> None:
    for form in NONSENSE:
        assert post(kind, **form).status_code in (200, 204), form


def test_a_voice_webhook_tells_that_it_was_answered(post: Post) -> None:
    answer = post("voice", CallStatus="in-progress")

    assert answer.headers["Content-Type"].startswith("text/xml")
    assert answer.text.count("<Gather") == 3
    assert post.status() == "answered"
    wait_until(lambda: post.caller.listener.told(post.call) == ["answered"])


@pytest.mark.parametrize("trouble", ["lose", "duplicate", "delay", "reorder"])
def test_callbacks_in_trouble(caller: Caller, trouble: str) -> None:
    for i in range(3):
        caller.sim.phone(f"+160255501{i:02d}").will(answer(press="1"))
    # of lost callbacks the last one arrives, or nobody would ever know
    event = {"event": "ringing"} if trouble == "lose" else {}
    caller.sim.fault(trouble, times=None, **({"seconds": 2} if trouble == "delay" else {}), **event)

    calls = [caller.call(f"+160255501{i:02d}") for i in range(3)]

    for call in calls:
        now_is(call, "completed")
        assert history(call).count("completed") == 1
        keys = [key for pk, key in caller.listener.keys if pk == call.pk]
        assert keys == ["1"]
    assert not Call.objects.filter(ended_at=None).exists()


def test_our_failing_server_is_asked_again(caller: Caller) -> None:
    phone = caller.sim.phone(ANN).will(answer(press="1"))
    caller.listener.fail_next = 2
    call = caller.create(ANN)

    place_call(call.pk)

    phone.rings().hears("the job is yours").ended("completed")
    now_is(call, "completed")


def test_a_call_whose_webhooks_fail_ends_with_an_apology(caller: Caller) -> None:
    caller.sim.lose_webhooks("twiml", times=None)
    phone = caller.sim.phone(ANN).will(answer())
    call = caller.call(ANN)
    phone.rings().hears("technical problem").ended("completed")
    assert not services.has_webhook(now_is(call, "completed"), "voice")


def test_a_call_requested_in_bulk_names_the_apology_too() -> None:
    call = bulk.NewCall(
        organization_id=1, subject_id=1, attempt=1, to_phone=ANN, account_id=1, number_id=1,
        from_phone="+16025550100", line_slot=1, pool_id=1, pool_slot=1, ring_timeout_s=20, time_limit_s=60,
        detect_machine=False, context={},
    )  # fmt: skip
    assert "/telephony/twilio/fallback?call=7&proof=" in bulk.build_request(call, 7, "twilio", 1.0).fallback_url


@pytest.mark.django_db
def test_the_apology_needs_no_database(client: Any, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        response = client.post("/telephony/twilio/fallback", {"CallSid": "CA1"})
    assert b"<Say>Sorry, we have a technical problem" in response.content
    assert client.post("/telephony/unknown/fallback").status_code == 403


def test_the_star_is_a_letter_in_addresses(post: Post) -> None:
    path = f"/telephony/twilio/calls/{post.call.pk}/gather?step=1&keys=1s"
    assert webhook_urls.webhook(post.call, "gather", 1, "1*").startswith(f"{post.app_url}{path}#")
    post(path=path, CallStatus="in-progress", Digits="*")
    assert [key for _, key in post.caller.listener.keys] == ["*"]


def refusals() -> list[tuple[str, int]]:
    events = Event.objects.filter(kind__endswith=".signature_refused").order_by("id")
    return list(events.values_list("kind", "subject_id"))


def test_a_wrong_signature_is_reported_on_the_call_and_to_admins(post: Post) -> None:
    count = metrics.webhooks_refused.labels("wrong_signature")._value
    before = count.get()
    with capture_logs() as logs:
        assert [post(token="another").status_code for _ in range(3)] == [403] * 3
    account = post.caller.account.pk
    assert refusals() == [("call.signature_refused", post.call.pk), ("account.signature_refused", account)]
    assert count.get() == before + 3
    url = f"{post.app_url}/telephony/twilio/calls/{post.call.pk}/status"
    assert Event.objects.get(kind="account.signature_refused").data["url"] == url
    assert "signature is wrong" in Call.objects.get(pk=post.call.pk).error_message
    found = [line for line in logs if line["event"] == "webhook_refused"]
    assert [(line["reason"], line["url"]) for line in found] == [("wrong_signature", url)] * 3

    clock.travel(901)
    post(token="another")
    assert [kind for kind, _ in refusals()].count("account.signature_refused") == 2


def test_an_unsigned_request_or_one_about_an_ended_call_alerts_nobody(post: Post) -> None:
    path = f"/telephony/twilio/calls/{post.call.pk}/status"
    assert requests.post(f"{post.app_url}{path}", data={"CallSid": "CA0001"}, timeout=60).status_code == 403
    Call.objects.filter(pk=post.call.pk).update(status="completed", ended_at=clock.now())
    assert post(token="another").status_code == 403
    assert refusals() == []


@pytest.mark.parametrize("sid", [None, "AC0000"])
def test_a_stranger_with_any_signature_alerts_nobody(post: Post, sid: str | None) -> None:
    number = f"/telephony/twilio/numbers/{post.caller.number.pk}/voice"
    assert post(token="another", AccountSid=sid).status_code == 403
    assert post(path=number, token="another", AccountSid=sid).status_code == 403
    assert refusals() == []


def test_a_wrong_signature_about_a_number_is_reported_too(post: Post) -> None:
    path = f"/telephony/twilio/numbers/{post.caller.number.pk}/voice"
    assert post(path=path, token="another").status_code == 403
    assert refusals() == [("account.signature_refused", post.caller.account.pk)]
