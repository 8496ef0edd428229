"""What an organization may spend in its local day holds, also against bursts, late prices and odd ones."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, connections, transaction

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.telephony import handlers, price_sql, services
from dispatch.telephony.errors import NoLine
from dispatch.telephony.models import Call, ExchangeRate, SpendCap, Text
from dispatch.telephony.services import exchange_rates, spend_caps
from notifications.models import Notification
from notifications.rules import BY_KIND, EVERYBODY
from tests.api.client import Api
from tests.harness.calls import place_call
from tests.phones import answer
from tests.support import factories
from tests.support.row_locks import held
from tests.telephony.conftest import ANN, Caller, Listener, create_text, now_is

BOB = "+16025550102"


def cap_of(organization: Organization, amount: str | None = "1.00", **fields: Any) -> SpendCap:
    cap = SpendCap(organization=organization, amount=None if amount is None else Decimal(amount), **fields)
    spend_caps.save_cap(cap, {"amount": cap.amount}, actor=SYSTEM)
    return stored(cap)


def stored(cap: SpendCap) -> SpendCap:
    return SpendCap.objects.get(pk=cap.pk)


def raise_to(cap: SpendCap, amount: str | None) -> SpendCap:
    cap = stored(cap)
    cap.amount = None if amount is None else Decimal(amount)
    spend_caps.save_cap(cap, {"amount": cap.amount}, actor=SYSTEM)
    return stored(cap)


def spend(caller: Caller, amount: str, unit: str = "USD", at: datetime | None = None) -> Call:
    """An ended call with this price."""
    at = at or clock.now()
    caller._subject += 1
    return Call.objects.create(
        organization=caller.organization, purpose="test", subject_id=caller._subject, account=caller.account,
        number=caller.number, pool=caller.pool, line_slot=1, pool_slot=1, to_phone=BOB,
        from_phone=str(caller.number.phone), status="completed", sid=f"CA-{caller._subject}", place_by=at,
        created_at=at, requested_at=at, ended_at=at, price=Decimal(amount), price_unit=unit,
    )  # fmt: skip


def kinds(cap: SpendCap) -> list[str]:
    found = Event.objects.filter(subject_type="spend_cap", subject_id=cap.pk).order_by("id")
    return [kind.removeprefix("spend_cap.") for kind in found.values_list("kind", flat=True)]


@pytest.fixture(autouse=True)
def _noon() -> None:
    """Begin at noon of the organizations' default zone, so that no test runs over midnight."""
    clock.travel((local("America/New_York", 12, 0) - clock.now()).total_seconds())


@pytest.fixture
def alerting(listener: Listener) -> Iterator[None]:
    before = handlers._handlers.get("alert")
    handlers.register_calls("alert", listener)
    yield
    if before is not None:
        handlers.register_calls("alert", before)


def test_without_an_amount_there_is_no_cap(caller: Caller) -> None:
    cap = cap_of(caller.organization, None)
    spend(caller, "1000")
    assert spend_caps.count_all() == 0
    assert caller.create(ANN).status == "created"
    assert kinds(cap) == ["added"]


def test_cap_warns_once_and_then_stops_everything_but_alert_calls(caller: Caller, alerting: None) -> None:
    cap = cap_of(caller.organization, "1.00")
    spend(caller, "0.79")
    spend_caps.count_all()
    assert kinds(cap) == ["added"]
    spend(caller, "0.02")
    for _ in range(3):
        spend_caps.count_all()
    assert kinds(cap) == ["added", "warned"]
    assert caller.create(ANN).status == "created"
    spend(caller, "0.30")
    for _ in range(3):
        spend_caps.count_all()
    assert kinds(cap) == ["added", "warned", "reached"]
    with pytest.raises(NoLine) as held:
        caller.create(BOB)
    assert held.value.reason == "spend_cap"
    assert "The daily spending cap of 1.00 USD is reached" in str(held.value)
    assert "raise the cap" in str(held.value)
    alert = caller.call("+16025550109", purpose="alert")
    assert alert.sid, "alert calls go on"


def test_everybody_is_alerted(caller: Caller) -> None:
    assert BY_KIND["spend_cap.reached"].to == EVERYBODY
    assert BY_KIND["spend_cap.reached"].level == "critical"
    assert BY_KIND["spend_cap.warned"].to == EVERYBODY
    assert not Notification.objects.exists()


def test_a_created_call_is_not_placed_once_the_cap_is_reached(caller: Caller) -> None:
    cap = cap_of(caller.organization, "1.00")
    call = caller.create(ANN)
    spend(caller, "1.00")
    spend_caps.count_all()
    placed = place_call(call.pk)
    assert (placed.status, placed.sid) == ("not_placed", None)
    assert placed.error_message.startswith("The daily spending cap of 1.00 USD is reached")
    assert stored(cap).stopped_at is not None
    assert caller.sim.asked_for(ANN) == 0


def test_texts_wait_for_the_cap_and_are_sent_after_a_raise(texter: Caller) -> None:
    cap = cap_of(texter.organization, "1.00")
    spend(texter, "1.00")
    spend_caps.count_all()
    text = services.send_text(create_text(texter).pk)
    assert text.status == "created"
    assert text.error_message.startswith("The daily spending cap")
    clock.travel(61)
    assert services.send_text(text.pk).status == "created"
    held = Event.objects.filter(subject_type="text", subject_id=text.pk, kind="text.held_back")
    assert held.count() == 1, "said once"
    raise_to(cap, "5.00")
    sent = services.send_text(text.pk)
    assert sent.sid
    assert sent.error_message == ""


def test_text_whose_deadline_passes_says_that_the_cap_was_the_cause(texter: Caller) -> None:
    cap_of(texter.organization, "0.00")
    text = services.send_text(create_text(texter, not_after=clock.now() + timedelta(minutes=5)).pk)
    clock.travel(301)
    ended = services.send_text(text.pk)
    assert (ended.status, ended.error_message[:22]) == ("not_sent", "The daily spending cap")


def test_raised_or_removed_cap_resumes_at_once(caller: Caller) -> None:
    resumed: list[int] = []
    spend_caps.on_resume(resumed.append)
    try:
        cap = cap_of(caller.organization, "1.00")
        spend(caller, "1.50")
        spend_caps.count_all()
        assert stored(cap).stopped_at is not None
        raise_to(cap, "1.40")
        assert resumed == []
        assert stored(cap).stopped_at is not None, "not enough"
        raise_to(cap, "1.60")
        assert resumed == [caller.organization.pk]
        assert caller.create(ANN).status == "created"
        raise_to(cap, "1.00")
        assert stored(cap).stopped_at is not None
        raise_to(cap, None)
        assert resumed == [caller.organization.pk] * 2
        assert kinds(cap).count("reached") == 2
        assert kinds(cap).count("resumed") == 2
    finally:
        spend_caps._on_resume.remove(resumed.append)


def test_burst_of_placers_never_reserves_more_than_the_cap(caller: Caller, settings: Any) -> None:
    settings.SPEND_CALL_ESTIMATE = Decimal("0.10")
    cap = cap_of(caller.organization, "0.55")
    OutboundNumber.objects.filter(pk=caller.number.pk).update(max_channels=50)
    caller.pool.concurrency = 50
    caller.pool.save()
    calls = [caller.create(f"+1602555{n:04d}") for n in range(120, 140)]

    def place(call: Call) -> None:
        try:
            place_call(call.pk)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(place, calls))
    clock.travel(5)  # some waited for the account's rate
    for call in Call.objects.filter(status="created"):
        place_call(call.pk)
    assert Call.objects.filter(status="created").count() == 0
    assert Call.objects.exclude(sid=None).count() == 5, "5 x 0.10 fit within 0.55"
    assert stored(cap).spent == Decimal("0.50")
    spend_caps.count_all()
    assert stored(cap).spent == Decimal("0.50"), "counted from the calls, it is the same"


def test_calls_in_progress_are_held_for_but_alert_nobody(caller: Caller, settings: Any) -> None:
    settings.SPEND_CALL_ESTIMATE = Decimal("0.60")
    cap = cap_of(caller.organization, "1.00")
    first = caller.call(ANN)
    with pytest.raises(NoLine):
        caller.create(BOB)
    spend_caps.count_all()
    assert stored(cap).stopped_at is None, "the call may end unanswered"
    services.hang_up(first.pk)
    now_is(first, "canceled")
    spend_caps.count_all()
    assert caller.create(BOB).status == "created"
    assert kinds(cap) == ["added"]


def test_late_price_replaces_the_estimate(caller: Caller, settings: Any) -> None:
    settings.SPEND_CALL_ESTIMATE = Decimal("0.40")
    cap = cap_of(caller.organization, "1.00")
    caller.sim.phone(ANN).will(answer(press="1"))
    call = now_is(caller.call(ANN), "completed")
    spend_caps.count_all()
    assert stored(cap).settled == Decimal("0.40")
    Call.objects.filter(pk=call.pk).update(price=Decimal("0.013"), price_unit="USD")
    spend_caps.count_all()
    assert stored(cap).settled == Decimal("0.013")
    Call.objects.filter(pk=call.pk).update(price=Decimal("2.5"))
    spend_caps.count_all()
    assert kinds(cap)[-1] == "reached"


def test_estimate_is_the_average_of_recent_prices_without_the_highest_tenth(caller: Caller) -> None:
    cap = cap_of(caller.organization, "10000000.00")
    for _ in range(9):
        spend(caller, "0.02")
    spend_caps.count_all()
    assert stored(cap).call_average is None, "too few"
    spend(caller, "5000")
    spend_caps.count_all()
    assert stored(cap).call_average == Decimal("0.02")


def test_huge_price_stops_the_day_but_not_the_next(caller: Caller) -> None:
    for _ in range(10):
        spend(caller, "0.01")
    cap = cap_of(caller.organization, "10.00")
    spend(caller, "99999999")
    spend_caps.count_all()
    assert stored(cap).stopped_at is not None
    clock.travel(86_400)
    spend_caps.count_all()
    assert stored(cap).stopped_at is None
    assert caller.create(ANN).status == "created"


def test_credit_makes_no_room(caller: Caller) -> None:
    cap = cap_of(caller.organization, "1.00")
    spend(caller, "1.00")
    spend(caller, "-500")
    spend_caps.count_all()
    assert stored(cap).stopped_at is not None


def test_prices_in_another_currency_are_not_added_but_reported(caller: Caller) -> None:
    cap = cap_of(caller.organization, "1.00")
    spend(caller, "0.50")
    spend(caller, "0.70", "EUR")
    spend(caller, "2.00", "GBP")
    spend_caps.count_all()
    row = stored(cap)
    assert (row.settled, row.stopped_at, row.other_currencies) == (Decimal("0.50"), None, "0.70 EUR, 2.00 GBP")
    uncovered = Event.objects.get(kind="spend_cap.uncovered")
    assert (uncovered.data["others"], uncovered.data["currency"]) == ("0.70 EUR, 2.00 GBP", "USD")
    spend(caller, "0.60")
    spend_caps.count_all()
    assert stored(cap).stopped_at is not None
    reached = Event.objects.get(kind="spend_cap.reached")
    assert reached.data["spent"] == "1.10"
    assert reached.data["note"] == "Not counted, because there is no exchange rate: 0.70 EUR, 2.00 GBP."


def test_other_currency_is_reported_once_a_day_and_when_another_appears(caller: Caller) -> None:
    cap = cap_of(caller.organization, "100.00")
    spend(caller, "0.70", "EUR")
    spend_caps.count_all()
    spend(caller, "0.70", "EUR")
    spend_caps.count_all()
    assert kinds(cap).count("uncovered") == 1
    spend(caller, "1.00", "GBP")
    spend_caps.count_all()
    assert kinds(cap).count("uncovered") == 2
    clock.travel(86_400)
    spend(caller, "0.70", "EUR")
    spend_caps.count_all()
    assert (kinds(cap).count("uncovered"), stored(cap).other_currencies) == (3, "0.70 EUR")


def rate_of(cap: SpendCap, rate: str, currency: str = "EUR", **fields: Any) -> ExchangeRate:
    row = ExchangeRate(
        organization_id=cap.organization_id,
        from_currency=currency,
        to_currency="USD",
        rate=Decimal(rate),
        **fields,
    )
    exchange_rates.save_rate(row, {"rate": row.rate}, actor=SYSTEM)
    return row


def test_other_currency_counts_by_its_exchange_rate(caller: Caller) -> None:
    cap = cap_of(caller.organization, "10.00")
    spend(caller, "1.00")
    spend(caller, "2.00", "EUR")
    spend(caller, "5.00", "GBP")
    spend_caps.count_all()
    assert stored(cap).other_currencies == "2.00 EUR, 5.00 GBP"
    rate = rate_of(cap, "1.5")
    row = stored(cap)
    assert (row.settled, row.other_currencies) == (Decimal("4.00"), "5.00 GBP")
    rate.rate = Decimal("4.6")
    exchange_rates.save_rate(rate, {"rate": rate.rate}, actor=SYSTEM)
    assert stored(cap).stopped_at is not None
    assert spend_caps.reserve(caller.organization.pk, price_sql.CALLS) == 0
    exchange_rates.delete_rate(rate, actor=SYSTEM)
    row = stored(cap)
    assert (row.settled, row.stopped_at, row.other_currencies) == (Decimal("1.00"), None, "2.00 EUR, 5.00 GBP")
    verbs = Event.objects.filter(subject_type="exchange_rate").order_by("id").values_list("kind", "data__rate")
    assert list(verbs) == [
        ("exchange_rate.added", "1.5"),
        ("exchange_rate.changed", "4.6"),
        ("exchange_rate.deleted", "4.6"),
    ]


def test_rates_of_another_pair_or_organization_do_not_count(caller: Caller) -> None:
    cap = cap_of(caller.organization, "10.00")
    other = cap_of(factories.organization("Other"), "10.00")
    rate_of(other, "1.5")
    rate_of(cap, "1.5", "GBP")
    spend(caller, "2.00", "EUR")
    spend_caps.count_all()
    assert (stored(cap).settled, stored(cap).other_currencies) == (0, "2.00 EUR")


def test_estimate_converts_prices_with_a_rate(caller: Caller) -> None:
    cap = cap_of(caller.organization, "100.00")
    rate_of(cap, "2")
    for _ in range(20):
        spend(caller, "0.05", "EUR")
    spend_caps.count_all()
    assert stored(cap).call_average == Decimal("0.10")


def test_estimate_ignores_prices_in_another_currency(caller: Caller) -> None:
    cap = cap_of(caller.organization, "100.00")
    for _ in range(10):
        spend(caller, "0.02")
        spend(caller, "900", "JPY")
    spend_caps.count_all()
    assert stored(cap).call_average == Decimal("0.02")


def test_changed_currency_counts_the_other_prices(caller: Caller) -> None:
    cap = cap_of(caller.organization, "0.60")
    spend(caller, "0.50")
    spend(caller, "0.70", "EUR")
    spend_caps.count_all()
    api = Api(user=factories.admin(caller.organization))
    answer = api.patch("spend-cap/", {"currency": "EUR"})
    assert (answer.status_code, answer.json()["is_stopped"]) == (200, True)
    assert (answer.json()["spent"], answer.json()["not_counted"]) == ("0.700000", ["0.50 USD"])
    assert stored(cap).stopped_at is not None


def local(zone: str, hour: int, minute: int) -> datetime:
    """The next time at which clocks in the zone show this."""
    now = clock.now().astimezone(ZoneInfo(zone))
    at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return (at if at > now else at + timedelta(days=1)).astimezone(UTC)


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/Phoenix"])
def test_day_begins_at_local_midnight(caller: Caller, zone: str) -> None:
    Organization.objects.filter(pk=caller.organization.pk).update(time_zone=zone)
    caller.organization.refresh_from_db()
    clock.travel((local(zone, 23, 50) - clock.now()).total_seconds())
    cap = cap_of(caller.organization, "1.00")
    spend(caller, "1.00")
    spend_caps.count_all()
    with pytest.raises(NoLine):
        caller.create(ANN)
    clock.travel(15 * 60)
    assert caller.create(ANN).status == "created", "before any loop has counted"
    spend_caps.count_all()
    assert kinds(cap) == ["added", "reached", "resumed"]
    assert stored(cap).spent == 0


def test_claim_after_midnight_counts_the_new_day_itself(caller: Caller) -> None:
    cap = cap_of(caller.organization, "1.00")
    spend(caller, "1.00")
    spend_caps.count_all()
    clock.travel(86_400)
    call = caller.call(ANN)
    assert call.sid
    row = stored(cap)
    assert row.stopped_at is None
    assert row.spent == Decimal("0.02")


def test_stopped_cap_does_not_flap(caller: Caller) -> None:
    cap = cap_of(caller.organization, "1.00")
    last = spend(caller, "1.00")
    spend_caps.count_all()
    Call.objects.filter(pk=last.pk).update(price=Decimal("0.97"))
    spend_caps.count_all()
    assert stored(cap).stopped_at is not None
    Call.objects.filter(pk=last.pk).update(price=Decimal("0.90"))
    spend_caps.count_all()
    assert stored(cap).stopped_at is None


def test_cap_of_one_organization_holds_no_other(caller: Caller) -> None:
    theirs = factories.organization()
    cap_of(theirs, "0.00")
    assert caller.call(ANN).sid
    with transaction.atomic():
        assert spend_caps.reserve(theirs.pk, price_sql.CALLS, 5) == 0
        assert spend_caps.reserve(caller.organization.pk, price_sql.CALLS, 5) == 5


def test_reservation_of_a_batch_is_cut_to_what_fits(caller: Caller, settings: Any) -> None:
    settings.SPEND_CALL_ESTIMATE, settings.SPEND_TEXT_ESTIMATE = Decimal("0.30"), Decimal("0.05")
    cap_of(caller.organization, "1.00")
    with transaction.atomic():
        assert spend_caps.reserve(caller.organization.pk, price_sql.CALLS, 10) == 3
        assert spend_caps.reserve(caller.organization.pk, price_sql.CALLS, 10) == 0
        assert spend_caps.reserve(caller.organization.pk, price_sql.TEXTS, 10) == 2
        assert spend_caps.reserve(caller.organization.pk, price_sql.CALLS, purpose="alert") == 1


def test_texts_that_are_under_way_count(texter: Caller, settings: Any) -> None:
    settings.SPEND_TEXT_ESTIMATE = Decimal("0.25")
    cap = cap_of(texter.organization, "1.00")
    for subject in range(1, 6):
        services.send_text(create_text(texter, subject_id=subject).pk)
    assert Text.objects.exclude(sid=None).count() == 4
    spend_caps.count_all()
    assert stored(cap).settled == Decimal("1.00")


def test_cap_of_zero_holds_calls_that_have_cost_nothing_so_far(caller: Caller, settings: Any) -> None:
    settings.SPEND_CALL_ESTIMATE = settings.SPEND_TEXT_ESTIMATE = Decimal(0)
    cap = cap_of(caller.organization, "0.00")
    assert spend_caps.find_hold(caller.organization.pk, price_sql.CALLS, "offer")
    spend_caps.count_all()
    assert stored(cap).stopped_at is not None


def test_alert_calls_do_not_wait_for_the_row_of_the_cap(caller: Caller) -> None:
    cap = cap_of(caller.organization, "1.00")
    with held(cap), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '50ms'")
        assert spend_caps.reserve(caller.organization.pk, price_sql.CALLS, purpose="alert") == 1
