"""Twilio's words in ours, and ours in Twilio's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from django.http import QueryDict
from hypothesis import given
from hypothesis import strategies as st
from twilio.request_validator import RequestValidator

from dispatch.capacity import account_outages
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock
from dispatch.dev.simulator.twiml import parse as understood_by_the_provider
from dispatch.telephony import providers, sms_rules
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.providers import twilio, twilio_calls, twilio_codes, twilio_signatures
from dispatch.telephony.providers.backoff import RateLimitBackoff
from dispatch.telephony.providers.base import (
    CallRequest,
    ProviderError,
    RateLimited,
    Rejected,
    Submitted,
    TextRequest,
    Unknown,
)
from dispatch.telephony.rules import RANK
from tests.phones import Simulator, answer
from tests.telephony.conftest import Caller, now_is

SPEAKER = twilio.make(ProviderAccount(account_sid="AC1", auth_token="token"))


def error(status: int, code: int) -> Any:
    return SimpleNamespace(status=status, code=code, msg="what it says")


@pytest.mark.parametrize(
    ("status", "code", "kind", "permanent"),
    [
        (400, 21211, "number", True),
        (400, 21214, "number", True),
        (400, 21217, "number", True),
        (400, 13224, "number", True),
        (401, 20003, "configuration", False),
        (400, 21210, "configuration", False),
        (400, 21212, "configuration", False),
        (400, 21205, "configuration", False),
        (400, 21609, "configuration", False),
        (400, 21218, "configuration", False),
        (403, 20005, "configuration", False),
        (403, 10001, "configuration", False),
        (403, 0, "configuration", False),
        (400, 21608, "permission", False),
        (400, 21215, "permission", False),
        (400, 21216, "permission", False),
        (400, 21219, "permission", False),
        (400, 21610, "opted_out", True),
        (400, 20001, "configuration", False),
        (400, 99999, "configuration", False),
    ],
)
def test_refusals_by_what_they_are_about(status: int, code: int, kind: str, permanent: bool) -> None:
    outcome = twilio_codes.outcome_of_error(error(status, code), None)
    assert isinstance(outcome, Rejected)
    assert (outcome.permanent, outcome.code, outcome.kind) == (permanent, str(code), kind)


@pytest.mark.parametrize(
    ("status", "code", "is_wide"),
    [
        (401, 20003, True),
        (403, 10001, True),
        (403, 20005, True),
        (403, 0, True),
        (401, 99999, True),
        (404, 20404, True),
        (400, 21205, True),
        (400, 21609, True),
        (400, 573005, True),
        (400, 21218, False),
        (400, 21210, False),
        (403, 21408, False),
        (403, 21211, False),
        (400, 99999, False),
    ],
)
def test_which_refusals_meet_every_request_of_the_account(status: int, code: int, is_wide: bool) -> None:
    outcome = twilio_codes.outcome_of_error(error(status, code), None)
    assert isinstance(outcome, Rejected)
    assert outcome.is_account_wide is is_wide


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("number", [13223, 13226, 21202, 30004, 30005, 30006]),
        ("permission", [13225, 14111, 21607]),
        ("configuration", [10002, 13214, 13247, 14108, 20006, 20010, 21407, 21470, 21472, 21616, 70004]),
        ("configuration", [30002, 30010, 30018, 30023, 30024, 30027, 30032, 30033, 30034, 30035]),
        ("opted_out", [21610]),
        ("filtered", [30007, 32017]),
        ("temporary", [30001, 30003, 30008, 30017, 30022, 30036, 30410]),
        ("other", [0, 99999]),
    ],
)
def test_published_error_codes_have_a_kind(kind: str, codes: list[int]) -> None:
    assert {code: twilio_codes.kind_of(code) for code in codes} == dict.fromkeys(codes, kind)


def test_a_refusal_is_told_in_the_providers_own_words() -> None:
    said = SimpleNamespace(status=401, code=20003, msg="Unable to create record: Authenticate")
    outcome = twilio_codes.outcome_of_error(said, None)
    assert isinstance(outcome, Rejected)
    assert outcome.reason == "Authenticate (error 20003)"


@pytest.mark.parametrize(
    ("status", "code"),
    [(429, 20429), (429, 0), (400, 10004), (429, 10004), (400, 21611), (400, 14107), (400, 22005)],
)
def test_what_was_certainly_not_processed_may_be_sent_again(status: int, code: int) -> None:
    assert isinstance(twilio_codes.outcome_of_error(error(status, code), 7.0), RateLimited)


@pytest.mark.parametrize(("given_s", "wait_s"), [(None, 1), (0, 0.1), (12, 12), (10**9, 300)])
def test_how_long_to_wait(given_s: float | None, wait_s: float) -> None:
    outcome = twilio_codes.outcome_of_error(error(429, 20429), given_s)
    assert isinstance(outcome, RateLimited)
    assert outcome.retry_after_s == wait_s


def test_a_time_to_wait_may_be_a_date() -> None:
    from dispatch.telephony.providers.twilio_http import PooledHttp

    http = PooledHttp(trust_env=False)
    http._state.headers = {"date": "Tue, 03 Nov 2026 14:05:09 GMT", "retry-after": "Tue, 03 Nov 2026 14:05:39 GMT"}
    assert http.retry_after_s() == pytest.approx(30, abs=1)
    http._state.headers = {"retry-after": "soon"}
    assert http.retry_after_s() is None


def test_a_burst_of_refusals_counts_once() -> None:
    backoff = RateLimitBackoff()
    assert all(1 <= backoff.wait_s("AC1") <= 1.5 for _ in range(20))
    clock.travel(1.1)
    assert all(2 <= backoff.wait_s("AC1") <= 3 for _ in range(20))
    assert backoff.wait_s("AC2") <= 1.5
    clock.travel(120)
    assert backoff.wait_s("AC1") <= 1.5
    for _ in range(9):
        clock.travel(40)
        backoff.wait_s("AC1")
    assert backoff.wait_s("AC1") <= 48


@pytest.mark.django_db(transaction=True)
def test_a_failed_listing_says_why(caller: Caller) -> None:
    caller.account.auth_token = "wrong"
    with pytest.raises(ProviderError, match=r"20003|Authenticate"):
        twilio.make(caller.account).find_calls("+16025550101", str(caller.number.phone))


@pytest.mark.parametrize(("status", "code"), [(500, 20500), (503, 20503), (502, 0), (408, 0), (302, 0), (0, 0)])
def test_possibly_processed_request_is_unknown(status: int, code: int) -> None:
    assert isinstance(twilio_codes.outcome_of_error(error(status, code), None), Unknown)


def test_every_provider_status_is_mapped() -> None:
    assert set(twilio_codes.STATUS.values()) <= set(RANK)


def test_every_message_status_that_twilio_documents_is_mapped() -> None:
    documented = """accepted scheduled queued sending sent partially_delivered delivered read undelivered failed
        canceled"""
    assert set(twilio_codes.TEXT_STATUS) == set(documented.split())
    assert set(twilio_codes.TEXT_STATUS.values()) <= set(sms_rules.RANK)


def test_a_menu_as_a_document() -> None:
    prompt = VoicePrompt(say=("One & two < three.", "", "Press 1."), keys="1", wait_s=4, times=2)
    body, content_type = SPEAKER.render(prompt, "http://127.0.0.1/gather?step=1&keys=1#rc=3&rp=ct,rt,5xx")

    verbs = understood_by_the_provider(body)
    assert content_type.startswith("text/xml")
    assert [verb.name for verb in verbs] == ["Gather", "Gather", "Hangup"]
    gather = verbs[0]
    assert [verb.text for verb in gather.inside] == ["One & two < three.", "Press 1."]
    assert gather.attributes["timeout"] == "4"
    assert gather.attributes["numDigits"] == "1"
    assert gather.attributes["finishOnKey"] == "", "or a # would be no key"
    assert gather.attributes["action"].endswith("step=1&keys=1#rc=3&rp=ct,rt,5xx")


@pytest.mark.parametrize(
    "sentence",
    ["A word and more. " * 500, "привет " * 400, "\u65e5\u672c\u8a9e\u3002" * 300, "x" * 9000, "&<>" * 1500],
)
def test_a_long_sentence_is_split_and_nothing_is_left_out(sentence: str) -> None:
    body, _ = SPEAKER.render(VoicePrompt(say=(sentence,)), "http://127.0.0.1/x")
    said = [verb.text for verb in understood_by_the_provider(body) if verb.name == "Say"]
    assert len(said) > 1
    assert "".join("".join(said).split()) == "".join(sentence.split())


@pytest.mark.parametrize("length", [30_000, 55_000, 200_000])
def test_a_long_prompt_is_repeated_less_often(length: int) -> None:
    say = tuple("a" * 99 for _ in range(length // 100))
    body, _ = SPEAKER.render(VoicePrompt(say=say, keys="1", times=3), "http://127.0.0.1/x")
    verbs = understood_by_the_provider(body)
    assert [verb.name for verb in verbs][-1] == "Hangup"
    assert 1 <= len(verbs) - 1 < 3


def test_without_keys_it_says_and_hangs_up() -> None:
    verbs = understood_by_the_provider(SPEAKER.render(VoicePrompt(say=("Goodbye.",)), "http://x")[0])
    assert [verb.name for verb in verbs] == ["Say", "Hangup"]
    assert [v.name for v in understood_by_the_provider(SPEAKER.render(VoicePrompt(say=()), "http://x")[0])] == [
        "Hangup"
    ]


@given(st.lists(st.text(max_size=40), max_size=3), st.text("0123456789", max_size=4))
def test_any_prompt_renders_well_formed_twiml(say: list[str], keys: str) -> None:
    body, _ = SPEAKER.render(VoicePrompt(say=tuple(say), keys=keys), "http://127.0.0.1/gather")
    assert understood_by_the_provider(body)[-1].name == "Hangup"


@given(
    st.sampled_from(["voice", "gather", "status"]),
    st.dictionaries(
        st.one_of(
            st.sampled_from(["CallSid", "SequenceNumber", "CallStatus", "Digits", "CallDuration"]), st.text()
        ),
        st.text(),
    ),
)
def test_whatever_is_posted_is_understood_or_left_out(kind: str, form: dict[str, str]) -> None:
    hook = SPEAKER.parse(kind, 1, form)
    assert hook.status is None or hook.status in RANK
    assert 0 < len(hook.key) <= 128
    assert len(hook.sid) <= 64
    assert all("\0" not in name + value for name, value in hook.payload.items())
    assert hook == SPEAKER.parse(kind, 1, dict(reversed(form.items())))


@given(st.dictionaries(st.text(max_size=8), st.lists(st.text(max_size=8), min_size=1, max_size=3), max_size=5))
def test_the_signature_is_the_librarys(form: dict[str, list[str]]) -> None:
    fields = QueryDict(mutable=True)
    for name, values in form.items():
        fields.setlist(name, values)
    url = "https://dispatch.example.com/telephony/twilio/calls/1/voice?step=1&keys=12"
    signature = RequestValidator("secret").compute_signature(url, fields)
    assert twilio_signatures.compute("secret", url, fields) == signature
    assert twilio_signatures.is_valid("secret", url, fields, signature)
    assert not twilio_signatures.is_valid("another", url, fields, signature)
    assert not twilio_signatures.is_valid("secret", f"{url}3", fields, signature)


def test_a_signature_of_the_address_with_its_port_counts() -> None:
    form = {"CallSid": "CA1"}
    signature = RequestValidator("secret").compute_signature("https://dispatch.example.com:443/x", form)
    assert twilio_signatures.is_valid("secret", "https://dispatch.example.com/x", form, signature)
    assert not twilio_signatures.is_valid("secret", "https://dispatch.example.com/x", form, "é")


@pytest.mark.parametrize(
    ("detect_machine", "reports"),
    [(False, ["ringing", "completed"]), (True, ["ringing", "answered", "completed"])],
)
def test_only_reports_that_are_used_are_requested(detect_machine: bool, reports: list[str]) -> None:
    order = CallRequest(
        "+16025550101", "+16025550100", "http://x/voice", "http://x/status", 20, 60, 5.0,
        detect_machine=detect_machine,
    )  # fmt: skip
    form = parse_qsl(twilio_calls.form_of(order).decode())
    assert [value for name, value in form if name == "StatusCallbackEvent"] == reports


def test_an_empty_token_accepts_nothing() -> None:
    speaker = twilio.make(ProviderAccount(account_sid="AC1", auth_token=""))
    signature = RequestValidator("").compute_signature("http://x/", {})
    assert RequestValidator("").validate("http://x/", {}, signature), "the library would"
    assert not speaker.verify("http://x/", {}, {"X-Twilio-Signature": signature})


@pytest.mark.django_db
def test_an_account_without_a_token_asks_nobody(sim: Simulator, settings: Any) -> None:
    settings.SIMULATOR_URL = sim.base_url
    speaker = twilio.make(ProviderAccount(account_sid=sim.account_sid, auth_token=""))
    outcome = speaker.send_text(TextRequest("+16025550101", "+16025550100", "Hello"))
    assert isinstance(outcome, Rejected)
    assert sim.messages() == []


def test_a_text(caller: Caller) -> None:
    speaker = providers.for_account(caller.account)

    assert isinstance(
        speaker.send_text(TextRequest("+16025550101", str(caller.number.phone), "Job 7 is yours")), Submitted
    )

    caller.sim.phone("+16025550101").gets_text("Job 7")


def test_requests_use_the_api_key_and_webhooks_are_verified_by_token(caller: Caller) -> None:
    key = "SK" + "1" * 32
    caller.sim.set_account(api_keys={key: "secret"})
    ProviderAccount.objects.filter(pk=caller.account.pk).update(api_key_sid=key)
    caller.account.refresh_from_db()
    caller.account.api_key_secret = "wrong"
    caller.account.save(update_fields=["api_key_secret"])
    assert isinstance(providers.for_account(caller.account).check_account(), Rejected)
    assert caller.call("+16025550102").error_code == "20003"

    caller.account.api_key_secret = "secret"
    caller.account.save(update_fields=["api_key_secret"])
    account_outages.record_success(caller.account.pk)
    assert providers.for_account(caller.account).check_account() is None
    caller.sim.phone("+16025550101").will(answer(press="1"))
    now_is(caller.call("+16025550101"), "completed")
    assert caller.listener.keys


def test_subaccount_is_an_account_of_its_own(caller: Caller) -> None:
    caller.sim.add_account(sid := "AC" + "5" * 32, "the token of the subaccount")
    caller.account.account_sid = sid
    caller.account.save(update_fields=["account_sid"])
    refused = providers.for_account(caller.account).check_account()
    assert isinstance(refused, Rejected), "the token of the main account"

    caller.account.auth_token = "the token of the subaccount"
    caller.account.save(update_fields=["auth_token"])
    assert providers.for_account(caller.account).check_account() is None
    caller.sim.phone("+16025550101").will(answer(press="1"))
    placed = now_is(caller.call("+16025550101"), "completed")
    assert caller.listener.keys
    (made,) = caller.sim.calls(to="+16025550101")
    assert (made["sid"], made["account_sid"]) == (placed.sid, sid)


def test_a_region_has_its_own_address(settings: Any) -> None:
    settings.SIMULATOR_URL, settings.DEVELOPMENT = "", False
    account = ProviderAccount(account_sid="AC1", auth_token="token", region="ie1", edge="dublin")
    client = twilio.make(account)._client()  # type: ignore[attr-defined]
    assert client.get_hostname("https://api.twilio.com/x") == "https://api.dublin.ie1.twilio.com/x"


def test_a_text_names_the_messaging_service_of_its_number(caller: Caller) -> None:
    service = "MG" + "1" * 32
    order = TextRequest("+16025550101", str(caller.number.phone), "Hello", service=service)
    assert isinstance(providers.for_account(caller.account).send_text(order), Submitted)
    assert caller.sim.messages(to="+16025550101")[0]["messaging_service_sid"] == service


def test_only_in_development_is_the_provider_elsewhere(settings: Any) -> None:
    settings.SIMULATOR_URL = "http://127.0.0.1:9"
    assert SPEAKER._client().api.base_url == "http://127.0.0.1:9"
    settings.DEVELOPMENT = False
    fresh = twilio.make(ProviderAccount(account_sid="AC1", auth_token="token"))
    assert fresh._client().api.base_url == "https://api.twilio.com"
