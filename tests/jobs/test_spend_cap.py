"""The organization's daily spending cap is reached: jobs wait with that reason, and continue by themselves."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from dispatch.console.board.cards import state_of
from dispatch.console.health import current_health, reset
from dispatch.core import clock, events, fault_injection
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.jobs import services as jobs
from dispatch.jobs.timeline import load_timeline
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, SpendCap
from dispatch.telephony.services import spend_caps
from tests.phones import answer


def set_cap(floor: Any, amount: str) -> SpendCap:
    cap = SpendCap.objects.filter(organization=floor.organization).first() or SpendCap(
        organization=floor.organization
    )
    cap.amount = Decimal(amount)
    spend_caps.save_cap(cap, {"amount": cap.amount}, actor=SYSTEM)
    return cap


def pass_time(floor: Any, seconds: float) -> None:
    until = clock.now().timestamp() + seconds
    while clock.now().timestamp() < until:
        floor.later(1)
        spend_caps.count_all()
        floor.work()
        floor.audit()


def test_job_waits_for_the_cap_says_so_and_goes_on_after_a_raise(floor):
    ann, _ = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="1"))
    set_cap(floor, "0.00")
    job = floor.started()
    pass_time(floor, 5)
    assert (floor.status(job), floor.job(job).waiting_for) == ("dispatching", "spend_cap")
    assert floor.offers(job) == []
    assert state_of(floor.job(job), None) == ("late", "Daily spending cap reached")
    assert any("an admin can raise it" in entry.text for entry in load_timeline(floor.job(job)))
    reset()
    assert current_health(floor.organization).spend_hold.startswith(
        "The daily spending cap of 0.00 USD is reached"
    )
    assert not Call.objects.exists()
    set_cap(floor, "10.00")
    pass_time(floor, 5)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.job(job).technician == ann
    assert not Technician.objects.exclude(misses_in_a_row=0).exists()
    reset()
    assert current_health(floor.organization).spend_hold == ""


def test_job_that_waited_too_long_needs_a_dispatcher_and_resumes_after_a_raise(floor):
    floor.set_policy(line_wait_s=30)
    ann, _ = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="1"))
    set_cap(floor, "0.00")
    job, claimed = floor.started(), floor.started()
    pass_time(floor, 40)
    assert floor.job(job).pending_reason == "spend_cap"
    reason = Event.objects.filter(kind="job.pending").first().data["reason_text"]
    assert reason.startswith("The daily spending cap of 0.00 USD is reached")
    assert "An admin can raise the cap under Daily spending caps" in reason
    events.append(floor.organization.pk, "job.claimed", claimed.pk)
    pass_time(floor, 10)
    assert floor.status(job) == "pending", "still held"
    set_cap(floor, "10.00")
    pass_time(floor, 10)
    floor.until(lambda: floor.status(job) == "assigned")
    assert "job.spend_resumed" in floor.kinds(job)
    assert floor.status(claimed) == "pending", "a dispatcher has it"


def test_end_of_an_outage_does_not_resume_jobs_that_the_cap_holds(floor):
    floor.set_policy(line_wait_s=30)
    floor.crew("Ann")
    set_cap(floor, "0.00")
    job = floor.started()
    pass_time(floor, 40)
    jobs.resume_after_outage(floor.organization.pk)
    assert floor.status(job) == "pending"
    assert jobs.resume_after_spend_cap(floor.organization.pk) == 0


def test_pending_job_resumes_on_the_next_day_even_if_the_task_is_lost(floor, monkeypatch):
    floor.set_policy(line_wait_s=30)
    ann, _ = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="1"))
    set_cap(floor, "1.00")
    spent = SpendCap.objects.get()
    SpendCap.objects.filter(pk=spent.pk).update(spent=Decimal(1), settled=Decimal(1), stopped_at=clock.now())
    job = floor.started()
    for _ in range(45):
        floor.later(1)
        floor.work()
        floor.audit()
    assert floor.job(job).pending_reason == "spend_cap"
    monkeypatch.setattr(spend_caps, "_on_resume", [])
    floor.later(86_400)
    pass_time(floor, 5)
    floor.until(lambda: floor.status(job) == "assigned")


def test_cap_reached_between_offer_and_call_uses_up_nobody(floor):
    floor.set_policy(auto_pause_misses=1)
    ann, _ = floor.crew("Ann", "Bob")
    set_cap(floor, "1.00")

    def stop() -> None:
        SpendCap.objects.update(spent=Decimal(1), settled=Decimal(1), stopped_at=clock.now())

    with fault_injection.arm_crash_point("jobs.offer.committed", stop):
        job = floor.started()
    assert floor.offers(job) == [("Ann", "not_placed")]
    assert floor.calls_made(ann) == 0
    floor.audit()
    floor.work()
    assert floor.job(job).waiting_for == "spend_cap"
    set_cap(floor, "5.00")
    floor.phone(ann).will(answer(press="1"))
    floor.phone(Technician.objects.get(name="Bob")).will(answer(press="2"))
    pass_time(floor, 8)
    floor.until(lambda: floor.status(job) == "assigned")
    assert not Technician.objects.exclude(misses_in_a_row=0).exists()
