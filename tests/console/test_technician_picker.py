"""The list of technicians to assign says what speaks against each, and leaves out the one who has the job."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.urls import reverse

from dispatch.jobs import services
from dispatch.jobs.models import Job
from tests.jobs.test_threads import MARIA, Desk
from tests.jobs.test_wider_rounds import declines, live, placed
from tests.support import factories

AVAILABLE, DECLINED, GAVE_BACK = "Available", "declined this job", "said they can't make it"
FAR = 500  # km: beyond the radius


@pytest.fixture
def desk(db) -> Desk:
    return Desk()


def choices(desk: Desk, job: Job, **query: object) -> dict[str, str]:
    """Return what the list says of each technician, by name."""
    path = reverse("console:act", args=[job.pk, "assign"])
    page = factories.browser(desk.maria).get(path, query, headers={"HX-Request": "true"}).content.decode()
    listed = page.partition('<fieldset id="choices"')[2].partition("</fieldset>")[0]
    rows = re.findall(r'class="name break">([^<]*)<.*?class="why [^>]*>.*?</svg>([^<]*)<', listed, re.S)
    return {unescape(name): unescape(why) for name, why in rows}


def test_technician_who_declined_is_never_listed_as_available(desk):
    placed(desk, "Rosa", 20)
    job = desk.job()
    assert live(job).technician == desk.ann
    declines(job)
    assert choices(desk, job)["Ann"] == DECLINED
    found = choices(desk, job, who="rosa", technician=desk.ann.pk)
    assert (set(found), found["Ann"]) == ({"Ann", "Rosa"}, DECLINED)


def test_technician_who_gave_the_job_back_is_never_listed_as_available(desk):
    placed(desk, "Rosa", 20)
    job = desk.assigned()
    services.cannot_make_it(job.pk, actor=MARIA)
    found = choices(desk, job, who="rosa", technician=desk.ann.pk)
    assert (set(found), found["Ann"]) == ({"Ann", "Rosa"}, GAVE_BACK)


def test_refusals_are_listed_for_a_job_without_a_position_and_beyond_the_radius(desk):
    far = placed(desk, "Rosa", FAR)
    job = desk.job()
    declines(job)
    services.assign(job.pk, far.pk, actor=MARIA, confirm_unfit=True)
    services.cannot_make_it(job.pk, actor=MARIA)
    assert choices(desk, job) == {"Ann": DECLINED, "Rosa": GAVE_BACK}
    Job.objects.filter(pk=job.pk).update(lat=None, lng=None)
    assert choices(desk, job) == {"Ann": DECLINED, "Rosa": GAVE_BACK}


def test_technician_who_has_the_job_is_not_listed(desk):
    placed(desk, "Rosa", 20)
    job = desk.assigned()
    assert choices(desk, job) == {"Rosa": AVAILABLE}
    assert choices(desk, job, who="ann") == {}
    assert choices(desk, job, technician=desk.ann.pk) == {"Rosa": AVAILABLE}
    Job.objects.filter(pk=job.pk).update(lat=None, lng=None)
    assert choices(desk, job) == {"Rosa": AVAILABLE}
