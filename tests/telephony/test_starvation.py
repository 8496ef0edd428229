"""Rows that fail at the front of a queue do not keep a loop from the rows behind them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection

from dispatch.core import clock
from dispatch.telephony.models import Call, CallEvent, Text
from dispatch.telephony.services import inbound, keys, reconciliation
from tests.support import factories
from tests.telephony.conftest import Caller, caller, listener, step

__all__ = ["caller", "listener", "step"]

pytestmark = pytest.mark.django_db(transaction=True)


def received(caller: Caller, sid: str) -> Text:
    number = caller.number
    return Text.objects.create(
        organization=caller.organization, account=number.account, number=number, direction=Text.Direction.IN,
        sid=sid, to_phone=str(number.phone), from_phone="+16025550101", body="hello", status=Text.Status.RECEIVED,
        not_after=clock.now(), ended_at=clock.now(), created_at=clock.now() - timedelta(minutes=1),
    )  # fmt: skip


def test_received_texts_behind_failing_ones_are_processed(
    caller: Caller, step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [received(caller, f"SM{n}") for n in range(4)]
    poison = {text.pk for text in texts[:3]}
    real = inbound.process_text
    monkeypatch.setattr(inbound, "BATCH", 2)
    monkeypatch.setattr(inbound, "process_text", lambda pk: 1 / 0 if pk in poison else real(pk))
    for _ in range(2):
        step("texts_reconciler")
    assert [text.pk for text in Text.objects.exclude(handled_at=None)] == [texts[3].pk]


def test_interrupted_requests_behind_failing_ones_become_unknown(
    caller: Caller, step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [caller.create(f"+1602555010{n}") for n in range(1, 5)]
    Call.objects.update(status="requesting", send_by=clock.now() - timedelta(minutes=5))
    poison = {call.pk for call in calls[:3]}
    real = reconciliation.transition
    monkeypatch.setattr(reconciliation, "BATCH", 2)
    monkeypatch.setattr(
        reconciliation,
        "transition",
        lambda call, *args, **kw: 1 / 0 if call.pk in poison else real(call, *args, **kw),
    )
    for _ in range(2):
        step("calls_cut_off")
    assert Call.objects.get(pk=calls[3].pk).status == "unknown"


def test_keys_of_an_unreadable_account_starve_no_others_and_are_given_up(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [caller.create(f"+1602555010{n}") for n in range(1, 5)]
    other = factories.account(factories.organization(), account_sid="AC" + "9" * 32)
    Call.objects.filter(pk__in=[call.pk for call in calls[:3]]).update(account=other)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE capacity_provideraccount SET auth_token = 'gAAAA-bad' WHERE id = %s", [other.pk])
    for call in calls:
        CallEvent.objects.create(
            organization=call.organization, call=call, key=f"k{call.pk}", kind=keys.GATHER, at=clock.now(),
            payload={"Digits": "1"}, next_action_at=clock.now() - timedelta(seconds=1),
        )  # fmt: skip
    monkeypatch.setattr(keys, "BATCH", 2)
    for _ in range(2):
        keys.apply_unhandled_keys()
    assert [pk for pk, _ in caller.listener.keys] == [calls[3].pk]
    clock.travel(2 * 3600)
    keys._blocked.clear()
    for _ in range(3):
        keys.apply_unhandled_keys()
    assert not CallEvent.objects.exclude(next_action_at=None).exists()
