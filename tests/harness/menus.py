"""Technicians with jobs who call back and use the voice menu."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dispatch.core.models import Event
from dispatch.jobs import timeline
from dispatch.jobs.models import Job
from dispatch.jobs.services import Answer, AnswerChannel, answer_offer
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.call_back import CallBack
from tests.harness.jobs import Floor
from tests.jobs.test_answer_channels import reply, texted, texting  # noqa: F401
from tests.phones import PhoneCall

PIN = "4826"


def ann_of(floor: Floor, jobs: int = 1, **fields: Any) -> tuple[Technician, list[Job]]:
    """Ann Lee, who has this number of jobs."""
    ann = floor.technician("Ann Lee", max_open_jobs=9)
    return ann, [gives(floor, ann, **fields) for _ in range(jobs)]


def gives(floor: Floor, technician: Technician, **fields: Any) -> Job:
    """A job that this technician has accepted."""
    floor.until(lambda: not Call.objects.filter(ended_at=None).exists())
    job = floor.started(**fields)
    offer = floor.live_offer(job)
    assert offer.technician == technician
    assert answer_offer(offer.pk, None, "1", by=AnswerChannel.LINK) is Answer.ACCEPTED
    return floor.job(job)


def calls(floor: Floor, technician: Technician, **more: Any) -> CallBack:
    return CallBack(floor, str(technician.phone), **more)


def events(job: Job) -> Counter[str]:
    return Counter(Event.objects.filter(subject_type="job", subject_id=job.pk).values_list("kind", flat=True))


def entries(job: Job) -> list[str]:
    return [entry.text for entry in timeline.load_timeline(Job.objects.get(pk=job.pk))]


def types(call: PhoneCall, digits: str) -> PhoneCall:
    for digit in digits:
        call.press(digit)
    return call


def fail() -> None:
    raise RuntimeError("the process has trouble")
