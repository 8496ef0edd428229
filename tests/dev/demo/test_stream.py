"""The stream keeps the demo company busy as long as its process lives, and no longer."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading

import pytest

from dispatch.core import clock
from dispatch.dev.demo.client import Answer
from dispatch.dev.demo.stream import FORM_EVERY_S, MOVE_EVERY_S, Stream
from dispatch.jobs.models import Job, Offer
from dispatch.technicians.models import Technician
from tests.dev.demo.test_history import filled_company
from tests.support.processes import ROOT
from tests.support.row_snapshots import written_once
from tests.support.waiting import PATIENCE, wait_until


class Website:
    """Stand-in for the HTTP client that accepts every form while it is up."""

    def __init__(self):
        self.forms, self.is_up = [], True

    def submit(self, line):
        if not self.is_up:
            return Answer(0, None, 0.0, "no answer")
        self.forms.append(line.body)
        return Answer(202, {"id": len(self.forms)}, 0.0)


class Phones:
    """Stand-in for the simulator's control API."""

    def __init__(self):
        self.answers = []

    def call_back(self, phone, to):
        self.answers.append(phone)

    def text(self, phone, to, body):
        self.answers.append(phone)


@pytest.fixture
def company(transactional_db):
    return written_once("demo company", filled_company)


def stream_of(organization, website, phones=None):
    return Stream(organization, website, phones or Phones(), random.Random(3), now=0.0)


def play(stream, seconds):
    for tenths in range(int(seconds * 10)):
        stream.step(tenths / 10)


def test_a_form_arrives_every_20_to_60_seconds(company):
    website = Website()
    stream = stream_of(company, website)
    play(stream, 30)
    assert 3 <= len(website.forms) <= 4, "the first three come at once"
    play_from = len(website.forms)
    for second in range(30, 1230):
        stream.step(float(second))
    low, high = (1200 / every for every in reversed(FORM_EVERY_S))
    assert low - 2 <= len(website.forms) - play_from <= high + 2
    assert {form["service_type"] for form in website.forms} >= {"ac-repair", "plumbing"}


def test_forms_wait_until_the_website_is_up(company):
    website = Website()
    website.is_up = False
    stream = stream_of(company, website)
    play(stream, 10)
    website.is_up = True
    for second in range(10, 20):
        stream.step(float(second))
    assert website.forms


def test_technicians_with_a_job_come_closer_to_it(company):
    job = Job.objects.of(company).filter(status="assigned").exclude(lat=None).order_by("pk")[0]
    Technician.objects.of(company).exclude(pk=job.technician_id).update(on_duty=False)
    stream = stream_of(company, Website())

    def away():
        technician = Technician.objects.get(pk=job.technician_id)
        return abs(technician.lat - job.lat) + abs(technician.lng - job.lng)

    Technician.objects.filter(pk=job.technician_id).update(lat=job.lat + 0.2, lng=job.lng + 0.2)
    before = away()
    for n in range(1, 30):
        stream.step(n * MOVE_EVERY_S)
    assert away() < before / 2


def test_technician_who_answers_late_takes_a_job_that_nobody_has(company):
    ruth = Technician.objects.of(company).get(name="Ruth Yazzie")
    offer = Offer.objects.of(company).filter(job__status="pending", status="failed").order_by("-pk")[0]
    Offer.objects.filter(pk=offer.pk).update(technician=ruth, settled_at=clock.now())
    phones = Phones()
    stream = stream_of(company, Website(), phones)
    for second in range(60):
        stream.step(float(second))
    assert phones.answers == [ruth.phone.as_e164]


def test_stream_ends_when_it_is_stopped(company):
    website, stopped = Website(), threading.Event()
    thread = threading.Thread(target=stream_of(company, website).run, args=(stopped,))
    thread.start()
    wait_until(lambda: website.forms)
    stopped.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_process_of_the_stream_ends_with_sigterm(company, test_environment):
    command = [sys.executable, "manage.py", "demo_stream"]
    with subprocess.Popen(command, cwd=ROOT, env=test_environment) as process:
        before = Technician.objects.of(company).order_by("-position_at")[0].position_at
        wait_until(lambda: Technician.objects.of(company).filter(position_at__gt=before).exists())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
