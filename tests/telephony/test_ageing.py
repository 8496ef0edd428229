"""Old calls, texts and payloads are forgotten; what is open never is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.telephony import retention
from dispatch.telephony.models import Call, CallEvent, InboundCall, OptOut, Text
from tests.support.tenants import Tenant, tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours() -> Tenant:
    return tenant("Alphaville")


def ended(ours: Tenant) -> None:
    now = clock.now()
    Call.objects.update(ended_at=now, requested_at=now, status="completed")
    Text.objects.update(ended_at=now)
    InboundCall.objects.update(ended_at=now)


def later() -> object:
    return clock.now() + timedelta(seconds=1)


def test_ended_calls_are_deleted_with_their_reports(ours):
    pk = ours.organization.pk
    assert retention.delete_calls(pk, later(), 10) == 0, "it is open"
    ended(ours)
    assert retention.delete_calls(pk, clock.now() - timedelta(days=1), 10) == 0, "it is not old"
    assert retention.delete_calls(pk, later(), 1) == 1
    assert (Call.objects.count(), CallEvent.objects.count()) == (0, 0)
    assert InboundCall.objects.count() == 1, "no more than was asked for"
    assert retention.delete_calls(pk, later(), 10) == 1
    assert retention.delete_calls(pk, later(), 10) == 0


def test_a_call_that_was_never_asked_for_goes_too(ours):
    Call.objects.update(ended_at=clock.now(), requested_at=None, status="canceled")
    assert retention.delete_calls(ours.organization.pk, later(), 10) >= 1
    assert not Call.objects.exists()


def test_texts_are_deleted_and_opt_outs_stay(ours):
    opted_out = OptOut.objects.count()
    ended(ours)
    count = Text.objects.count()
    assert count
    assert retention.delete_texts(ours.organization.pk, later(), 10) == count
    assert (Text.objects.count(), OptOut.objects.count()) == (0, opted_out)


def test_payloads_go_when_their_call_is_over(ours):
    pk = ours.organization.pk
    assert retention.delete_payloads(pk, later(), 10) == 0
    ended(ours)
    assert retention.delete_payloads(pk, later(), 10) == 1
    assert (Call.objects.count(), CallEvent.objects.count()) == (1, 0)


def test_nobody_else_s_rows_are_touched(ours):
    ended(ours)
    stranger = tenant("Bravotown").organization.pk
    for forget in (retention.delete_calls, retention.delete_texts, retention.delete_payloads):
        assert forget(stranger, later(), 10) == 0
    assert Call.objects.of(ours.organization).count() == 1
