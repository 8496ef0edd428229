"""Check that the event log of real jobs, offers and calls is accepted, and broken parts of it are refused."""

from __future__ import annotations

from dispatch.capacity.models import OutboundNumber
from dispatch.core import events
from dispatch.core.events import history
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import Offer
from dispatch.telephony.models import Call
from tests.harness.jobs import MARIA
from tests.support.histories import history_is_legal, undone


def test_histories_of_jobs_are_accepted_and_broken_ones_refused(floor):
    OutboundNumber.objects.update(max_channels=1)  # so that all calls use one line
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann).answer().press("2")
    floor.until(lambda: floor.tick() or Offer.objects.count() == 2)  # Bob's waits for the line
    floor.rings(bob).answer().press("1")
    floor.until(lambda: floor.status(job) == "assigned" and not Call.objects.filter(ended_at=None).exists())
    assert history_is_legal().subjects >= 5  # the job, two offers, two calls

    organization = floor.organization.pk
    declined, accepted = Offer.objects.order_by("attempt")
    first, second = Call.objects.order_by("id")
    with undone():
        late = events.append(organization, "job.resumed", job.pk)
        assert f"job {job.pk}: job.resumed (event {late.pk}) is illegal after assigned" in history.violations()
    with undone():
        late = events.append(organization, "offer.accepted", declined.pk, job_id=job.pk)
        since = Event.objects.get(kind="offer.accepted", subject_id=accepted.pk).pk
        assert (
            f"job {job.pk}: offer {declined.pk} takes it in event {late.pk}, "
            f"but offer {accepted.pk} has it since event {since}"
        ) in history.violations()
    with undone():
        Event.objects.filter(kind=f"call.{first.status}", subject_id=first.pk).delete()
        lines = list(history.violations())
        assert any(
            line.startswith(f"line 1 of number {floor.number.pk}: call {second.pk} takes it") for line in lines
        )
        assert f"call {first.pk}: its row is {first.status}" in "\n".join(lines)
    with undone():
        Event.objects.filter(kind="job.created").delete()
        assert f"job {job.pk}: its history has no beginning" in history.violations()
    with undone():
        Offer.objects.filter(pk=declined.pk).update(status="failed")
        assert f"offer {declined.pk}: its row is failed, but its events end with declined" in history.violations()


def test_histories_of_dispatchers_actions_are_accepted(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    services.pause(job.pk, actor=MARIA)
    services.resume(job.pk, actor=MARIA)
    services.call_next_now(job.pk, actor=MARIA)
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    services.assign(job.pk, ann.pk, actor=MARIA, confirm_unfit=True)
    services.complete(job.pk, actor=MARIA)
    services.reopen(job.pk, actor=MARIA)
    services.cannot_make_it(job.pk, actor=MARIA)
    services.cancel(job.pk, "not needed", actor=MARIA)
    services.dispatch_again(job.pk, actor=MARIA)
    services.cancel(job.pk, "not needed", actor=MARIA)
    assert history_is_legal().events >= 11
