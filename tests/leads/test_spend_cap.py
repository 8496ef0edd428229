"""Leads wait while the organization's daily spending cap is reached, and none is lost."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.leads.explain import explain_lead
from dispatch.telephony.models import Call, SpendCap
from dispatch.telephony.services import spend_caps
from tests.harness.leads import Floor

pytestmark = pytest.mark.django_db(transaction=True)


def set_cap(floor: Floor, amount: str) -> SpendCap:
    cap = SpendCap.objects.filter(organization=floor.organization).first() or SpendCap(
        organization=floor.organization
    )
    cap.amount = Decimal(amount)
    spend_caps.save_cap(cap, {"amount": cap.amount}, actor=SYSTEM)
    return cap


def test_leads_wait_for_the_cap_and_all_are_called_after_a_raise(floor: Floor) -> None:
    set_cap(floor, "0.00")
    ids = floor.add_many(3)
    assert floor.work() == 0
    assert {floor.status(pk) for pk in ids} == {"backlog"}
    assert "The daily spending cap of 0.00 USD is reached" in explain_lead(floor.lead(ids[0]))
    set_cap(floor, "10.00")
    assert floor.work() == 3
    assert {floor.status(pk) for pk in ids} == {"finished"}


@pytest.mark.floor(provider="noop", lines=20)
def test_batch_of_leads_is_cut_to_what_the_cap_allows(floor: Floor, settings: Any) -> None:
    settings.SPEND_CALL_ESTIMATE = Decimal("0.10")
    ids = floor.add_many(10)
    cap = set_cap(floor, "0.35")
    assert floor.work() == 3
    assert Call.objects.count() == 3
    assert sorted(floor.status(pk) for pk in ids) == ["backlog"] * 7 + ["processing"] * 3
    assert SpendCap.objects.get(pk=cap.pk).spent == Decimal("0.30")
    assert floor.work() == 0
    set_cap(floor, "5.00")
    assert floor.work() == 7, "nothing was lost"


def test_leads_continue_on_the_next_day(floor: Floor) -> None:
    cap = set_cap(floor, "1.00")
    SpendCap.objects.filter(pk=cap.pk).update(spent=Decimal(1), settled=Decimal(1), stopped_at=clock.now())
    floor.add_many(2)
    assert floor.work() == 0
    clock.travel(86_400)
    assert floor.work() == 2
