"""The prices that the provider reports after the end are recorded exactly, and few requests are made."""

from __future__ import annotations

import threading
from datetime import timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dispatch.console.reports.spend import build_spend
from dispatch.core import clock
from dispatch.core.runtime.fair_threads import FairThreads
from dispatch.jobs.timeline import Entry, _with_costs
from dispatch.telephony import metrics, price_sql, services
from dispatch.telephony.models import Call, InboundCall, Text
from dispatch.telephony.providers import twilio_prices
from dispatch.telephony.providers.base import Price
from dispatch.telephony.services import prices
from tests.console.streams import read_stream
from tests.phones import Simulator, answer, ignore
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until
from tests.telephony.conftest import ANN, Caller, create_text, now_is, text_is

BOB = "+16025550102"


def charge(sim: Simulator, **changes: Any) -> None:
    """Set what the account pays, known at once unless `after` says otherwise."""
    sim.set_account(
        prices={"per_minute": "0.0130", "per_segment": "0.0079", "currency": "USD", "after": 0, **changes}
    )


def fetch(after_s: float = 31.0) -> int:
    """Run a pass, `after_s` from now. Return how many prices are new."""
    clock.travel(after_s)
    before = priced()
    prices.fetch_due_prices()
    return priced() - before


def priced() -> int:
    return sum(model.objects.exclude(price=None).count() for model in (Call, InboundCall, Text))


def completed(caller: Caller, phone: str = ANN) -> Call:
    caller.sim.phone(phone).will(answer(press="1"))
    return now_is(caller.call(phone), "completed")


def test_price_comes_after_the_end_and_is_stored_exactly(caller: Caller) -> None:
    charge(caller.sim, after=100_000)
    call = completed(caller)
    assert fetch() == 0
    row = Call.objects.get(pk=call.pk)
    assert (row.price, row.cost) == (None, "")
    charge(caller.sim)
    Call.objects.filter(pk=call.pk).update(price_checked_at=None)
    later = completed(caller, BOB)
    before = metrics.spend.labels("call", "USD")._value.get()
    assert fetch() == 1
    row = Call.objects.get(pk=later.pk)
    assert (row.price, row.price_unit, row.cost) == (Decimal("0.013000"), "USD", "0.013 USD")
    assert metrics.spend.labels("call", "USD")._value.get() == pytest.approx(before + 0.013)
    assert fetch() == 0, "each price once"


def test_account_without_unpriced_rows_takes_no_thread(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    charge(caller.sim)
    completed(caller)
    assert fetch() == 1
    asked: list[int] = []
    monkeypatch.setattr(prices, "_fetch_of_account", asked.append)
    fetch(3600.0)
    assert asked == []


def test_unanswered_call_is_not_asked_about(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    charge(caller.sim)
    caller.sim.phone(ANN).will(ignore())
    call = now_is(caller.call(ANN, ring_timeout_s=5), "no_answer")
    assert fetch() == 0
    assert Call.objects.get(pk=call.pk).price_checked_at is None


def test_price_is_asked_for_at_growing_intervals_and_not_forever(caller: Caller) -> None:
    charge(caller.sim, after=1e9)
    call = completed(caller)
    asked = []
    for _ in range(60):
        fetch(30)
        at = Call.objects.get(pk=call.pk).price_checked_at
        if at not in asked:
            asked.append(at)
    assert 4 <= len(asked) <= 8, "30 minutes: after about 0.5, 1, 2, 4, 8 and 16"
    clock.travel(8 * 86_400)
    assert fetch(0) == 0
    assert Call.objects.get(pk=call.pk).price_checked_at == asked[-1], "given up"


def test_texts_and_inbound_calls_have_prices_too(texter: Caller) -> None:
    charge(texter.sim)
    sent = text_is(services.send_text(create_text(texter).pk), "delivered")
    texter.sim.phone(BOB).calls_us(str(texter.number.phone), press="1").ended()
    inbound = wait_until(
        lambda: InboundCall.objects.filter(ended_at__isnull=False).first(), message="no inbound call"
    )
    texter.sim.phone(BOB).texts_us(str(texter.number.phone), "hello")
    received = wait_until(lambda: Text.objects.filter(direction="in").first(), message="no text")
    assert fetch() == 3
    assert Text.objects.get(pk=sent.pk).price == Decimal("0.0079")
    assert Text.objects.get(pk=received.pk).price == Decimal("0.0079")
    assert InboundCall.objects.get(pk=inbound.pk).price == Decimal("0.013")


def test_many_prices_take_few_requests(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    charge(caller.sim)
    monkeypatch.setattr(twilio_prices, "MAX_SINGLE", 1)
    calls = [completed(caller, f"+1602555012{n}") for n in range(3)]
    caller.sim.answer_500(times=None, on="fetch")
    assert fetch() == 3, "from the list"
    caller.sim.heal()
    assert {Call.objects.get(pk=call.pk).price for call in calls} == {Decimal("0.013")}


def test_calls_that_the_list_does_not_show_are_fetched_one_by_one(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(caller.sim)
    monkeypatch.setattr(twilio_prices, "MAX_SINGLE", 1)
    monkeypatch.setattr(twilio_prices, "MAX_LISTED", 1)
    for n in range(3):
        completed(caller, f"+1602555012{n}")
    assert fetch() == 2, "the one listed, and one of the others"
    assert fetch(60) == 1


def test_account_that_fails_delays_no_other(caller: Caller) -> None:
    charge(caller.sim)
    good, bad = completed(caller), completed(caller, BOB)
    other = factories.account(caller.organization, account_sid="AC" + "0" * 32, name="Other")
    Call.objects.filter(pk=bad.pk).update(account=other)
    assert fetch() == 1
    assert Call.objects.get(pk=good.pk).price is not None
    assert Call.objects.get(pk=bad.pk).price is None


def test_quick_accounts_use_one_thread_and_a_slow_one_delays_no_other(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = [factories.account(caller.organization, name=f"Account {n}").pk for n in range(4)]
    used: dict[int, int] = {}
    release = threading.Event()

    def ask(account_id: int) -> None:
        used[account_id] = threading.get_ident()
        assert account_id != first or release.wait(PATIENCE)

    monkeypatch.setattr(prices, "_fetch_of_account", ask)
    monkeypatch.setattr(prices, "QUICK_S", PATIENCE)
    monkeypatch.setattr(prices, "PATIENCE_S", 4 * PATIENCE)
    monkeypatch.setattr(price_sql, "accounts_with_unpriced", lambda *_: {first, *others})
    FairThreads.start_threads()
    try:
        release.set()
        prices.fetch_due_prices()
        assert (used.keys(), len(set(used.values()))) == ({first, *others}, 1)
        release.clear()
        used.clear()
        monkeypatch.setattr(prices, "QUICK_S", 0.05)
        prices.fetch_due_prices()
        wait_until(lambda: used.keys() == {first, *others})
        assert used[first] not in [used[pk] for pk in others]
    finally:
        release.set()
        FairThreads.stop_threads(PATIENCE)


@pytest.mark.parametrize(
    ("price", "unit", "expected"),
    [
        ("-0.01300", "USD", Price(Decimal("0.013000"), "USD")),
        ("0.01300", "usd", Price(Decimal("-0.013000"), "USD")),
        ("-99999999", "JPY", Price(Decimal("99999999.000000"), "JPY")),
        ("-100000000", "JPY", None),
        ("NaN", "USD", None),
        ("-Infinity", "USD", None),
        ("-1e999999999", "USD", None),
        ("-1e-999999999", "USD", Price(Decimal(0), "USD")),
        ("free", "USD", None),
        ("", "USD", None),
        (None, "USD", None),
        ("-1", "dollars", Price(Decimal("1.000000"), "")),
        ("-1", None, Price(Decimal("1.000000"), "")),
    ],
)
def test_only_usable_prices_are_taken(price: str | None, unit: str | None, expected: Price | None) -> None:
    assert twilio_prices.parse_price(price, unit) == expected


def test_credit_is_recorded_as_a_negative_cost(caller: Caller) -> None:
    charge(caller.sim, per_minute="-0.02")
    call = completed(caller)
    assert fetch() == 1
    assert Call.objects.get(pk=call.pk).price == Decimal("-0.02")


def test_report_adds_up_by_local_day_and_currency(caller: Caller) -> None:
    charge(caller.sim)
    call, foreign = completed(caller), completed(caller, BOB)
    without = completed(caller, "+16025550103")
    theirs = factories.organization()
    Call.objects.filter(pk=without.pk).update(organization=theirs, price=Decimal(9), price_unit="USD")
    Call.objects.filter(pk=call.pk).update(price=Decimal("0.10"), price_unit="USD")
    Call.objects.filter(pk=foreign.pk).update(price=Decimal("0.30"), price_unit="EUR")
    pending = completed(caller, "+16025550104")
    today = clock.now().astimezone(ZoneInfo(caller.organization.time_zone)).date()
    spend = build_spend(caller.organization, today - timedelta(days=1), today)
    assert [(cost.currency, cost.total) for cost in spend.days] == [
        ("USD", Decimal("0.10")),
        ("EUR", Decimal("0.30")),
    ]
    assert spend.unknown == 1
    admin = factories.browser(factories.admin(caller.organization))
    page = admin.get("/reports/").content.decode()
    assert "<td>EUR</td>" in page
    assert "Without a price so far: 1." in page
    sheet = read_stream(admin.get("/reports/csv/?by=spend"))
    assert f"{spend.days[0].day},USD,0.100000,0,0.100000" in sheet
    assert pending.price is None


def test_history_shows_the_price_with_the_last_entry_about_a_call() -> None:
    now = clock.now()

    def entry(subject_id: int, did: str) -> Entry:
        return Entry(1, now, "call.x", "call", subject_id, "system", None, "System", did, "plain", {})

    entries = [entry(1, "rang"), entry(1, "ended"), entry(2, "ended")]
    shown = _with_costs(entries, {("call", 1): "0.013 USD", ("call", 2): ""})
    assert [one.did for one in shown] == ["rang", "ended (price 0.013 USD)", "ended"]
