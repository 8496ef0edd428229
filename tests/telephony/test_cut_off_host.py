"""A host that does not reach the phone provider leaves calls to another host, and starts no outage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock
from dispatch.core.models import Reachability
from dispatch.core.runtime import reachability
from dispatch.core.runtime.loops import all_loops
from dispatch.core.runtime.reachability import Process
from dispatch.leads.pool_rotation import PoolRotation
from dispatch.leads.services.claim_batches import ClaimResult
from dispatch.telephony.models import Call
from dispatch.telephony.providers import probe_server, twilio_http
from dispatch.telephony.providers.base import Unknown
from dispatch.telephony.request_threads import PROBES
from dispatch.telephony.services.call_requests import place_soon, report_outcome
from tests.harness.leads import Floor
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, is_placed

pytestmark = pytest.mark.django_db(transaction=True)

NOWHERE = "http://127.0.0.1:9"
PHONES = [f"+1602555010{n}" for n in range(4)]


class Cut:
    """This process, whose route to the provider can be cut."""

    def __init__(self, settings: Any) -> None:
        self._settings, self._there = settings, settings.SIMULATOR_URL
        self.other = Process("other")
        self.other.loops = frozenset(loop.name for loop in all_loops())
        self.other.probe = lambda server: None  # it reaches everything

    def cut(self) -> None:
        self._settings.SIMULATOR_URL = NOWHERE

    def heal(self) -> None:
        self._settings.SIMULATOR_URL = self._there
        # A probe that is on its way fails: the address of the test's broken route stays broken.
        wait_until(lambda: not reachability.process._probing)
        reachability.process.record_success(NOWHERE)

    def other_reports(self) -> None:
        """Let the other host find out that it reaches the provider, and this process read that."""

        def has_reported() -> bool:
            reachability.process.step()
            self.other.step()
            return Reachability.objects.filter(process=self.other.name, failing_since=None).exists()

        wait_until(has_reported)
        reachability.process.step()


@pytest.fixture
def route(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Cut:
    monkeypatch.setattr(reachability, "PROBE_S", 0.0)
    monkeypatch.setattr(reachability.process, "probe", probe_server)
    settings.PROVIDER_LOST_AFTER_S = 3600.0  # nobody has had time to report
    return Cut(settings)


def account_of(caller: Caller) -> ProviderAccount:
    account: ProviderAccount = ProviderAccount.objects.get(pk=caller.account.pk)
    return account


def test_requests_of_a_host_that_is_cut_off_begin_no_outage(caller: Caller, route: Cut) -> None:
    route.cut()
    assert caller.call(PHONES[0]).status == "created"
    route.other_reports()
    for phone in PHONES[1:]:
        assert caller.call(phone).status == "created"
    assert account_of(caller).outage == ""
    assert account_of(caller).failed_requests == 0


def test_failures_before_others_had_time_to_report_begin_no_outage(caller: Caller, route: Cut) -> None:
    route.cut()
    for phone in PHONES:
        assert caller.call(phone).status == "created"
    with transaction.atomic():
        for _ in range(5):  # answers to requests that were on their way
            report_outcome(caller.account.pk, Unknown("ReadTimeout"))
    assert (account_of(caller).outage, account_of(caller).failed_requests) == ("", 0)


def test_a_request_without_an_answer_makes_the_process_probe_the_server(route: Cut) -> None:
    import requests

    with pytest.raises(requests.ReadTimeout), twilio_http.record_reachability(f"{NOWHERE}/2010", 5.0):
        raise requests.ReadTimeout
    wait_until(lambda: reachability.process.failing() == {NOWHERE})


def test_a_probe_by_a_host_that_may_be_cut_off_begins_no_outage(
    caller: Caller, route: Cut, step: Callable
) -> None:
    with transaction.atomic():
        report_outcome(caller.account.pk, Unknown("ReadTimeout"))
    route.cut()
    reachability.process.record_failure(NOWHERE, "unplugged")
    for _ in range(4):
        clock.travel(10)
        step("account_probes")
        wait_until(lambda: account_of(caller).probe_at > clock.now() and not PROBES.items())
    assert (account_of(caller).outage, account_of(caller).failed_requests) == ("", 1)


def test_a_provider_that_nobody_reaches_begins_an_outage(caller: Caller, route: Cut, settings: Any) -> None:
    settings.PROVIDER_LOST_AFTER_S = 0.0
    route.other.probe = route.cut  # type: ignore[assignment]
    route.cut()
    for phone in PHONES[:3]:
        assert caller.call(phone).status == "created"
    assert account_of(caller).outage == "no_answer"


def test_a_host_that_is_cut_off_claims_no_calls_and_goes_on_when_it_is_back(
    caller: Caller, route: Cut, step: Callable
) -> None:
    route.cut()
    caller.call(PHONES[0])
    route.other_reports()
    call = caller.create(PHONES[1])
    place_soon(call)
    clock.travel(3)
    step("placer")
    assert list(Call.objects.values_list("status", flat=True)) == ["created", "created"]
    assert not Call.objects.filter(pk=call.pk).exclude(requested_at=None).exists()

    route.heal()
    step("placer")
    is_placed(call)


def test_dialers_of_a_host_that_is_cut_off_claim_no_leads(route: Cut) -> None:
    floor = Floor()
    floor.add(PHONES[0])
    floor.promote()
    reachability.process.record_failure(NOWHERE, "unplugged")
    route.other_reports()
    assert claim().why == "unreachable"
    route.heal()
    assert claim().taken == 1


def claim() -> ClaimResult:
    return PoolRotation().claim_batch("tester", lambda _: 10, lambda _: None)


def test_every_loop_that_asks_the_provider_can_be_handed_over() -> None:
    needy = {loop.name for loop in all_loops() if getattr(loop, "needs_provider", False)}
    assert needy == {
        "placer", "texts", "texts_reconciler", "prices", "account_probes", "calls_unknown", "calls_hang_up",
        "calls_end",
    }  # fmt: skip


@pytest.mark.parametrize("connect_s", [0.2, 5.0])
def test_only_a_fair_connection_attempt_counts(connect_s: float) -> None:
    import requests

    with pytest.raises(requests.ConnectTimeout), twilio_http.record_reachability(f"{NOWHERE}/2010", connect_s):
        raise requests.ConnectTimeout
    assert reachability.process.failing() == ({NOWHERE} if connect_s > 1 else set())


def test_a_server_that_answers_anything_is_reached(sim: Any) -> None:
    probe_server(sim.base_url)
    with pytest.raises(OSError):
        probe_server(NOWHERE)


def test_an_account_is_not_probed_by_a_host_that_is_cut_off(
    caller: Caller, route: Cut, step: Callable, settings: Any
) -> None:
    settings.PROVIDER_LOST_AFTER_S = 0.0
    route.cut()
    for phone in PHONES[:3]:
        caller.call(phone)
    route.other_reports()
    clock.travel(10)
    step("account_probes")
    before = account_of(caller).probe_at
    assert before is not None
    assert before <= clock.now(), "it is left to the other host"
