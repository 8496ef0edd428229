"""Several dialers and promoters calling through the simulator, with failures."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection

from dispatch.core import clock, fault_injection
from dispatch.core.api.problems import Conflict
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.events import SYSTEM
from dispatch.core.runtime.loops import find_loop
from dispatch.leads.dialer import Dialer
from dispatch.leads.models import DoNotCall, Lead, RetryRule
from dispatch.leads.services import actions
from dispatch.telephony import group_handlers
from dispatch.telephony.models import Call
from dispatch.telephony.services.sms import is_opted_out
from tests.conftest import forget_redis
from tests.core.outages import redis_away
from tests.harness import provider
from tests.harness.lead_calls import add_with, document
from tests.harness.leads import Floor
from tests.phones import Simulator, answer, busy, ignore, manual, voicemail
from tests.support.waiting import PATIENCE, wait_until

ANN, BOB, CAT = "+16025550101", "+16025550102", "+16025550103"


@pytest.fixture
def floor(sim: Simulator, app_url: str, settings: Any) -> Iterator[Floor]:
    settings.SIMULATOR_URL = sim.base_url
    settings.LEADS_ASK_THREADS = 4
    sim.others_will(answer(after=0.5))
    made = Floor("twilio", lines=3, account_sid=sim.account_sid, auth_token=sim.auth_token)
    yield made
    made.stop()
    wait_until(lambda: not sim.open_calls(), message="calls go on for ever")


def phones_of(ids: list[int]) -> list[str]:
    return [str(phone) for phone in Lead.objects.filter(pk__in=ids).values_list("phone", flat=True)]


def each_called(sim: Simulator, ids: list[int], times: int = 1) -> None:
    phones = phones_of(ids)
    assert {phone: sim.creates_to(phone) for phone in phones} == dict.fromkeys(phones, times)


# --- Several at once


def test_two_leaders_and_three_dialers_call_once_within_the_lines(floor: Floor, sim: Simulator) -> None:
    ids = floor.add_many(18)
    floor.start(dialers=3, promoters=2)
    floor.all_end()
    assert floor.outcomes() == {"answered": 18}
    each_called(sim, ids)
    assert sim.max_simultaneous(str(floor.number.phone)) <= 3
    wait_until(lambda: floor.lines_in_use() == 0, message="a line stays taken")


def test_redis_flushed_while_they_work(floor: Floor, sim: Simulator, settings: Any) -> None:
    settings.LEADS_JITTER_S = 0.0
    ids = floor.add_many(12)
    floor.start(dialers=2)
    wait_until(lambda: Call.objects.exists())
    forget_redis()
    wait_until(lambda: (floor.step("leads_near"), not Lead.objects.exclude(status="finished").exists())[1])
    each_called(sim, ids)
    assert sim.max_simultaneous(str(floor.number.phone)) <= 3


def test_redis_outage_during_dialing(floor: Floor, sim: Simulator) -> None:
    ids = floor.add_many(12)
    floor.start(dialers=2)
    wait_until(lambda: Call.objects.exists())
    with redis_away():
        during = floor.add_many(3)
        wait_until(lambda: not Call.objects.filter(ended_at=None).exists(), message="calls go on for ever")
    CircuitBreaker.reset_all()
    unfinished = Lead.objects.exclude(status="finished")
    wait_until(
        lambda: (heal(floor), not unfinished.exists())[1],
        message=lambda: f"{list(unfinished.values_list('id', 'status', 'reason', 'token'))} {floor.in_redis()}",
        interval=0.2,
    )
    each_called(sim, [*ids, *during])
    assert sim.max_simultaneous(str(floor.number.phone)) <= 3


def test_postgres_cuts_all_connections_while_they_work(floor: Floor, sim: Simulator) -> None:
    ids = floor.add_many(12)
    floor.start(dialers=2)
    for _ in range(3):
        wait_until(lambda: Call.objects.filter(ended_at=None).exists())
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND query LIKE '%%leads_lead%%'"
            )
    wait_until(lambda: (heal(floor), not Lead.objects.exclude(status="finished").exists())[1], interval=0.2)
    assert all(sim.creates_to(phone) >= 1 for phone in phones_of(ids))
    attempts = {call.subject_id: call.attempt for call in Call.objects.order_by("attempt")}
    placed = Call.objects.exclude(status="not_placed")
    assert placed.count() == sum(sim.creates_to(phone) for phone in phones_of(ids))
    assert set(attempts) == set(ids)


def test_a_cancel_that_races_with_the_dialer_ends_the_lead_or_says_so(floor: Floor, sim: Simulator) -> None:
    ids = floor.add_many(10)
    floor.start(dialers=2)
    refused, cancelled = [], []
    for lead in reversed(ids):
        try:
            actions.cancel_lead(lead, actor=SYSTEM)
            cancelled.append(lead)
        except Conflict:
            refused.append(lead)
    floor.all_end()
    outcomes = floor.outcomes(cancelled)
    assert outcomes.keys() <= {"cancelled", "answered"}, "an answered call keeps its outcome"
    assert sum(outcomes.values()) == len(cancelled)
    each_called(sim, refused)
    assert all(sim.creates_to(phone) <= 1 for phone in phones_of(cancelled))


def test_single_lead_wakes_one_idle_dialer() -> None:
    async def main() -> None:
        dialer = Dialer("tester")
        first, second = dialer._wakeups
        dialer._idle = {0}
        dialer._handle_message("one:7")
        assert (first.is_set(), second.is_set(), dialer._rotation._marked) == (True, False, [7])
        dialer._handle_message("one:8")  # no puller is idle now: all look, in rotation
        assert (first.is_set(), second.is_set(), dialer._rotation._marked) == (True, True, [7])

    asyncio.run(main())


# --- What the provider does


def test_busy_and_unanswered_calls_are_tried_again(floor: Floor, sim: Simulator) -> None:
    for outcome in ("busy", "no_answer"):
        RetryRule.objects.create(
            organization=floor.organization, campaign=floor.campaign, outcome=outcome, delay_s=0, jitter=0.0
        )
    sim.phone(ANN).will(busy(after=0.5), answer(after=0.5))
    sim.phone(BOB).will(ignore(), answer(after=0.5))
    ann, bob = floor.add(ANN, BOB)
    floor.start()
    floor.all_end()
    assert [call.status for call in floor.calls(ann)] == ["busy", "completed"]
    assert [call.status for call in floor.calls(bob)] == ["no_answer", "completed"]
    assert floor.told(ann) == ["processing", "again", "processing", "finished"]


def test_a_provider_with_too_much_to_do_is_asked_again_later(floor: Floor, sim: Simulator) -> None:
    sim.answer_429(times=1, retry_after=1)
    ids = floor.add_many(2)
    floor.start()
    floor.all_end()
    each_called(sim, ids)
    assert set(Lead.objects.values_list("outcome", "attempts")) == {("answered", 1)}


@pytest.mark.parametrize(
    "trouble",
    [
        "reset_after_creating",
        *(pytest.param(t, marks=pytest.mark.soak) for t in ("time_out_after_creating", "answer_500")),
    ],
)
def test_unknown_request_is_resolved_by_the_first_webhook(
    floor: Floor, sim: Simulator, settings: Any, trouble: str
) -> None:
    settings.PROVIDER_TIMEOUT_S = 2.0
    getattr(sim, trouble)(times=1, **({"creates": True} if trouble == "answer_500" else {}))
    ids = floor.add_many(3)
    floor.start()
    floor.all_end()
    each_called(sim, ids)
    assert floor.outcomes() == {"answered": 3}


def test_webhooks_doubled_reordered_and_before_the_answer(floor: Floor, sim: Simulator) -> None:
    sim.duplicate_callbacks(times=6)
    sim.reorder_callbacks(times=2)
    sim.callbacks_before_create_returns("completed", times=1)
    ids = floor.add_many(4)
    floor.start()
    floor.all_end()
    each_called(sim, ids)
    assert [floor.told(lead).count("finished") for lead in ids] == [1] * 4


def test_lost_webhooks_are_asked_for(floor: Floor, sim: Simulator) -> None:
    sim.lose_callbacks()
    ids = floor.add_many(3)
    floor.start()
    wait_until(lambda: Call.objects.exclude(sid=None).count() == 3 and not sim.open_calls())
    floor.stop()
    clock.travel(400)
    heal(floor)
    assert floor.outcomes() == {"answered": 3}
    each_called(sim, ids)


def test_missed_end_of_a_call_is_found(floor: Floor, sim: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find the end of a call that its lead missed because the database was unavailable.

    The outage is longer than the provider repeats its webhook. Reports are not grouped: a group writes both ends.
    """
    monkeypatch.setattr(group_handlers, "_groups", {})
    refused: list[int] = []

    def away() -> None:
        if Call.objects.exclude(ended_at=None).exists():
            refused.append(1)
            raise OperationalError("the server closed the connection unexpectedly")

    with fault_injection.arm_crash_point("telephony.webhook.committed", away):
        (lead,) = floor.add(ANN)
        floor.start()
        wait_until(lambda: refused)
        floor.stop()
        assert (floor.status(lead), floor.calls(lead)[0].status) == ("processing", "completed")
        clock.travel(16)
        floor.step("leads_stale")
        assert floor.lead(lead).outcome == "answered"
    each_called(sim, [lead])


# --- Pre-checks


def test_the_campaigns_own_system_is_asked_first(floor: Floor, sim: Simulator) -> None:
    told = {ANN: {"call": True}, BOB: {"call": False}, CAT: {"call": False, "delay_seconds": 3600}}

    def say(body: bytes) -> bytes:
        return json.dumps(told[json.loads(body)["phone"]]).encode()

    with document(say) as (url, asked):
        floor.campaign.precheck_url = url
        floor.campaign.save()
        ann, bob, cat = floor.add(ANN, BOB, CAT)
        floor.start()
        wait_until(lambda: floor.lead(cat).reason and floor.lead(ann).outcome and floor.lead(bob).outcome)
    assert len(asked) == 3
    assert floor.lead(ann).outcome == "answered"
    assert (floor.lead(bob).outcome, floor.lead(bob).reason) == ("precheck_failed", "precheck_no")
    assert floor.lead(cat).reason == "precheck_later"
    assert floor.lead(cat).due_at > floor.due_in(3000)
    assert [sim.creates_to(phone) for phone in (ANN, BOB, CAT)] == [1, 0, 0]
    wait_until(lambda: floor.lines_in_use() == 0, message="a line stays taken")


def test_slow_prechecks_of_one_organization_leave_room_for_another(
    floor: Floor, sim: Simulator, settings: Any
) -> None:
    settings.LEADS_IN_FLIGHT = 20
    slow = Floor("twilio", lines=40, account_sid=sim.account_sid, auth_token=sim.auth_token)
    release = threading.Event()

    def say(body: bytes) -> bytes:
        release.wait(PATIENCE)
        return b'{"call": false}'

    with document(say) as (url, asked):
        slow.campaign.precheck_url, slow.campaign.precheck_timeout_s = url, 30
        slow.campaign.save()
        slow.add_many(40)
        floor.start()
        wait_until(lambda: len(asked) == 17)
        (lead,) = floor.add(ANN)
        wait_until(lambda: floor.calls(lead))
        assert len(asked) == 17, "seven eighths of the places"
        release.set()
        wait_until(lambda: len(asked) == 40)
        slow.all_end()
    assert floor.lead(lead).outcome == "answered"


# --- Scripts


def test_the_script_is_read_with_the_leads_own_data_and_answers_its_keys(floor: Floor, sim: Simulator) -> None:
    floor.campaign.script = "Good day, {name}.\nPress 1 to be called back."
    floor.campaign.keys = {"1": "We will call you back."}
    floor.campaign.save()
    sim.phone(ANN).will(answer(press="1"))
    lead = add_with(floor, ANN, name="Dana")
    floor.start()
    sim.phone(ANN).rings().hears("good day, Dana").hears("we will call you back").ended()
    floor.all_end()
    assert floor.calls(lead)[0].keys_pressed == "1"


def test_campaign_speaks_its_language_with_its_voice(floor: Floor, sim: Simulator) -> None:
    floor.campaign.script = "Hola, {name}. Oprima 1 para que le llamemos."
    floor.campaign.keys = {"1": "Le llamaremos."}
    floor.campaign.language, floor.campaign.voice = "es", "Polly.Mia-Neural"
    floor.campaign.save()
    sim.phone(ANN).will(answer(press="1"))
    sim.phone(BOB).will(answer(press="9"))
    add_with(floor, ANN, name="Dana")
    floor.add(BOB)
    floor.start()
    first = sim.phone(ANN).rings().hears("Hola, Dana.").hears("Le llamaremos.").ended()
    second = sim.phone(BOB).rings().hears("No le volveremos a llamar. Adiós.").ended()
    floor.all_end()
    for call in (first, second):
        assert {(said["voice"], said["language"]) for said in call.now["said"]} == {("Polly.Mia-Neural", "es-MX")}


def test_opted_out_phone_is_never_called_by_any_campaign(floor: Floor, sim: Simulator) -> None:
    sim.phone(ANN).will(answer(press="9"))
    floor.add(ANN)
    floor.start()
    sim.phone(ANN).rings().hears("not be called again").ended()
    floor.all_end()
    assert DoNotCall.objects.get().source == "key"
    assert is_opted_out(floor.organization.pk, ANN)  # texts too
    (again,) = floor.add(ANN, to=floor.add_campaign())
    floor.all_end()
    assert floor.lead(again).outcome == "do_not_call"
    assert sim.creates_to(ANN) == 1


def test_a_call_is_handed_over_to_the_customers_own_document(floor: Floor, sim: Simulator) -> None:
    twiml = b"<Response><Say>Greetings from the customer.</Say></Response>"
    with document(lambda body: twiml, "text/xml") as (url, asked):
        floor.campaign.answer_url = f"{url}?x=1"
        floor.campaign.save()
        (lead,) = floor.add(ANN)
        floor.start()
        sim.phone(ANN).rings().hears("greetings from the customer").ended()
        floor.all_end()
    assert asked
    assert f"x=1&lead={lead}" in asked[0]


def test_answering_machine_hears_nothing_and_is_retried(floor: Floor, sim: Simulator) -> None:
    floor.campaign.detect_machines = True
    floor.campaign.save()
    sim.phone(ANN).will(voicemail())
    (lead,) = floor.add(ANN)
    floor.start()
    wait_until(lambda: floor.lead(lead).last_outcome)
    assert floor.lead(lead).last_outcome == "voicemail"
    assert sim.phone(ANN).rings().said == ""


# --- Helpers


def heal(floor: Floor) -> None:
    for loop in (
        "lines", "leads_workers", "leads_near", "leads_stale", "calls_cut_off", "calls_unknown", "calls_end",
    ):  # fmt: skip
        floor.step(loop)


@pytest.mark.parametrize("stored", [False, True], ids=["arrives-late", "stored"])
def test_opt_out_key_counts_after_the_end_of_its_call(floor: Floor, sim: Simulator, stored: bool) -> None:
    sim.phone(ANN).will(manual())
    floor.add(ANN)
    floor.start()
    heard = sim.phone(ANN).rings().answer().hears("hello")
    call = Call.objects.get()
    if stored:
        provider.record_only(sim, call, "9")
    provider.end(sim, call)
    if stored:
        clock.travel(6)
        find_loop("calls_keys").step()
    else:
        assert b"<Say" not in provider.press(sim, call, "9").content
    assert DoNotCall.objects.get().source == "key"
    assert is_opted_out(floor.organization.pk, ANN)
    heard.hang_up()
