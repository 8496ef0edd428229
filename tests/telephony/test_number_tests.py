"""The test call of a caller number: placed by an Admin, heard, confirmed with a key, and in the call log."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from dispatch.capacity import account_outages
from dispatch.capacity.models import ProviderAccount
from dispatch.core.models import Event
from dispatch.telephony import number_check_calls
from dispatch.telephony.models import Call
from dispatch.telephony.request_threads import PROBES
from tests.harness.calls import place_call
from tests.support import factories
from tests.support.factories import browser
from tests.telephony.conftest import Caller, now_is

ANN = "+16025550101"


@pytest.fixture
def handled() -> None:
    number_check_calls.register()


def press(client: Client, number: Any, phone: str) -> Any:
    """Opens the dialog and sends it."""
    at = reverse("admin:capacity_outboundnumber_test", args=[number.pk])
    assert client.get(at, headers={"HX-Request": "true"}).status_code == 200
    return client.post(at, {"_form_submitted": "True", "phone": phone})


def check(client: Client, account: ProviderAccount) -> str:
    """Checks the account, and returns what the page says."""
    at = reverse("admin:capacity_provideraccount_check_credentials", args=[account.pk])
    client.get(at)
    client.post(at, {"_form_submitted": "True"})
    return said(client)


def said(client: Client) -> str:
    answer = client.get(reverse("admin:capacity_outboundnumber_changelist"))
    return " ".join(str(one) for one in answer.context["messages"])


def test_test_call_rings_is_confirmed_and_logged(caller: Caller, handled: None) -> None:
    other = factories.number(caller.organization, max_channels=50)
    boss = browser(factories.admin(caller.organization, "Boss"))
    phone = caller.sim.phone(ANN)

    answer = press(boss, caller.number, "(602) 555-0101")

    call = Call.objects.get()
    log = reverse("admin:telephony_call_change", args=[call.pk])
    assert answer["HX-Redirect"] == log
    assert (call.purpose, call.number, call.from_phone) == ("test", caller.number, caller.number.phone)
    assert call.number != other
    place_call(call.pk)  # as the placer does
    ringing = phone.rings().answer()
    ringing.press("1").hears("confirmed").ended("completed")
    assert "this is a test call from dispatch" in ringing.said.lower()
    assert now_is(call, "completed").keys_pressed == "1"
    page = boss.get(log).content.decode()
    assert "completed" in page
    assert Event.objects.get(kind="number.tested").actor_label == "Boss"
    assert LogEntry.objects.filter(object_id=str(caller.number.pk), change_message__contains="test call").exists()


def test_each_test_is_a_call_of_its_own(caller: Caller) -> None:
    boss = browser(factories.admin(caller.organization))
    press(boss, caller.number, ANN)
    press(boss, caller.number, ANN)
    assert "that phone already has an open call" in said(boss)
    press(boss, caller.number, "+16025550102")
    assert sorted(Call.objects.values_list("attempt", flat=True)) == [1, 2]


@pytest.mark.parametrize(
    ("phone", "words"),
    [
        ("12", "not a valid phone number"),
        ("banana", "not a valid phone number"),
        ("-", "not a valid phone number"),
        ("+442079460018", "country not allowed"),
        ("", ""),
    ],
)
def test_a_phone_that_cannot_be_called_is_refused(caller: Caller, phone: str, words: str) -> None:
    boss = browser(factories.admin(caller.organization))
    press(boss, caller.number, phone)
    assert words in said(boss)
    assert not Call.objects.exists()


def test_paused_number_or_pool_makes_no_test_calls(caller: Caller) -> None:
    boss = browser(factories.admin(caller.organization))
    type(caller.pool).objects.update(is_paused=True)
    press(boss, caller.number, ANN)
    assert "is paused" in said(boss)
    assert not Call.objects.exists()


def test_busy_number_is_reported_although_others_are_free(caller: Caller) -> None:
    boss = browser(factories.admin(caller.organization))
    full = factories.number(caller.organization, max_channels=1, reserved_for_alerts=1)
    press(boss, full, ANN)
    assert "all lines of this number are in use" in said(boss)
    assert not Call.objects.exists()


def test_only_admins_of_the_organization_place_them(caller: Caller) -> None:
    at = reverse("admin:capacity_outboundnumber_test", args=[caller.number.pk])
    sent = {"_form_submitted": "True", "phone": ANN}
    stranger = factories.admin(factories.organization())
    for person, status in ((factories.dispatcher(caller.organization), 403), (stranger, 404)):
        assert browser(person).post(at, sent).status_code == status
    assert not Call.objects.exists()


def test_an_account_is_checked_before_the_first_call(caller: Caller) -> None:
    boss = browser(factories.admin(caller.organization, "Boss"))
    assert "status active, type Full" in check(boss, caller.account)
    caller.sim.set_account(type="Trial")
    assert "only phones that were verified" in check(boss, caller.account)
    caller.sim.set_account(type="Full", status="suspended")
    assert "status suspended" in check(boss, caller.account)
    ProviderAccount.objects.filter(pk=caller.account.pk).update(auth_token="wrong")
    assert "refused the account: Authenticate (error 20003)" in check(boss, caller.account)


def test_only_one_check_of_an_account_waits_for_the_provider(caller: Caller) -> None:
    boss = browser(factories.admin(caller.organization, "Boss"))
    slot = PROBES.reserve(caller.account.pk, "another check")
    assert slot is not None
    with slot:
        assert "The provider has not answered the last check yet." in check(boss, caller.account)
    assert "status active" in check(boss, caller.account)


def test_addresses_of_the_page_lead_a_failing_call_to_the_apology(caller: Caller) -> None:
    page = browser(factories.admin(caller.organization)).get(
        reverse("admin:capacity_outboundnumber_change", args=[caller.number.pk])
    )
    entry = r"<p>([\w ()]+) \(POST\)<br><code[^>]*>([^<]+)</code>"
    told = {name: html.unescape(url) for name, url in re.findall(entry, page.content.decode())}
    caller.sim.add_number(
        str(caller.number.phone),
        voice_url=told["A call comes in"],
        voice_fallback_url=told["Primary handler fails (calls)"],
    )
    caller.sim.lose_webhooks("twiml", times=None)
    caller.sim.phone(ANN).calls_us(str(caller.number.phone)).hears("technical problem").ended("completed")


def test_a_check_of_a_failing_account_allows_a_trial_and_ends_no_outage(caller: Caller) -> None:
    account = caller.number.account
    for _ in range(account_outages.MAX_FAILED_REQUESTS):
        account_outages.record_failure(account.pk, "no_answer", "error 503")
    assert "status active" in check(browser(factories.admin(caller.organization)), account)
    assert account_outages.claim_due_probes(10) == [account.pk]
    account_outages.record_probe(account.pk, None)
    account.refresh_from_db()
    assert (account.outage, account.is_on_trial) == ("no_answer", True)
