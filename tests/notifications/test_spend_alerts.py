"""The daily spending cap alerts dispatchers and admins once, and a number that rests its admins."""

from __future__ import annotations

from decimal import Decimal

import pytest

from dispatch.capacity.models import OutboundNumber
from dispatch.core.events import Actor
from dispatch.telephony.models import SpendCap
from dispatch.telephony.services import number_rests, spend_caps
from notifications import loops
from notifications.models import Alert, EscalationPolicy, Notification, Preference, Route
from tests.core.horizon import all_readable
from tests.support.tenants import Tenant, tenant

pytestmark = pytest.mark.django_db(transaction=True)

ANA = Actor("user", 1, "Ana")


@pytest.fixture
def ours() -> Tenant:
    made = tenant("Alphaville")
    for model in (Notification, Alert, Route, Preference, EscalationPolicy):
        model.objects.all().delete()
    return made


def notify() -> None:
    """Run the notifier until nothing is left."""
    all_readable()
    while loops.step() == 0:
        pass


def set_amount(of: Tenant, amount: str) -> SpendCap:
    cap = SpendCap.objects.get(organization=of.organization)
    cap.amount = Decimal(amount)
    spend_caps.save_cap(cap, {"amount": cap.amount}, actor=ANA)
    return cap


def test_cap_alerts_dispatchers_and_admins_until_it_is_raised(ours: Tenant) -> None:
    set_amount(ours, "0.00")
    for _ in range(3):
        spend_caps.count_all()
    notify()
    rows = list(Notification.objects.all())
    assert {row.user for row in rows} == {ours.dispatcher, ours.admin}
    assert len(rows) == 2, "once"
    title = "Calls and texts have stopped: the daily spending cap of 0.00 USD is reached"
    assert {(row.level, row.title) for row in rows} == {("critical", title)}
    assert "An admin can raise the cap under Daily spending caps." in rows[0].body
    set_amount(ours, "100.00")
    notify()
    assert {row.settled_how for row in Notification.objects.all()} == {"Ana allowed calls and texts again"}


def test_warning_names_the_share_and_what_follows(ours: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    cap = set_amount(ours, "10.00")
    SpendCap.objects.filter(pk=cap.pk).update(warn_percent=1)
    spent = spend_caps.price_sql.Spent(Decimal("8.10"), {}, 0, 0, 0)
    monkeypatch.setattr(spend_caps.price_sql, "spent_between", lambda *span: spent)
    for _ in range(3):
        spend_caps.count_all()
    notify()
    rows = list(Notification.objects.all())
    assert {row.user for row in rows} == {ours.dispatcher, ours.admin}
    assert {(row.level, row.title) for row in rows} == {
        ("toast", "1 % of the daily spending cap of 10.00 USD is used")
    }
    assert rows[0].body.startswith("Spent: 8.10 USD")
    assert len(rows) == 2


def test_notification_names_what_the_cap_does_not_count(ours: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    set_amount(ours, "10.00")
    spent = spend_caps.price_sql.Spent(Decimal("0.50"), {"EUR": Decimal("0.70")}, 0, 0, 0)
    monkeypatch.setattr(spend_caps.price_sql, "spent_between", lambda *span: spent)
    for _ in range(3):
        spend_caps.count_all()
    notify()
    rows = list(Notification.objects.all())
    assert {row.user for row in rows} == {ours.dispatcher, ours.admin}
    assert {row.title for row in rows} == {"The daily spending cap does not count 0.70 EUR"}
    assert "The cap: 10.00 USD" in rows[0].body
    assert len(rows) == 2


def test_resting_number_is_reported_to_admins_only(ours: Tenant) -> None:
    number = ours.row(OutboundNumber)
    policy = number_rests.number_health.policy_of(ours.organization.pk)
    assert number_rests._begin_rest(number, "only 3 of 60 calls were answered", policy)
    assert not number_rests._begin_rest(number, "only 3 of 60 calls were answered", policy)
    notify()
    row = Notification.objects.get()
    assert row.user == ours.admin
    assert row.title == f"Caller number {number} is avoided: only 3 of 60 calls were answered"
    assert "returns by itself" in row.body
