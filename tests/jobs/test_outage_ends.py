"""The end of an outage is noticed, and reaches every job, whatever is lost or stuck meanwhile."""

from __future__ import annotations

import pytest
from django.db import transaction

from accounts import services as accounts
from accounts.models import Membership, User
from accounts.tenancy import actor_of
from dispatch.console.board.cards import cards_of
from dispatch.core import clock, events
from dispatch.core.models import Event
from dispatch.jobs import queries
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import recovery
from notifications.models import Alert, Claim
from notifications.services import acknowledge_alert, ownership
from notifications.services.alerts import append_alert_event
from notifications.services.notifications import handle
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_provider_outages import account, account_events, pass_time
from tests.phones import answer
from tests.support import factories


def handed_over(floor, count: int) -> list[int]:
    """Submissions whose jobs are pending because the provider's account is refused."""
    floor.set_policy(line_wait_s=30)
    floor.sim.fault("refuse", code=20005, times=None, on="any")
    left = [floor.started() for _ in range(count)]
    pass_time(floor, 40)
    assert {floor.job(one).pending_reason for one in left} == {"account_refused"}
    return left


def test_jobs_resume_although_the_resuming_task_was_lost(floor, monkeypatch):
    ann, bob = floor.crew("Ann", "Bob")
    left = handed_over(floor, 2)
    for technician in (ann, bob):
        floor.phone(technician).will(answer(press="1"))
    monkeypatch.setattr(recovery, "enqueue", lambda *args, **organization: None)  # Redis is away
    floor.sim.heal()
    pass_time(floor, 10)
    assert account().outage == ""
    floor.until(lambda: {floor.status(one) for one in left} == {"assigned"})


def test_only_candidate_no_longer_waits_for_the_provider_after_the_outage(floor):
    floor.crew("Ann")
    floor.sim.fault("error_503", times=None, on="any")
    job = floor.started()
    pass_time(floor, 60)
    assert (floor.offers(job), floor.job(job).waiting_for) == ([("Ann", "provider_silent")], "provider")
    floor.sim.heal()
    pass_time(floor, 15)
    assert account().outage == ""
    assert floor.job(job).waiting_for == "technician", "Ann's phone may still be ringing"


def test_a_job_that_cannot_be_resumed_stops_no_other(floor, monkeypatch):
    floor.crew("Ann", "Bob")
    bad, good = handed_over(floor, 2)
    real, bad_job = recovery._is_owned, floor.job(bad).pk

    def fails(job: Job) -> bool:
        if job.pk == bad_job:
            raise KeyError("no such event")
        return real(job)

    monkeypatch.setattr(recovery, "_is_owned", fails)
    floor.sim.heal()
    pass_time(floor, 10)
    assert "job.provider_back" in floor.kinds(good)
    assert floor.status(bad) == "pending"


def test_a_pending_job_is_the_trial_when_nobody_else_asks(floor):
    floor.set_policy(line_wait_s=60)
    (ann,) = floor.crew("Ann")
    floor.sim.fault("error_503", times=None, on="create")
    left = [floor.started() for _ in range(3)]
    pass_time(floor, 320)
    assert {floor.job(one).pending_reason for one in left} == {"provider_down"}
    assert account().is_on_trial, "asking for the account works, and nobody asks for a call"
    floor.sim.heal()
    floor.phone(ann).will(answer(press="1"))
    pass_time(floor, 320)
    assert account_events() == ["account.outage_began", "account.outage_ended"]
    assert Event.objects.filter(kind="job.provider_back").count() == 3
    floor.until(lambda: "assigned" in [floor.status(one) for one in left])


def test_trial_call_in_a_lasting_outage_keeps_the_alert_of_its_job(floor):
    (ann,) = floor.crew("Ann")
    (left,) = handed_over(floor, 1)
    assert recovery.resume_after_outage(floor.organization.pk, 1) == 1
    assert floor.job(left).is_trial
    floor.work()
    pass_time(floor, 35)
    kinds = floor.kinds(left)
    assert floor.job(left).pending_reason == "account_refused"
    assert (kinds.count("job.trial_began"), kinds.count("job.trial_failed")) == (1, 1)
    assert (kinds.count("job.pending"), kinds.count("job.provider_back")) == (1, 0)

    assert recovery.resume_after_outage(floor.organization.pk, 1) == 1
    floor.sim.heal()
    floor.phone(ann).will(answer(press="1"))
    pass_time(floor, 10)
    floor.until(lambda: floor.status(left) == "assigned")
    kinds = floor.kinds(left)
    assert (kinds.count("job.pending"), kinds.count("job.provider_back")) == (1, 1)


def test_attempts_on_the_board_leave_out_offers_withdrawn_by_an_outage(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    for attempt, outcome in ((2, "provider_silent"), (3, "not_placed"), (4, "declined")):
        Offer.objects.create(
            organization=floor.organization, job=job, technician=bob, attempt=attempt, status="rescinded",
            outcome=outcome, expires_at=clock.now(), settled_at=clock.now(),
        )  # fmt: skip
    (card,) = cards_of([floor.job(job)])
    assert (card.attempts, card.attempts_of) == (2, 2)


@pytest.mark.parametrize("kind", ["job.claimed", "job.alert_acknowledged"])
def test_claimed_job_is_not_used_as_a_trial(floor, kind):
    floor.set_policy(line_wait_s=60)
    floor.crew("Ann")
    floor.sim.fault("error_503", times=None, on="create")
    left = floor.started()
    while floor.status(left) != "pending":
        pass_time(floor, 5)
    job = floor.job(left)
    assert queries.find_pending_jobs(recovery._REASONS).get() == job
    events.append(floor.organization.pk, kind, job.pk)
    assert recovery.resume_after_outage(floor.organization.pk, 1) == 0


def test_job_whose_acknowledged_alert_returned_resumes_by_itself(floor):
    floor.crew("Ann")
    (left,) = handed_over(floor, 1)
    job = floor.job(left)
    events.append(floor.organization.pk, "job.alert_acknowledged", job.pk)
    assert recovery.resume_after_outage(floor.organization.pk) == 0
    events.append(floor.organization.pk, "job.alert_returned", job.pk)  # nobody did anything
    assert recovery.resume_after_outage(floor.organization.pk) == 1


def leave(floor: Floor, user: User) -> None:
    accounts.remove_member(Membership.objects.get(user=user).pk, actor=MARIA)


def deactivate(floor: Floor, user: User) -> None:
    accounts.change_member(Membership.objects.get(user=user).pk, is_active=False, actor=MARIA)


@pytest.mark.parametrize("go", [leave, deactivate])
def test_job_resumes_whose_owner_has_left(floor, go):
    dora = factories.dispatcher(floor.organization, "Dora")
    floor.crew("Ann")
    job = floor.job(handed_over(floor, 1)[0])
    ownership.claim(floor.organization, "job", job.pk, user=dora, actor=actor_of(dora))
    assert recovery.resume_after_outage(floor.organization.pk) == 0
    go(floor, dora)
    assert not Claim.objects.exists()
    released = Event.objects.get(kind="job.released", subject_id=job.pk)
    assert released.actor_label == MARIA.label
    assert recovery.resume_after_outage(floor.organization.pk) == 1


def test_claims_of_others_stay_when_a_member_leaves(floor):
    dora, eva = (factories.dispatcher(floor.organization, name) for name in ("Dora", "Eva"))
    job = floor.started()
    ownership.claim(floor.organization, "job", job.pk, user=eva, actor=actor_of(eva))
    leave(floor, dora)
    assert Claim.objects.get().user == eva


def raise_alerts(floor) -> None:
    with transaction.atomic():
        handle(list(Event.objects.order_by("id")))


def test_acknowledgment_of_another_alert_is_no_claim_of_the_job(floor):
    dora = factories.dispatcher(floor.organization, "Dora")
    floor.crew("Ann")
    job = floor.job(handed_over(floor, 1)[0])
    events.append(job.organization_id, "job.technician_unreached", job.pk, technician="Bob")
    raise_alerts(floor)
    other = Alert.objects.get(kind="job.technician_unreached")
    acknowledge_alert(other.pk, user=dora, actor=actor_of(dora), via="page")
    ownership.claim(floor.organization, "job", job.pk, user=dora, actor=actor_of(dora))
    append_alert_event(other, "alert_returned", by="Dora")
    assert recovery.resume_after_outage(floor.organization.pk) == 0, "Dora still owns the job"
    ownership.release(floor.organization, "job", job.pk, actor=actor_of(dora))
    append_alert_event(other, "alert_acknowledged", actor=actor_of(dora))
    assert recovery.resume_after_outage(floor.organization.pk, 1) == 1


def test_acknowledgment_of_its_alert_claims_a_pending_job(floor):
    dora = factories.dispatcher(floor.organization, "Dora")
    floor.crew("Ann")
    handed_over(floor, 1)
    raise_alerts(floor)
    acknowledge_alert(Alert.objects.get(kind="job.pending").pk, user=dora, actor=actor_of(dora), via="page")
    assert recovery.resume_after_outage(floor.organization.pk) == 0
