"""The circuit breaker of provider accounts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections
from django.test import Client
from django.urls import reverse

from dispatch.capacity import account_outages, line_leases, services
from dispatch.capacity.line_leases import LineProposal, NoLine
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.runtime.due_checks import DueChecks
from dispatch.core.runtime.loops import find_loop
from dispatch.telephony.providers.base import RateLimited, Rejected, Submitted, Unknown
from dispatch.telephony.services import bulk
from dispatch.telephony.services.bulk import NewCall, RequestResult
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)

REFUSED = Rejected(False, "20003", "Authenticate", "configuration", True)


@pytest.fixture
def account() -> ProviderAccount:
    made: ProviderAccount = factories.number(factories.organization()).account
    return made


def now_is(account: ProviderAccount) -> ProviderAccount:
    return ProviderAccount.objects.get(pk=account.pk)


def kinds() -> list[str]:
    return list(Event.objects.filter(kind__contains="outage").order_by("id").values_list("kind", flat=True))


def fail(account: ProviderAccount, times: int = 1) -> None:
    for _ in range(times):
        account_outages.record_failure(account.pk, "no_answer", "error 503")


def test_success_after_two_failures_resets_the_count(account: ProviderAccount) -> None:
    fail(account, 2)
    assert now_is(account).outage == ""
    account_outages.record_success(account.pk)
    fail(account, 2)
    assert now_is(account).outage == ""
    fail(account)
    assert now_is(account).outage == "no_answer"
    assert kinds() == ["account.outage_began"]


def test_the_admin_list_shows_an_outage_and_its_cause(account: ProviderAccount, client: Client) -> None:
    client.force_login(factories.admin(account.organization), backend="django.contrib.auth.backends.ModelBackend")
    page = reverse("admin:capacity_provideraccount_changelist")
    assert "working" in client.get(page).content.decode()
    fail(account, 3)
    shown = client.get(page).content.decode()
    assert account_outages.describe(now_is(account)) in shown
    assert "error 503" in shown


def test_failures_of_many_processes_raise_one_outage(account: ProviderAccount) -> None:
    def one(_: int) -> None:
        try:
            fail(account)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(one, range(12)))
    assert now_is(account).outage == "no_answer"
    assert kinds() == ["account.outage_began"]


def test_pool_grants_no_line_of_an_account_with_an_outage(account: ProviderAccount) -> None:
    number = account.numbers.get()
    fail(account, 3)
    none = line_leases.propose_line(number.pool, "offer", "offer:1:1")
    assert isinstance(none, NoLine)
    assert (none.reason, str(none)) == ("no_answer", "The phone provider does not respond: error 503")
    only = line_leases.propose_line(number.pool, "test", "test:1:1", only=number.pk)
    assert isinstance(only, NoLine)
    assert only.reason == "no_answer"
    account_outages.record_success(account.pk)
    assert isinstance(line_leases.propose_line(number.pool, "offer", "offer:1:1"), LineProposal)


def test_successful_probe_after_a_failed_one_ends_the_outage(account: ProviderAccount) -> None:
    fail(account, 3)
    clock.travel(6)
    assert account_outages.claim_due_probes(10) == [account.pk]
    assert account_outages.claim_due_probes(10) == [], "claimed by one"
    account_outages.record_probe(account.pk, ("no_answer", "ReadTimeout"))
    assert now_is(account).outage == "no_answer"
    clock.travel(6)
    assert account_outages.claim_due_probes(10) == [account.pk]
    account_outages.record_probe(account.pk, None)
    assert now_is(account).outage == ""
    assert kinds() == ["account.outage_began", "account.outage_ended"]
    clock.travel(600)
    assert account_outages.claim_due_probes(10) == []


def test_inconclusive_probe_allows_trial_requests(
    account: ProviderAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = clock.machine_now()
    monkeypatch.setattr(clock, "machine_now", lambda: started)  # only `travel` moves the clock
    number = account.numbers.get()
    fail(account, 3)
    waits = []
    for _ in range(6):
        began = clock.now()
        while not account_outages.claim_due_probes(10):
            clock.travel(1)
        waits.append(round((clock.now() - began).total_seconds()))
        account_outages.record_probe(account.pk, None)
        assert isinstance(line_leases.propose_line(number.pool, "offer", "offer:1:1"), LineProposal)
        fail(account)
        assert isinstance(line_leases.propose_line(number.pool, "offer", "offer:2:1"), NoLine)
    assert waits == sorted(waits)
    assert max(waits) <= 61
    assert kinds() == ["account.outage_began"], "one outage, however often it was tried"
    clock.travel(61)
    account_outages.claim_due_probes(10)
    account_outages.record_probe(account.pk, None)
    account_outages.record_success(account.pk)
    assert kinds() == ["account.outage_began", "account.outage_ended"]


def test_a_failed_probe_before_an_outage_proves_nothing_about_it(account: ProviderAccount) -> None:
    fail(account)
    for result in (("no_answer", "ReadTimeout"), None):
        clock.travel(6)
        assert account_outages.claim_due_probes(10) == [account.pk]
        account_outages.record_probe(account.pk, result)
    fail(account)
    assert now_is(account).outage == "no_answer"
    clock.travel(6)
    account_outages.record_probe(account.pk, None)
    assert now_is(account).is_on_trial
    assert kinds() == ["account.outage_began"]


def test_new_token_triggers_a_probe_immediately(account: ProviderAccount) -> None:
    account_outages.record_failure(account.pk, "refused", "Authenticate", is_certain=True)
    assert account_outages.claim_due_probes(10) == []
    services.set_token(now_is(account), "another", actor=SYSTEM)
    assert account_outages.claim_due_probes(10) == [account.pk]
    account_outages.record_probe(account.pk, None)
    assert now_is(account).outage == ""


def test_deactivating_an_account_ends_its_outage(account: ProviderAccount) -> None:
    fail(account, 3)
    failing = now_is(account)
    failing.is_active = False
    services.save_row(failing, {"is_active": False}, actor=SYSTEM)
    ended = now_is(account)
    assert (ended.outage, ended.failed_requests, ended.probe_at) == ("", 0, None)
    assert kinds() == ["account.outage_began", "account.outage_ended"]
    assert account_outages.last_end(account.organization_id) == ended.outage_ended_at
    ended.name = "Old account"
    services.save_row(ended, {"name": "Old account"}, actor=SYSTEM)
    assert kinds() == ["account.outage_began", "account.outage_ended"], "once"


def is_loop_woken() -> bool:
    loop = find_loop("account_probes")
    return loop.name in DueChecks([loop]).find_due({loop.name})


def test_outage_of_an_account_that_an_earlier_version_deactivated_ends(account: ProviderAccount) -> None:
    fail(account, 3)
    ProviderAccount.objects.filter(pk=account.pk).update(is_active=False)
    clock.travel(6)
    assert is_loop_woken()
    assert account_outages.claim_due_probes(10) == [], "nothing is requested from the provider"
    assert (now_is(account).outage, now_is(account).probe_at) == ("", None)
    assert kinds() == ["account.outage_began", "account.outage_ended"]
    account_outages.defer_probe(account.pk)  # of a probe that ran meanwhile
    clock.travel(6)
    assert not is_loop_woken()


def test_late_failures_of_a_deactivated_account_begin_no_outage(account: ProviderAccount) -> None:
    account.is_active = False
    services.save_row(account, {"is_active": False}, actor=SYSTEM)
    fail(account, 3)
    assert not account_outages.record_failure(account.pk, "refused", "Authenticate", is_certain=True)
    account_outages.record_probe(account.pk, ("refused", "Authenticate"))
    assert (now_is(account).outage, kinds()) == ("", [])


def fail_despite_successful_probes(account: ProviderAccount) -> None:
    """Begin an outage in which all requests fail, also on trial, although all probes succeed."""
    fail(account, 3)
    clock.travel(6)
    account_outages.record_probe(account.pk, None)
    fail(account)
    assert not account_outages.is_usable(now_is(account))


@pytest.mark.parametrize(
    ("changed", "is_proof"),
    [
        ({"name": "Main"}, False), ({"calls_per_second": 0.5}, False), ({"api_key_secret": "another"}, True),
        ({"name": "Main", "region": "ie1"}, True),
    ],
)  # fmt: skip
def test_only_changed_credentials_let_a_probe_end_an_outage(
    account: ProviderAccount, changed: dict, is_proof: bool
) -> None:
    fail_despite_successful_probes(account)
    row = now_is(account)
    next_probe_at = row.probe_at
    for name, value in changed.items():
        setattr(row, name, value)
    services.save_row(row, changed, actor=SYSTEM)
    assert (now_is(account).probe_at != next_probe_at) is is_proof
    account_outages.record_probe(account.pk, None)
    assert now_is(account).outage == ("" if is_proof else "no_answer")


@pytest.mark.parametrize(
    ("outcomes", "outage"),
    [
        ([Submitted("CA1"), Unknown("reset"), Unknown("reset"), Unknown("reset")], ""),
        ([Unknown("reset")] * 2, ""),
        ([Unknown("reset")] * 50, "no_answer"),
        ([RateLimited(2.0, "unreachable", is_unreachable=True)] * 3, "no_answer"),
        ([RateLimited(2.0, "20429")] * 50, ""),
        ([Submitted("CA1"), REFUSED], "refused"),
        ([Rejected(True, "21211", "No number", "number")] * 50, ""),
    ],
)
def test_batch_of_calls_reports_the_health_of_its_accounts(
    account: ProviderAccount, outcomes: list, outage: str
) -> None:
    number = account.numbers.get()
    call = NewCall(
        account.organization_id, 1, 1, "+16025550101", account.pk, number.pk, str(number.phone), 1, number.pool_id,
        1, 20, 60, False, {},
    )  # fmt: skip
    bulk.apply_rate_limit_feedback([RequestResult(n, call, outcome) for n, outcome in enumerate(outcomes, 1)])
    assert now_is(account).outage == outage
