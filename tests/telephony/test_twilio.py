"""Twilio's words in ours, and ours in Twilio's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony import providers
from dispatch.telephony.providers import twilio, twilio_words
from dispatch.telephony.providers.base import RateLimited, Rejected, Submitted, Unknown
from dispatch.telephony.purposes import Prompt
from dispatch.telephony.rules import RANK
from dispatch.telephony.simulator.twiml import parse as understood_by_the_provider
from tests.phones import Simulator
from tests.telephony.conftest import Caller

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
        (400, 21218, "configuration", False),
        (400, 21215, "permission", False),
        (400, 21216, "permission", False),
        (400, 21219, "permission", False),
        (400, 21610, "opted_out", True),
        (400, 20001, "other", False),
    ],
)
def test_refusals_by_what_they_are_about(status: int, code: int, kind: str, permanent: bool) -> None:
    outcome = twilio_words.outcome_of_error(error(status, code), None)
    assert outcome == Rejected(permanent, str(code), "what it says", kind)


@pytest.mark.parametrize(("status", "code"), [(429, 20429), (429, 0), (400, 10004), (429, 10004)])
def test_what_was_certainly_not_processed_may_be_sent_again(status: int, code: int) -> None:
    assert isinstance(twilio_words.outcome_of_error(error(status, code), 7.0), RateLimited)


@pytest.mark.parametrize(("given_s", "wait_s"), [(None, 1), (0, 0.1), (12, 12), (10**9, 300)])
def test_how_long_to_wait(given_s: float | None, wait_s: float) -> None:
    outcome = twilio_words.outcome_of_error(error(429, 20429), given_s)
    assert isinstance(outcome, RateLimited)
    assert outcome.retry_after_s == wait_s


@pytest.mark.parametrize(("status", "code"), [(500, 20500), (503, 20503), (502, 0), (408, 0), (302, 0), (0, 0)])
def test_what_may_have_been_processed_is_unknown(status: int, code: int) -> None:
    assert isinstance(twilio_words.outcome_of_error(error(status, code), None), Unknown)


def test_every_status_of_theirs_is_one_of_ours() -> None:
    assert set(twilio_words.STATUS.values()) <= set(RANK)


def test_a_menu_as_a_document() -> None:
    prompt = Prompt(say=("One & two < three.", "", "Press 1."), keys="1", wait_s=4, times=2)
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


def test_without_keys_it_says_and_hangs_up() -> None:
    verbs = understood_by_the_provider(SPEAKER.render(Prompt(say=("Goodbye.",)), "http://x")[0])
    assert [verb.name for verb in verbs] == ["Say", "Hangup"]
    assert [v.name for v in understood_by_the_provider(SPEAKER.render(Prompt(say=()), "http://x")[0])] == [
        "Hangup"
    ]


@given(st.lists(st.text(max_size=40), max_size=3), st.text("0123456789", max_size=4))
def test_whatever_is_said_is_well_formed(say: list[str], keys: str) -> None:
    body, _ = SPEAKER.render(Prompt(say=tuple(say), keys=keys), "http://127.0.0.1/gather")
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


def test_an_empty_token_accepts_nothing() -> None:
    speaker = twilio.make(ProviderAccount(account_sid="AC1", auth_token=""))
    from twilio.request_validator import RequestValidator

    signature = RequestValidator("").compute_signature("http://x/", {})
    assert RequestValidator("").validate("http://x/", {}, signature), "the library would"
    assert not speaker.verify("http://x/", {}, {"X-Twilio-Signature": signature})


@pytest.mark.django_db
def test_an_account_without_a_token_asks_nobody(sim: Simulator, settings: Any) -> None:
    settings.SIMULATOR_URL = sim.base_url
    outcome = twilio.make(ProviderAccount(account_sid=sim.account_sid, auth_token="")).send_text(
        "+16025550101", "+16025550100", "Hello"
    )
    assert isinstance(outcome, Rejected)
    assert sim.messages() == []


def test_a_text(caller: Caller) -> None:
    speaker = providers.for_account(caller.account)

    assert isinstance(speaker.send_text("+16025550101", str(caller.number.phone), "Job 7 is yours"), Submitted)

    caller.sim.phone("+16025550101").gets_text("Job 7")


def test_a_thread_keeps_its_client_until_the_credentials_change(caller: Caller) -> None:
    first = providers.for_account(caller.account)
    assert providers.for_account(caller.account) is first
    caller.account.auth_token = "another"
    assert providers.for_account(caller.account) is not first


def test_only_in_development_is_the_provider_elsewhere(settings: Any) -> None:
    settings.SIMULATOR_URL = "http://127.0.0.1:9"
    assert SPEAKER._client().api.base_url == "http://127.0.0.1:9"
    settings.DEVELOPMENT = False
    fresh = twilio.make(ProviderAccount(account_sid="AC1", auth_token="token"))
    assert fresh._client().api.base_url == "https://api.twilio.com"
