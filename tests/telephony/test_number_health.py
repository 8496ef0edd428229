"""Unhealthy caller numbers rest, never the last one, never because of a few calls, and return by themselves."""

from __future__ import annotations

from itertools import count

import pytest
from django.db import connection, transaction

from dispatch.capacity import bulk, line_leases
from dispatch.capacity.account_outages import Outage
from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.telephony import number_health
from dispatch.telephony.models import Call, NumberHealthPolicy
from dispatch.telephony.services import number_rests
from notifications.rules import ADMINS, BY_KIND
from tests.harness.calls import place_call
from tests.phones import fails
from tests.support import factories
from tests.telephony.conftest import ANN, Caller, now_is

_subjects = count(10_000)


@pytest.fixture
def bad(caller: Caller) -> OutboundNumber:
    """The caller's number, in a pool with another one."""
    factories.number(caller.organization, account=caller.account, pool=caller.pool)
    return caller.number


def other_than(number: OutboundNumber) -> OutboundNumber:
    return OutboundNumber.objects.exclude(pk=number.pk).get()


def history(number: OutboundNumber, calls: int, status: str = "no_answer", code: str = "") -> None:
    """Ended calls from the number."""
    now = clock.now()
    Call.objects.bulk_create(
        Call(
            organization_id=number.organization_id, purpose="lead", subject_id=next(_subjects),
            account_id=number.account_id, number=number, pool_id=number.pool_id, line_slot=1, pool_slot=1,
            to_phone="+16025550199", from_phone=str(number.phone), status=status, sid=f"CA{next(_subjects)}",
            place_by=now, created_at=now, requested_at=now, ended_at=now, error_code=code,
            answered_at=now if status == "completed" else None,
        )
        for _ in range(calls)
    )  # fmt: skip


def fresh(number: OutboundNumber) -> OutboundNumber:
    return OutboundNumber.objects.get(pk=number.pk)


def rests(number: OutboundNumber) -> bool:
    return number_health.is_resting(fresh(number))


def chosen(caller: Caller, times: int = 6) -> set[int]:
    """The numbers that calls are placed from."""
    found = set()
    for n in range(times):
        with transaction.atomic():
            line = line_leases.propose_line(caller.pool, "offer", f"test:{n}:1")
        assert isinstance(line, line_leases.LineProposal)
        found.add(line.number_id)
        line_leases.return_lines(f"test:{n}:1")
    limits = bulk.load_pool_limits(caller.pool.pk)
    assert limits is not None
    assert found <= set(limits.numbers)
    return set(limits.numbers)


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        ("no_answer", "", "only 0 of 60 calls were answered"),
        ("failed", "SIP 503", "60 of 60 calls failed"),
        ("failed", "SIP 608", "carriers blocked 60 of 60 calls"),
        ("failed", "32017", "carriers blocked 60 of 60 calls"),
    ],
)
def test_bad_number_rests_and_admins_are_notified_once(
    caller: Caller, bad: OutboundNumber, status: str, code: str, reason: str
) -> None:
    history(bad, 60, status, code)
    assert number_rests.judge_numbers() == 1
    assert number_rests.judge_numbers() == 0
    assert fresh(bad).rest_reason == reason
    assert chosen(caller) == {other_than(bad).pk}
    (event,) = Event.objects.filter(kind="number.rested")
    assert (event.subject_id, event.data["reason"]) == (bad.pk, reason)
    assert BY_KIND["number.rested"].to == ADMINS


def test_unreadable_account_of_another_organization_stops_no_judgment(caller: Caller, bad: OutboundNumber) -> None:
    other = factories.organization()
    account = factories.account(other)
    unreadable = factories.number(other, account=account, pool=factories.pool(other))
    history(unreadable, 60, "failed", "32017")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE capacity_provideraccount SET auth_token = 'gAAAA-bad' WHERE id = %s", [account.pk])
    history(bad, 60, "failed", "32017")
    assert number_rests.judge_numbers() == 1
    assert fresh(bad).rest_reason == "carriers blocked 60 of 60 calls"


def test_few_calls_are_no_evidence(caller: Caller, bad: OutboundNumber) -> None:
    history(bad, 49)
    assert number_rests.judge_numbers() == 0
    history(bad, 1)
    assert number_rests.judge_numbers() == 1


def test_healthy_number_does_not_rest(caller: Caller, bad: OutboundNumber) -> None:
    history(bad, 40)
    history(bad, 20, "completed")
    history(bad, 200, "failed", "21211")  # wrong phones say nothing about the caller
    assert number_rests.judge_numbers() == 0


def test_last_healthy_number_never_rests(caller: Caller, bad: OutboundNumber) -> None:
    other = other_than(bad)
    history(bad, 60)
    history(other, 60)
    assert number_rests.judge_numbers() == 0, "both are bad"
    history(other, 60, "completed")
    assert number_rests.judge_numbers() == 1
    assert rests(bad)
    history(other, 600)
    assert number_rests.judge_numbers() == 0, "the other one rests"
    assert chosen(caller) == {other.pk}


def test_resting_number_is_used_if_no_other_is_left(caller: Caller, bad: OutboundNumber) -> None:
    history(bad, 60)
    number_rests.judge_numbers()
    OutboundNumber.objects.filter(pk=other_than(bad).pk).update(is_paused=True)
    assert chosen(caller) == {bad.pk}


@pytest.mark.parametrize("obstacle", ["paused", "inactive", "outage"])
def test_number_that_cannot_be_used_is_no_substitute(caller: Caller, bad: OutboundNumber, obstacle: str) -> None:
    other = other_than(bad)
    second = factories.account(caller.organization, name="Second")
    OutboundNumber.objects.filter(pk=other.pk).update(account=second, is_paused=obstacle == "paused")
    ProviderAccount.objects.filter(pk=second.pk).update(
        is_active=obstacle != "inactive", outage=Outage.REFUSED if obstacle == "outage" else ""
    )
    history(bad, 60)
    assert number_rests.judge_numbers() == 0


def test_number_returns_by_itself_with_a_clean_window(caller: Caller, bad: OutboundNumber) -> None:
    NumberHealthPolicy.objects.create(organization=caller.organization, window_hours=24, rest_hours=2)
    history(bad, 60)
    number_rests.judge_numbers()
    clock.travel(2 * 3600 + 1)
    assert chosen(caller) == {bad.pk, other_than(bad).pk}
    assert number_rests.judge_numbers() == 0, "its earlier calls no longer count"
    history(bad, 60)
    assert number_rests.judge_numbers() == 1


def test_admin_ends_a_rest(caller: Caller, bad: OutboundNumber) -> None:
    history(bad, 60)
    number_rests.judge_numbers()
    assert number_rests.end_rest(fresh(bad), actor=SYSTEM)
    assert not rests(bad)
    assert number_rests.judge_numbers() == 0
    assert not number_rests.end_rest(fresh(bad), actor=SYSTEM)


def test_thresholds_of_one_organization_apply_only_there(caller: Caller, bad: OutboundNumber) -> None:
    theirs = factories.organization()
    mine = NumberHealthPolicy(organization=theirs, min_calls=10, min_answer_percent=100)
    number_rests.save_policy(mine, {"min_calls": 10}, actor=SYSTEM)
    history(bad, 20)
    assert number_rests.judge_numbers() == 0
    number_rests.save_policy(
        NumberHealthPolicy(organization=caller.organization, min_calls=10), {"min_calls": 10}, actor=SYSTEM
    )
    assert number_rests.judge_numbers() == 1


def test_test_call_is_placed_from_a_resting_number(caller: Caller, bad: OutboundNumber) -> None:
    history(bad, 60)
    number_rests.judge_numbers()
    assert caller.create(ANN, number=bad).number_id == bad.pk


def test_blocked_calls_of_the_provider_are_counted(caller: Caller, bad: OutboundNumber) -> None:
    caller.sim.phone(ANN).will(fails(32017))
    call = place_call(caller.create(ANN, number=bad).pk)
    now_is(call, "failed")
    Call.objects.filter(pk=call.pk).update(purpose="lead")
    assert number_health.call_health(bad).describe() == "0 of 1 calls answered, 1 failed, 1 blocked by carriers"


def test_page_of_the_number_says_that_it_rests(caller: Caller, bad: OutboundNumber) -> None:
    history(bad, 60)
    number_rests.judge_numbers()
    admin = factories.browser(factories.admin(caller.organization))
    page = admin.get(f"/admin/capacity/outboundnumber/{bad.pk}/change/").content.decode()
    assert "rests until" in page
    assert "only 0 of 60 calls were answered" in page
    listing = admin.get("/admin/capacity/outboundnumber/").content.decode()
    assert "resting" in listing
