"""Hundreds of texts that cannot be sent now cost a few claims in each pause, and keep their order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.telephony import services, sql
from dispatch.telephony.models import Text
from dispatch.telephony.services import sms_requests, spend_caps
from tests.core.test_loop_isolation import due_text
from tests.support import factories as make
from tests.support.copies import copy_row
from tests.support.waiting import wait_until
from tests.telephony.conftest import ANN, Caller, create_text, text_is
from tests.telephony.test_spend_caps import cap_of, raise_to

pytestmark = pytest.mark.django_db(transaction=True)

CROWD = 100
PAUSE = timedelta(minutes=10)
MOST = 1 + sql.CHECKED_ALONE


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pause have just begun that no test outlasts."""
    for name in ("PAUSED_RETRY", "OUTAGE_RETRY", "CAP_RETRY"):
        monkeypatch.setattr(sms_requests, name, PAUSE)
    begin_pause()


def begin_pause(length: timedelta = PAUSE) -> None:
    clock.travel((length - (clock.now() - datetime(2000, 1, 1, tzinfo=UTC)) % length).total_seconds())


def crowd(organization: Organization, **values: str) -> list[int]:
    """Create texts that are due, of one number, and return their ids in order."""
    first = due_text(organization)
    copied = {"subject_id": "1000000 + n", "to_phone": "'+1602' || 7550000 + n", **values}
    assert copy_row(first, CROWD - 1, copied) == CROWD - 1
    texts = Text.objects.filter(organization=organization)
    texts.update(not_before=clock.now(), not_after=clock.now() + timedelta(days=1))
    return list(texts.order_by("pk").values_list("pk", flat=True))


def claimed(organization: Organization) -> list[int]:
    """Claim the organization's texts that are due, one after another, until none is; return them."""
    found: list[int] = []
    while due := [row.id for row in sql.texts_to_send(clock.now(), 64)]:
        services.send_text(due[0])
        found.append(due[0])
        assert len(found) <= 2 * CROWD
    return found


def pause_number(organization: Organization, is_on: bool) -> None:
    OutboundNumber.objects.of(organization).update(is_paused=is_on)


def forbid_texts(organization: Organization, is_on: bool) -> None:
    OutboundNumber.objects.of(organization).update(sends_texts=not is_on)


def suspend(organization: Organization, is_on: bool) -> None:
    Organization.objects.filter(pk=organization.pk).update(is_active=not is_on)


def deactivate_account(organization: Organization, is_on: bool) -> None:
    ProviderAccount.objects.of(organization).update(is_active=not is_on)


def begin_outage(organization: Organization, is_on: bool) -> None:
    ProviderAccount.objects.of(organization).update(outage="no_answer" if is_on else "", outage_since=clock.now())


OBSTACLES = [pause_number, forbid_texts, suspend, deactivate_account, begin_outage]


@pytest.mark.parametrize("obstruct", OBSTACLES)
@pytest.mark.usefixtures("long_pauses")
def test_texts_that_cannot_be_sent_cost_a_few_claims_in_a_pause(
    obstruct: Callable[[Organization, bool], None],
) -> None:
    organization = make.organization()
    texts = crowd(organization)
    obstruct(organization, True)
    checked = set()
    for _ in range(3):
        found = claimed(organization)
        assert len(found) == MOST
        checked |= set(found)
        begin_pause()
    assert len(checked) > MOST, "others are checked in the next pause"
    obstruct(organization, False)
    assert [row.id for row in sql.texts_to_send(clock.now(), CROWD)] == texts, "all are due, in their order"


@pytest.mark.usefixtures("long_pauses")
def test_a_new_text_waits_in_order_behind_those_that_wait_already() -> None:
    organization = make.organization()
    texts = crowd(organization)
    pause_number(organization, True)
    claimed(organization)
    first = Text.objects.get(pk=texts[0])
    copy_row(first, 1, {"subject_id": "5000000", "not_before": "created_at"})
    copy_row(first, 1, {"subject_id": "5000001", "not_before": "created_at", "purpose": "'reply'"})
    news, reply = Text.objects.filter(subject_id__gte=5_000_000).order_by("subject_id")
    assert claimed(organization) == [reply.pk, news.pk]
    begin_pause()
    assert [row.id for row in sql.texts_to_send(clock.now(), CROWD + 2)] == [reply.pk, *texts, news.pk]


@pytest.mark.usefixtures("long_pauses")
def test_texts_of_another_number_and_later_ones_are_not_postponed() -> None:
    organization = make.organization()
    texts = crowd(organization)
    later = clock.now() + timedelta(minutes=3)
    Text.objects.filter(pk=texts[-1]).update(not_before=later)
    OutboundNumber.objects.of(organization).update(is_paused=True)
    other = make.number(organization, sends_texts=True)
    Text.objects.filter(pk=texts[-2]).update(number=other)
    services.send_text(texts[0])
    assert Text.objects.get(pk=texts[-1]).not_before == later
    assert Text.objects.get(pk=texts[-2]).not_before <= clock.now()


@pytest.mark.usefixtures("long_pauses")
def test_a_postponed_text_ends_at_its_deadline() -> None:
    organization = make.organization()
    texts = crowd(organization)
    pause_number(organization, True)
    claimed(organization)
    moved = Text.objects.filter(pk__in=texts, not_before__gt=clock.now())
    assert moved.count() == CROWD
    Text.objects.filter(pk=texts[-1]).update(not_after=clock.now())
    assert claimed(organization) == [texts[-1]]
    assert Text.objects.get(pk=texts[-1]).status == "not_sent"


@pytest.mark.usefixtures("long_pauses")
def test_only_texts_that_no_other_number_may_send_wait_for_an_account() -> None:
    organization = make.organization()
    texts = crowd(organization, purpose="CASE WHEN n %% 2 = 0 THEN 'reply' ELSE 'job' END")
    begin_outage(organization, True)
    number = OutboundNumber.objects.of(organization).get()
    working = make.account(organization)
    make.number(organization, account=working, pool=number.pool, sends_texts=True)
    replies = list(Text.objects.filter(pk__in=texts, purpose__in=("reply", "test")).order_by("pk"))
    services.send_text(replies[0].pk)
    still_due = Text.objects.filter(pk__in=texts, not_before__lte=clock.now())
    assert still_due.filter(purpose__in=("reply", "test")).count() == sql.CHECKED_ALONE
    assert still_due.filter(purpose="job").count() == CROWD - len(replies)
    job = still_due.filter(purpose="job").first()
    assert job is not None
    services.send_text(job.pk)
    assert Text.objects.get(pk=job.pk).account == working


@pytest.mark.usefixtures("long_pauses")
def test_texts_that_the_spending_cap_holds_back_cost_a_few_claims_in_a_pause() -> None:
    organization = make.organization()
    texts = crowd(organization)
    cap = cap_of(organization, "0.00")
    assert claimed(organization) == texts, "each is held back once"
    held = Event.objects.filter(kind="text.held_back", organization_id=organization.pk)
    assert held.count() == CROWD
    begin_pause()
    begin_pause()
    assert len(claimed(organization)) == MOST
    assert held.count() == CROWD
    assert not Text.objects.filter(pk__in=texts).exclude(error_message__startswith=spend_caps.REACHED).exists()
    raise_to(cap, "1000.00")
    assert [row.id for row in sql.texts_to_send(clock.now(), CROWD)] == texts


def test_waiting_texts_are_sent_soon_after_their_number_may_send(texter: Caller, step: Callable) -> None:
    texts = [create_text(texter, subject_id=n) for n in range(1, 3 * MOST)]
    pause_number(texter.organization, True)
    waiting = Text.objects.filter(status="created", not_before__lte=clock.now())
    wait_until(lambda: step("texts") and not waiting.exists())
    pause_number(texter.organization, False)
    clock.travel(sms_requests.PAUSED_RETRY.total_seconds())
    wait_until(lambda: step("texts") != 0.0 and not Text.objects.filter(status="created").exists())
    for text in texts:
        text_is(text, "delivered")
    assert len(texter.sim.messages(to=ANN)) == len(texts)


def test_the_pause_of_thousands_of_texts_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sms_requests, "PAUSED_RETRY", timedelta(seconds=12))
    organization = make.organization()
    texts = crowd(organization)
    more = {"subject_id": "2000000 + n", "not_before": "created_at", "not_after": "t.not_after"}
    copy_row(Text.objects.get(pk=texts[0]), sql.PAUSED_TOGETHER, more)
    pause_number(organization, True)
    begin_pause(timedelta(seconds=24))
    services.send_text(texts[0])
    found = Text.objects.filter(organization=organization, not_before__gt=clock.now())
    (at,) = found.order_by().values_list("not_before", flat=True).distinct()
    assert (at - datetime(2000, 1, 1, tzinfo=UTC)) % timedelta(seconds=24) == timedelta()
    assert found.count() == CROWD + sql.PAUSED_TOGETHER - sql.CHECKED_ALONE
