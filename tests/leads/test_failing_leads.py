"""A lead whose claim fails does not block others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection

from dispatch.core import clock
from dispatch.leads.models import Lead
from dispatch.leads.pool_rotation import PoolRotation
from dispatch.leads.rules import eligibility as eligibility_rules
from dispatch.leads.rules.retries import MAX_TOKENS, LeadFacts
from dispatch.leads.services import claim_batches, claim_failures, claims
from dispatch.telephony.providers.base import RateLimited
from dispatch.telephony.services.bulk import RequestResult
from tests.harness.leads import Floor
from tests.support import factories
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(lines=20)]


@contextmanager
def refused_by_postgres(lead_id: int) -> Iterator[None]:
    """The database raises a data error whenever this lead is claimed."""
    run(
        "CREATE FUNCTION refuse_a_lead() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.id = {lead_id} AND NEW.status = 'processing' THEN"
        " RAISE EXCEPTION 'smallint out of range' USING ERRCODE = '22003'; END IF; RETURN NEW; END $$"
    )
    run("CREATE TRIGGER refuse_a_lead BEFORE UPDATE ON leads_lead FOR EACH ROW EXECUTE FUNCTION refuse_a_lead()")
    try:
        yield
    finally:
        run("DROP TRIGGER refuse_a_lead ON leads_lead")
        run("DROP FUNCTION refuse_a_lead()")


def run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@contextmanager
def refused_by_a_gate(lead_id: int) -> Iterator[None]:
    """The eligibility check of this lead raises."""
    real: Callable[..., Any] = eligibility_rules.check_eligibility

    def decide(lead: LeadFacts, *rest: Any) -> Any:
        if lead.id == lead_id:
            raise KeyError("no such zone")
        return real(lead, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eligibility_rules, "check_eligibility", decide)
        yield


FAILURES = pytest.mark.parametrize("failing", [refused_by_postgres, refused_by_a_gate])


@FAILURES
def test_the_other_leads_of_a_batch_are_called_at_once(floor: Floor, failing: Any) -> None:
    ids = floor.add_many(9)
    bad = ids[3]
    with failing(bad):
        floor.promote()
        claimed = floor.dial()
        assert claimed.taken == 9
        others = [lead for lead in ids if lead != bad]
        assert floor.outcomes(others) == {"answered": 8}
        lead = floor.lead(bad)
        assert (lead.status, lead.reason) == ("backlog", "error")
        assert 595 <= (lead.due_at - clock.now()).total_seconds() <= 600
        assert floor.lines_in_use() == 0
        assert floor.work() == 0
    clock.travel(601)
    assert floor.work() == 1
    assert floor.lead(bad).outcome == "answered"


@FAILURES
def test_a_lead_that_always_fails_waits_longer_each_time_and_ends(floor: Floor, failing: Any) -> None:
    (bad,) = floor.add_many(1)
    waits = []
    with failing(bad):
        for _ in range(10):
            floor.work()
            lead = floor.lead(bad)
            if lead.status == "finished":
                break
            waits.append(round((lead.due_at - clock.now()).total_seconds() / 60))
            clock.travel((lead.due_at - clock.now()).total_seconds() + 1)
    assert waits == [10, 20, 40, 80, 160]
    assert (lead.status, lead.outcome, lead.reason) == ("finished", "failed", "error")
    assert floor.told(bad) == ["created", *["claim_failed"] * 5, "finished"]
    assert floor.in_redis() == {}


def test_running_dialer_survives_a_failing_check(floor: Floor) -> None:
    bad, *others = floor.add_many(6)
    with refused_by_a_gate(bad):
        floor.start()
        try:
            wait_until_called(floor, others)
            more = floor.add_many(3)
            wait_until_called(floor, more)
            assert floor.lead(bad).reason == "error"
        finally:
            floor.stop()


def wait_until_called(floor: Floor, ids: list[int]) -> None:
    wait_until(lambda: floor.outcomes(ids) == {"answered": len(ids)}, message=lambda: str(floor.outcomes(ids)))


def test_an_outage_of_the_database_defers_no_lead(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = floor.add_many(4)
    floor.promote()

    def is_gone(batch: Any) -> None:
        raise OperationalError("the server closed the connection unexpectedly")

    with monkeypatch.context() as broken:
        broken.setattr(claim_batches.ClaimBatch, "claim", is_gone)
        with pytest.raises(OperationalError):
            floor.claim()
    assert set(Lead.objects.values_list("reason", flat=True)) == {""}
    assert floor.work() == len(ids)


def test_a_full_lock_table_is_an_outage_and_no_leads_fault() -> None:
    error = OperationalError("out of shared memory")
    error.__cause__ = psycopg.errors.OutOfMemory("out of shared memory")
    assert claim_failures.is_outage(error)


def test_a_lead_that_is_always_sent_back_ends(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    floor.promote()
    for token, status in ((1, "backlog"), (MAX_TOKENS, "finished")):
        claimed = floor.claim()
        (to_ask,) = claimed.calls
        assert to_ask.call.attempt == token
        floor.settle([RequestResult(to_ask.call_id, to_ask.call, RateLimited(1.0))])
        assert floor.status(lead) == status
        clock.travel(2)
        Lead.objects.filter(pk=lead).update(token=MAX_TOKENS - 1)
        floor.step("leads_near")
        floor.promote()
    assert floor.lead(lead).outcome == "not_placed"


def test_a_pool_that_cannot_be_claimed_from_holds_up_no_other(floor: Floor) -> None:
    other = factories.pool(floor.organization, concurrency=10)
    account = factories.account(floor.organization, provider="noop-ends", calls_per_second=10_000.0)
    factories.number(floor.organization, account=account, pool=other, max_channels=5)
    ids = floor.add_many(2, to=floor.add_campaign(pool=other))
    floor.add_many(2)
    floor.promote()
    real = claims.claim_leads

    def claim(worker: str, pool_id: int, *rest: Any) -> Any:
        if pool_id == floor.pool.pk:
            raise ValueError("unreadable credentials")
        return real(worker, pool_id, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "claim_leads", claim)
        claimed = PoolRotation().claim_batch("tester", lambda _: 10, claims.no_claims)
    floor.settle(floor.ask(claimed))
    assert floor.outcomes(ids) == {"answered": 2}
