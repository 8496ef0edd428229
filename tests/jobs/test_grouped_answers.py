"""Reports on calls of offers, and their first keys, are applied in groups and answered after their commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.jobs.channels import grouped_reports
from dispatch.jobs.channels.grouped_reports import OfferReports
from dispatch.jobs.models import Job, Offer
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.services import report_groups, report_signers
from dispatch.telephony.services.calls import notify_handler
from tests.harness.grouped_reports import events_about, hold_groups, route
from tests.harness.jobs import Floor, started_job
from tests.harness.provider import Signed, signed
from tests.phones import Simulator
from tests.support import factories
from tests.support.row_locks import held

_sids = itertools.count(1)


def ringing_offer(floor: Floor, name: str = "Ann") -> tuple[Job, Offer, Call]:
    """A new job whose first technician is called. The provider has accepted the call; nothing was requested."""
    floor.set_policy(duplicate_hours=0)
    floor.technician(name)
    job = started_job(floor.organization, floor.service)
    offer = Offer.objects.get(job=job)
    call = Call.objects.get(purpose="offer", subject_id=offer.pk)
    Call.objects.filter(pk=call.pk).update(
        status="submitted", sid=f"CA{next(_sids):032x}", submitted_at=clock.now(), requested_at=clock.now()
    )
    call.refresh_from_db()
    notify_handler(call)
    return job, offer, call


def voice(sim: Simulator, call: Call) -> Signed:
    return signed(sim, call, "voice", CallStatus="in-progress")


def key(sim: Simulator, call: Call, pressed: str, step: int = 1, **form: str) -> Signed:
    return signed(
        sim, call, f"gather?step={step}&keys=12s", **{"CallStatus": "in-progress", "Digits": pressed, **form}
    )


def report(sim: Simulator, call: Call, status: str, sequence: int) -> Signed:
    return signed(sim, call, "status", CallStatus=status, SequenceNumber=str(sequence), CallDuration="12")


def ended(sim: Simulator, call: Call) -> Signed:
    return report(sim, call, "completed", 3)


def apply(*requests: Signed) -> list[Any]:
    return report_groups.apply_group([request.parsed() for request in requests])


PLAYS: dict[str, Callable[[Simulator, Call], list[Signed]]] = {
    "accepted": lambda by, call: [
        report(by, call, "ringing", 0), voice(by, call), key(by, call, "1"), ended(by, call),
    ],
    "declined": lambda by, call: [voice(by, call), key(by, call, "2"), ended(by, call)],
    "no key": lambda by, call: [report(by, call, "ringing", 0), voice(by, call), ended(by, call)],
    "answered is reported": lambda by, call: [report(by, call, "in-progress", 1), voice(by, call)],
    "star, then yes": lambda by, call: [key(by, call, "*"), key(by, call, "1", 2), ended(by, call)],
    "wrong key, no key, then no": lambda by, call: [
        key(by, call, "7"), key(by, call, "", 2), key(by, call, "2", 3), ended(by, call),
    ],
    "yes, then no": lambda by, call: [voice(by, call), key(by, call, "1"), key(by, call, "2", 2), ended(by, call)],
    "no, then yes": lambda by, call: [voice(by, call), key(by, call, "2"), key(by, call, "1", 2), ended(by, call)],
    "yes, repeated": lambda by, call: [voice(by, call)] * 2 + [key(by, call, "1")] * 2 + [ended(by, call)] * 2,
    "yes without a prompt": lambda by, call: [key(by, call, "1"), voice(by, call)],
    "yes after the end": lambda by, call: [voice(by, call), ended(by, call), key(by, call, "1")],
    "prompt after yes": lambda by, call: [key(by, call, "1"), voice(by, call)],
    "busy": lambda by, call: [report(by, call, "busy", 1)],
    "forged yes": lambda by, call: [
        key(by, call, "1")._replace(headers=key(by, call, "2").headers), voice(by, call)
    ],
}  # fmt: skip
_VARYING = {
    "body", "call", "expires_at", "job_id", "number", "offer_id", "started", "submission_id", "subject_id",
    "technician_id", "url",
}  # fmt: skip


@pytest.mark.parametrize("name", PLAYS)
def test_route_and_django_respond_and_write_the_same(floor: Floor, name: str) -> None:
    found = []
    for post in (Signed.post, Signed.post_to_django):
        Technician.objects.filter(organization=floor.organization).update(is_active=False)
        job, offer, call = ringing_offer(floor)
        responses = [post(request) for request in PLAYS[name](floor.sim, call)]
        found.append(
            {
                "codes": [response.status_code for response in responses],
                "said": [response.text.replace(f"/{call.pk}/", "/id/") for response in responses],
                **rows_of(job, offer, call),
            }
        )
    assert found[0] == found[1]


def rows_of(job: Job, offer: Offer, call: Call) -> dict[str, Any]:
    """Return everything about the offer, without ids and times."""
    job.refresh_from_db()
    offer.refresh_from_db()
    call.refresh_from_db()
    technician = Technician.objects.get(pk=offer.technician_id)
    return {
        "job": (job.status, job.waiting_for, job.version),
        "of the job": (job.technician_id is not None, job.next_action_at is not None),
        "offer": (offer.status, offer.outcome, offer.reason),
        "of the offer": (offer.ringing_since is not None, offer.answered_at is not None),
        "call": (call.status, call.keys_pressed, call.last_sequence, call.duration_s),
        "of the call": (call.answered_at is not None, call.ended_at is not None),
        "technician": (technician.open_jobs, technician.live_offer_id == offer.pk, technician.misses_in_a_row),
        "reports": list(CallEvent.objects.filter(call=call).values_list("kind", "next_action_at")),
        "events": [
            (kind, actor, {key: value for key, value in data.items() if key not in _VARYING})
            for subject, pk in (("job", job.pk), ("offer", offer.pk), ("call", call.pk))
            for kind, actor, data in events_about(subject, pk)
        ],
    }  # fmt: skip


def test_plain_answers_do_not_reach_django(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.telephony.webhooks.receive_webhook", lambda *_: 1 / 0)
    job, offer, call = ringing_offer(floor)
    requests = PLAYS["accepted"](floor.sim, call)
    assert [request.post().status_code for request in requests] == [204, 200, 200, 204]
    assert floor.offers(job) == [("Ann", "accepted")]
    assert floor.kinds(job).count("job.assigned") == 1
    assert Offer.objects.get(pk=offer.pk).answered_at is not None


def test_whole_call_in_one_group(floor: Floor) -> None:
    job, _, call = ringing_offer(floor)
    pressed = key(floor.sim, call, "1")
    _, said, repeated = apply(voice(floor.sim, call), pressed, pressed)
    assert repeated is None, "the job is not decided twice in one group"
    assert said.body == pressed.post().content
    assert floor.kinds(job).count("job.assigned") == 1
    assert apply(ended(floor.sim, call)) != [None]


def test_end_with_the_first_key_of_its_group_is_referred(floor: Floor) -> None:
    """The offer is open as the group sees it, and its end is decided alone; the key was first and counts."""
    job, _, call = ringing_offer(floor)
    answers = apply(key(floor.sim, call, "1"), ended(floor.sim, call))
    assert [answer is not None for answer in answers] == [True, False]
    assert ended(floor.sim, call).post().status_code == 204
    assert floor.offers(job) == [("Ann", "accepted")]


def test_key_is_answered_only_after_its_commit(floor: Floor) -> None:
    job, _, call = ringing_offer(floor)
    with hold_groups() as release, ThreadPoolExecutor(1) as threads:
        first = threads.submit(key(floor.sim, call, "1").post)
        with pytest.raises(TimeoutError):
            first.result(0.3)
        assert floor.offers(job) == [("Ann", "pending")]
        release()
        assert first.result().status_code == 200
    assert floor.offers(job) == [("Ann", "accepted")]
    assert route()._groups.waiting == 0


# --- What is decided alone


def test_key_of_a_job_with_another_offer_is_referred(floor: Floor) -> None:
    job, offer, call = ringing_offer(floor)
    bob = floor.technician("Bob", km=3)
    fields = {"organization": floor.organization, "job": job, "technician": bob, "attempt": 2, "slot": offer.slot}
    Offer.objects.create(
        status="declined", outcome="declined", expires_at=clock.now(), settled_at=clock.now(), **fields
    )
    assert apply(key(floor.sim, call, "1")) == [None]
    assert not CallEvent.objects.filter(call=call).exists()
    assert key(floor.sim, call, "1").post().status_code == 200
    assert floor.offers(job)[0] == ("Ann", "accepted")


@pytest.mark.parametrize("late", ["expired", "paused", "inactive", "pressed before", "assigned"])
def test_key_that_may_not_count_is_referred(floor: Floor, late: str) -> None:
    job, offer, call = ringing_offer(floor)
    match late:
        case "expired":
            Offer.objects.filter(pk=offer.pk).update(expires_at=clock.now() - timedelta(seconds=1))
        case "paused":
            Job.objects.filter(pk=job.pk).update(paused_at=clock.now(), next_action_at=None)
        case "inactive":
            Technician.objects.filter(pk=offer.technician_id).update(is_active=False)
        case "pressed before":
            Call.objects.filter(pk=call.pk).update(keys_pressed="2")
        case _:
            Call.objects.filter(pk=call.pk).update(cancel_requested_at=clock.now())
    assert apply(key(floor.sim, call, "1")) == [None]
    assert not CallEvent.objects.filter(call=call).exists()


def test_locked_rows_delay_only_their_own_key(floor: Floor) -> None:
    locked_job, _, first = ringing_offer(floor)
    _, locked_offer, second = ringing_offer(floor, "Bob")
    free_job, _, third = ringing_offer(floor, "Cem")
    technician = Technician.objects.get(pk=locked_offer.technician_id)
    requests = [key(floor.sim, call, "1") for call in (first, second, third)]
    with held(Job.objects.get(pk=locked_job.pk), technician, lock="FOR NO KEY UPDATE"):
        answers = apply(*requests)
    assert [answer is not None for answer in answers] == [False, False, True]
    assert floor.offers(free_job) == [("Cem", "accepted")]
    assert [request.post().status_code for request in requests] == [200] * 3
    assert Job.objects.filter(status="assigned").count() == 3


def test_burst_of_answers_does_not_hold_up_a_group(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_reports, "MAX_ANSWERS", 1)
    jobs = [ringing_offer(floor, name) for name in ("Ann", "Bob")]
    requests = [key(floor.sim, call, "1") for _, _, call in jobs]
    assert [answer is not None for answer in apply(*requests)] == [True, False]
    assert requests[1].post().status_code == 200
    assert Job.objects.filter(status="assigned").count() == 2


def test_poisoned_answer_hurts_only_itself(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _, good = ringing_offer(floor)
    poisoned_job, poisoned, bad = ringing_offer(floor, "Bob")
    apply_report = OfferReports.apply_report

    def fail(self: Any, report: Any, is_new: bool) -> None:
        if report.call.pk == bad.pk and report.key:
            Offer.objects.filter(pk=poisoned.pk).update(reason="half done")
            raise ValueError("poisoned")
        apply_report(self, report, is_new)

    monkeypatch.setattr(OfferReports, "apply_report", fail)
    answers = apply(
        voice(floor.sim, bad), key(floor.sim, bad, "1"), key(floor.sim, good, "1"), voice(floor.sim, good)
    )
    assert [answer is not None for answer in answers] == [True, False, True, True]
    assert floor.offers(job) == [("Ann", "accepted")]
    assert Offer.objects.get(pk=poisoned.pk).reason == ""
    assert list(CallEvent.objects.filter(call=bad).values_list("kind", flat=True)) == ["voice"]
    assert key(floor.sim, bad, "1").post().status_code == 200, "Django applies it"
    assert floor.offers(poisoned_job) == [("Bob", "accepted")]


def test_answer_signed_for_another_tenants_call_opens_nothing(floor: Floor) -> None:
    job, _, call = ringing_offer(floor)
    other = factories.account(factories.organization(), account_sid=floor.sim.account_sid, auth_token="chosen")
    stranger = Simulator.__new__(Simulator)
    stranger.account_sid, stranger.auth_token = other.account_sid, "chosen"
    forged = key(stranger, call, "1")
    report_signers.reset()  # else it would not reach a group
    assert apply(forged, voice(floor.sim, call))[0] is None
    assert forged.post().status_code == 403
    assert floor.offers(job) == [("Ann", "pending")]
