"""Call and answer thousands of leads while everything is killed, replies are cut, and people opt out.

Dispatchers, web processes, Redis and PostgreSQL are killed at random. Afterwards SQL and the provider's records
say: each lead was called once per attempt, no number had more calls than lines at any moment, nothing is parked,
and nobody was called after an opt-out had committed.

Run by `make soak`; SOAK_LEADS is the number of leads, SOAK_LINES the lines of each of the five numbers, and
SOAK_SEED=… repeats the random choices of a run.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.models import Count

from dispatch.capacity import redis_scripts
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.redis.client import client
from dispatch.leads.models import DoNotCall, KeyBranch, Lead
from dispatch.telephony import webhook_urls
from dispatch.telephony.models import Call, OptOut
from dispatch.telephony.rules import NEVER_PLACED
from tests.harness.leads import Floor
from tests.leads.test_kills import complains_of_nothing_but_the_kill
from tests.phones import Simulator, answer, busy, ignore, mix
from tests.soak.leads import LeadSite, LeadTroubles, OptOuts, lead_site
from tests.support import factories as make
from tests.support.database import durable_commits, reconnect
from tests.support.histories import history_is_legal
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.django_db(transaction=True), pytest.mark.timeout(5400)]

LEADS = int(os.environ.get("SOAK_LEADS", "10000"))
NUMBERS, LINES = 5, int(os.environ.get("SOAK_LINES", "10"))  # lines of each number
LONGEST_S = 4800.0
TROUBLE_UNTIL = 0.15  # of the leads are left. Faults and opt-outs follow the progress, not the time.
# A call whose end was never reported is asked about after its longest time and a minute. The others are called.
CALM_WITHIN_S = 300.0 + LEADS / 20
SCRIPT = "Hello, your furnace is due for its yearly check."
IN_FLIGHT_S = 1.0  # between the last look at the opt-outs and the creation of the call
PEOPLE = mix(
    (80, answer(press="1")),
    (6, answer(press="9")),  # never call again
    (6, answer(hang_up_when_heard="furnace")),
    (4, busy()),
    (4, ignore()),
)


@pytest.fixture
def sim(seed: int) -> Iterator[Simulator]:
    with Simulator.start(speed=4.0, seed=seed, keep_calls=10 * LEADS, timing={"webhook_floor": 15.0}) as simulator:
        simulator.others_will(PEOPLE)
        yield simulator


@pytest.fixture
def durable() -> Iterator[None]:
    with durable_commits():
        yield


@pytest.fixture
def floor(sim: Simulator, durable: None) -> Floor:
    """Two campaigns that call the same people, so that an opt-out has calls to prevent."""
    made = Floor("twilio", lines=LINES, account_sid=sim.account_sid, auth_token=sim.auth_token)
    for _ in range(NUMBERS - 1):
        make.number(made.organization, account=made.account, pool=made.pool, max_channels=LINES)
    made.number.sends_texts = True
    made.number.save()
    sim.add_number(str(made.number.phone))
    return made


def add_leads(floor: Floor) -> None:
    rules = {"script": SCRIPT, "max_attempts": 4, "max_attempts_24h": 50, "ring_timeout_s": 10, "time_limit_s": 60}
    phones = [make.phone() for _ in range(LEADS // 2)]
    due = clock.now() + timedelta(seconds=20)
    for later_s in (0, LEADS // 60):
        campaign = floor.add_campaign(**rules)
        KeyBranch.objects.create(
            organization=floor.organization, campaign=campaign, key="1", say="Thank you.", disposition="interested"
        )
        for n in range(0, len(phones), 1000):
            floor.add(*phones[n : n + 1000], at=due + timedelta(seconds=later_s), to=campaign)


def test_everything_is_killed_while_thousands_answer(
    floor: Floor, sim: Simulator, seed: int, tmp_path: Path, settings: Any
) -> None:
    rng = random.Random(seed)
    with lead_site(sim, tmp_path) as here:
        settings.REDIS_URL = here.redis.url
        client.cache_clear()
        settings.PUBLIC_BASE_URL = here.site.base_url
        sim.add_number(str(floor.number.phone), sms_url=webhook_urls.number_webhook(floor.number, "sms"))
        add_leads(floor)
        opt_outs = OptOuts(here.site, sim, make.api_key(floor.organization), str(floor.number.phone), rng)
        troubles = LeadTroubles(here, sim, rng)
        everything_happens(here, troubles, opt_outs, rng)
        troubles.end()
        calm_at = time.monotonic()
        all_is_over(here, sim)
        print(f"over {time.monotonic() - calm_at:.0f} s after the last fault")  # noqa: T201
        print(dict(troubles.seen), dict(opt_outs.seen), f"{here.site.restarts} restarts")  # noqa: T201
        print(f"cut: {here.redis_proxy.cuts} of Redis, {here.database_proxy.cuts} of PostgreSQL")  # noqa: T201
        nothing_is_held(floor)
    client.cache_clear()
    complains_of_nothing_but_the_kill(sim)
    each_attempt_is_one_call(sim)
    nobody_hears_the_script_of_a_lead_twice(sim)
    lines_are_never_exceeded(sim)
    nobody_is_called_after_an_opt_out(sim, opt_outs.acknowledged)
    print(history_is_legal())  # noqa: T201


def leads_left() -> int:
    """Count the leads that are not over. The database may have been killed since the last query."""
    try:
        return Lead.objects.exclude(status="finished").count()
    except OperationalError:
        reconnect()
        return Lead.objects.exclude(status="finished").count()


def everything_happens(here: LeadSite, troubles: LeadTroubles, opt_outs: OptOuts, rng: random.Random) -> None:
    moment = threading.Event()
    wait_until(lambda: Call.objects.filter(answered_at__isnull=False).exists(), message=here.site.logs)
    began, step = time.monotonic(), max(5, LEADS // 150)
    trouble_below = opt_out_below = LEADS
    while (left := leads_left()) > LEADS * TROUBLE_UNTIL:
        passed = time.monotonic() - began
        print(f"{passed:.0f} s: {left} leads left, {troubles.seen.total()} faults", flush=True)  # noqa: T201
        assert passed < LONGEST_S, here.site.logs()
        if left <= opt_out_below:
            opt_outs.some()
            opt_out_below = left - step
        if left <= trouble_below:
            troubles.happen()
            trouble_below = left - rng.randint(step, 5 * step)
        here.site.revive()
        moment.wait(2.0)


def all_is_over(here: LeadSite, sim: Simulator) -> None:
    """Without faults, all leads and calls come to their end."""

    def settled() -> bool:
        here.site.revive()
        leads, calls = leads_left(), Call.objects.filter(ended_at=None).count()
        print(f"{leads} leads left, {calls} calls open", flush=True)  # noqa: T201
        return not (leads or calls or sim.calls(open="1", fields="sid"))

    def left() -> str:
        leads = Lead.objects.exclude(status="finished").values("id", "status", "reason", "due_at", "token")
        calls = Call.objects.filter(ended_at=None).values("id", "status", "sid", "requested_at", "subject_id")
        return f"{leads.count()} leads {list(leads[:10])}\ncalls {list(calls[:10])}\n{here.site.logs()}"

    wait_until(settled, CALM_WITHIN_S, left, interval=5.0)
    assert here.site.ended() == [], here.site.logs()


def lines_in_use() -> dict[int, int]:
    """How many lines of each number are taken in Redis."""
    base = redis_scripts.base_key()
    numbers = OutboundNumber.objects.values_list("pk", flat=True)
    return {pk: count for pk in numbers if (count := client().hlen(f"{base}:line:{pk}"))}


def nothing_is_held(floor: Floor) -> None:
    """Nothing waits in Redis, and no line stays taken."""
    wait_until(lambda: not lines_in_use(), 60, message=lambda: f"lines in use: {lines_in_use()}")
    held = {
        name: count for name, count in floor.in_redis().items() if name.startswith(("held", "ready")) and count
    }
    assert held == {}
    print(dict(Counter(Lead.objects.values_list("outcome", "reason"))))  # noqa: T201
    assert sum(floor.outcomes().values()) == Lead.objects.count() >= LEADS // 2 * 2


def each_attempt_is_one_call(sim: Simulator) -> None:
    """Each call that the provider made is that of one attempt; a lead's attempts are its calls."""
    rows = Call.objects.filter(purpose="lead")
    repeated = rows.values("subject_id", "attempt").annotate(n=Count("pk")).filter(n__gt=1)
    assert list(repeated) == []
    made = Counter(call["sid"] for call in sim.calls(limit="1000000", fields="sid"))
    known = Counter(rows.filter(sid__isnull=False).values_list("sid", flat=True))
    assert made == known, f"only the provider knows {made - known}, only we know {known - made}"
    assert max(made.values()) == 1
    created = {phone: found["created"] for phone, found in sim.get("/control/creates").items() if found["created"]}
    placed = Counter(str(phone) for phone in rows.filter(sid__isnull=False).values_list("to_phone", flat=True))
    assert created == placed
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT l.id, l.attempts, count(c.id) FROM leads_lead l"
            " LEFT JOIN telephony_call c ON c.purpose = 'lead' AND c.subject_id = l.id AND NOT c.status = ANY(%s)"
            " GROUP BY l.id HAVING l.attempts <> count(c.id)",
            [sorted(NEVER_PLACED)],
        )
        assert cursor.fetchall() == []
    print(dict(Counter(rows.values_list("status", flat=True))))  # noqa: T201


def nobody_hears_the_script_of_a_lead_twice(sim: Simulator) -> None:
    """Nobody is called again after hearing it; print what the others heard whose leads count as answered."""
    leads = dict(Call.objects.filter(sid__isnull=False).values_list("sid", "subject_id"))
    answered = set(Lead.objects.filter(outcome="answered").values_list("pk", flat=True))
    heard, instead = Counter[int](), dict[int, str]()
    for call in sim.calls(limit="1000000", fields="sid,said"):
        words = " ".join(each["text"] for each in call["said"])
        if "furnace" in words:
            heard[leads[call["sid"]]] += 1
        else:
            instead[leads[call["sid"]]] = words[:40]
    others = Counter(instead[lead] for lead in answered - heard.keys())
    print(f"{len(heard)} leads heard the script; counted as answered without it: {dict(others)}")  # noqa: T201
    assert {lead: count for lead, count in heard.items() if count > 1} == {}


def lines_are_never_exceeded(sim: Simulator) -> None:
    most = {str(n.phone): sim.max_simultaneous(str(n.phone)) for n in OutboundNumber.objects.all()}
    print(f"calls at one moment: {most}")  # noqa: T201
    assert all(0 < count <= LINES for count in most.values())


def nobody_is_called_after_an_opt_out(sim: Simulator, acknowledged: dict[str, float]) -> None:
    """Neither claimed after the opt-out's row, nor created by the provider after the opt-out's response."""
    refused = {
        str(phone): moment
        for rows in (OptOut.objects.all(), DoNotCall.objects.all())
        for phone, moment in rows.values_list("phone", "created_at")
    }
    assert set(acknowledged) <= set(refused), "an acknowledged opt-out is lost"
    late = [
        (call.pk, call.to_phone, call.requested_at - refused[str(call.to_phone)])
        for call in Call.objects.filter(purpose="lead", to_phone__in=refused, requested_at__isnull=False)
        if call.requested_at > refused[str(call.to_phone)]
    ]
    assert late == []
    created = sim.calls(limit="1000000", fields="sid,to,created_date,status")
    late_at_the_provider = [
        {**call, "late_s": call["created_date"] - acknowledged[call["to"]]}
        for call in created
        if call["created_date"] > acknowledged.get(call["to"], call["created_date"])
    ]
    print(f"{len(refused)} opted out, {len(late_at_the_provider)} calls were in flight then")  # noqa: T201
    assert [call for call in late_at_the_provider if call["late_s"] > IN_FLIGHT_S] == []
    prevented = Lead.objects.filter(phone__in=refused, outcome="do_not_call").count()
    print(f"{prevented} leads ended without a call because of an opt-out")  # noqa: T201
    assert prevented
