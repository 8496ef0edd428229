"""While a pool's account is down or refused, offers go through the fallback, and nobody is called twice."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction

from dispatch.capacity import line_leases
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from dispatch.telephony.services.probes import probe_accounts
from notifications.rules import BY_KIND, message_of
from tests.phones import answer
from tests.support import factories

SECOND_SID, SECOND_TOKEN = "AC" + "b2".rjust(32, "0"), "token-of-the-second-account"


@pytest.fixture
def second(floor: Any) -> ProviderAccount:
    """A second account, with a number in the fallback of the floor's pool."""
    floor.sim.add_account(SECOND_SID, SECOND_TOKEN)
    account = factories.account(
        floor.organization, account_sid=SECOND_SID, auth_token=SECOND_TOKEN, calls_per_second=1000.0, name="Second"
    )
    backup = factories.pool(floor.organization, code="backup", name="Backup")
    factories.number(floor.organization, account=account, pool=backup, max_channels=10)
    DispatchPool.objects.filter(pk=floor.number.pool_id).update(fallback=backup)
    return account


def pass_time(floor: Any, seconds: float) -> None:
    until = clock.now().timestamp() + seconds
    while clock.now().timestamp() < until:
        floor.later(1)
        probe_accounts()
        floor.work()
        floor.audit()


def accounts_of_calls() -> list[int]:
    return list(Call.objects.order_by("id").values_list("account_id", flat=True))


def test_offer_goes_through_the_second_account_at_once_if_the_first_is_refused(floor, second):
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(answer(press="1"))
    floor.sim.set_account(status="suspended")
    job = floor.started()
    pass_time(floor, 2)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "provider_refused"), ("Ann", "accepted")]
    assert accounts_of_calls() == [floor.number.account_id, second.pk]
    assert Call.objects.get(account=second).pool.code == "backup"
    assert floor.calls_made(ann) == 1
    began = Event.objects.get(kind="account.outage_began")
    message = message_of(
        BY_KIND[began.kind], {**began.data, **BY_KIND[began.kind].says(began.data), "id": began.subject_id}
    )
    assert message.title.startswith("A phone account fails: The phone provider refused our account")
    assert "Job offers and alert calls are placed from Backup" in message.body


def test_calls_return_when_the_first_account_is_back(floor, second):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="1"))
    floor.phone(bob).will(answer(press="1"))
    floor.sim.set_account(status="suspended")
    first = floor.started()
    pass_time(floor, 2)
    floor.until(lambda: floor.status(first) == "assigned")
    pass_time(floor, 7)
    floor.sim.set_account(status="active")
    pass_time(floor, 12)
    assert not ProviderAccount.objects.exclude(outage="").exists()
    before = Call.objects.count()
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert accounts_of_calls()[before:] == [floor.number.account_id]


def test_unknown_call_stays_with_its_account_and_nobody_is_called_twice(floor, second, settings):
    settings.PROVIDER_TIMEOUT_S = 0.5
    ann, bob, cid = floor.crew("Ann", "Bob", "Cid")
    floor.sim.fault("error_503", times=None, on="any", account=floor.sim.account_sid, creates=True)
    floor.sim.lose_callbacks(to=str(ann.phone))
    floor.sim.lose_webhooks("twiml", times=None, to=str(ann.phone))
    for technician in (bob, cid):
        floor.phone(technician).will(answer(press="1"))
    job = floor.started()
    unknown = Call.objects.get()
    assert unknown.status == "unknown"
    ProviderAccount.objects.filter(pk=unknown.account_id).update(
        outage="no_answer", outage_since=clock.now(), probe_at=clock.now()
    )
    pass_time(floor, 50)
    assert floor.calls_made(ann) == 1, "her phone may still ring"
    assert Call.objects.get(pk=unknown.pk).account_id == floor.number.account_id
    assert not Call.objects.filter(to_phone=ann.phone).exclude(pk=unknown.pk).exists()
    floor.until(lambda: floor.job(job).technician is not None)
    assert floor.job(job).technician in (bob, cid)
    assert {call.account_id for call in Call.objects.exclude(pk=unknown.pk)} == {second.pk}
    floor.sim.heal()
    pass_time(floor, 20)  # an account whose listing failed is left alone for a while
    assert Call.objects.get(pk=unknown.pk).sid, "found in the first account's list"
    assert Call.objects.get(pk=unknown.pk).account_id == floor.number.account_id


def test_lone_technician_is_called_at_once_although_the_first_call_was_withdrawn(floor, second):
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(answer(press="1"))
    floor.sim.fault("reset_before", times=None, on="any", account=floor.sim.account_sid)
    job = floor.started()
    unknown = Call.objects.get()
    pass_time(floor, 60)
    assert ProviderAccount.objects.get(pk=floor.number.account_id).outage == "no_answer"
    Call.objects.filter(pk=unknown.pk, ended_at=None).update(status="not_placed", ended_at=clock.now())
    pass_time(floor, 10)
    floor.until(lambda: floor.status(job) == "assigned")
    assert Call.objects.get(sid__isnull=False).account_id == second.pk


def test_job_waits_as_before_if_the_fallback_is_down_too(floor, second):
    floor.crew("Ann")
    floor.sim.fault("refuse", code=20003, times=None, on="any")
    job = floor.started()
    pass_time(floor, 5)
    assert (floor.status(job), floor.job(job).waiting_for) == ("dispatching", "account")
    assert {account.outage for account in ProviderAccount.objects.all()} == {"refused"}


def test_fallback_of_another_organization_is_never_used(floor):
    (ann,) = floor.crew("Ann")
    theirs = factories.organization()
    floor.sim.add_account(SECOND_SID, SECOND_TOKEN)
    account = factories.account(theirs, account_sid=SECOND_SID, auth_token=SECOND_TOKEN)
    pool = factories.pool(theirs)
    factories.number(theirs, account=account, pool=pool)
    DispatchPool.objects.filter(pk=floor.number.pool_id).update(fallback=pool)  # past all validation
    floor.sim.set_account(status="suspended")
    job = floor.started()
    pass_time(floor, 5)
    assert floor.job(job).waiting_for == "account"
    assert set(accounts_of_calls()) == {floor.number.account_id}
    assert floor.calls_made(ann) == 0


def test_form_refuses_impossible_fallbacks(floor):
    mine = DispatchPool.objects.get(pk=floor.number.pool_id)
    theirs = factories.pool(factories.organization())
    messages = factories.pool(floor.organization, kind="messages")
    for fallback in (mine, theirs, messages):
        mine.fallback = fallback
        with pytest.raises(ValidationError) as refused:
            mine.clean()
        assert set(refused.value.message_dict) == {"fallback"}
    mine.fallback = factories.pool(floor.organization)
    mine.clean()


def test_pool_with_a_working_number_of_its_own_does_not_switch(floor, second):
    (ann,) = floor.crew("Ann")
    third = factories.account(
        floor.organization, account_sid=SECOND_SID, auth_token=SECOND_TOKEN, calls_per_second=1000.0, name="Third"
    )
    own = factories.number(floor.organization, account=third, pool=floor.number.pool, max_channels=5)
    ProviderAccount.objects.filter(pk=floor.number.account_id).update(outage="refused", outage_since=clock.now())
    floor.phone(ann).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert Call.objects.get().number_id == own.pk
    assert OutboundNumber.objects.filter(pool__code="backup").count() == 1
    assert Technician.objects.get().misses_in_a_row == 0


def test_alert_calls_use_the_fallback_and_leads_do_not(floor, second):
    ProviderAccount.objects.filter(pk=floor.number.account_id).update(outage="refused", outage_since=clock.now())
    pool = DispatchPool.objects.get(pk=floor.number.pool_id)
    lines = {}
    for purpose in ("alert", "offer", "lead", "job_news"):
        with transaction.atomic():
            lines[purpose] = line_leases.propose_line(pool, purpose, f"{purpose}:1:1")
    assert [lines[purpose].account_id for purpose in ("alert", "offer")] == [second.pk, second.pk]
    assert [lines[purpose].reason for purpose in ("lead", "job_news")] == ["refused", "refused"]
    with transaction.atomic():
        only = line_leases.propose_line(pool, "alert", "alert:2:1", only=floor.number.pk)
    assert only.reason == "refused", "a named number has no substitute"
