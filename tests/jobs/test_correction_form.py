"""The forms of a job send what their user changed, and keep what another dispatcher changed."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.urls import reverse

from dispatch.jobs import services
from dispatch.jobs.models import Job
from tests.harness.jobs import MARIA, Floor
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)


class Screen:
    """The page of an action as a browser holds it. `where`: the board's panel or the admin's page."""

    def __init__(self, floor: Floor, job: Job, where: str, action: str = "correct") -> None:
        admin = factories.admin(floor.organization)
        self.browser = factories.browser(admin)
        self.address = reverse(where, args=[job.pk, action])
        self.answer: Any = self.browser.get(self.address)
        self.entered = self._fields()

    def send(self, **entered: str) -> Any:
        """Send the form with what is entered, as a browser sends it."""
        self.entered |= entered
        given = {name: re.sub(r"\r?\n", "\r\n", text) for name, text in self.entered.items()}
        self.answer = self.browser.post(self.address, given)
        if self.answer.status_code != 302:
            self.entered = self._fields()
        return self.answer

    def _fields(self) -> dict[str, str]:
        page = self.answer.content.decode()
        values = {}
        for tag in re.findall(r"<input [^>]*>", page):
            name, value = re.search(r'name="([^"]+)"', tag), re.search(r'value="([^"]*)"', tag)
            if name and name[1] in NAMES:
                values[name[1]] = html.unescape(value[1]) if value else ""
        for name, text in re.findall(r'<textarea name="(\w+)"[^>]*>\r?\n?(.*?)</textarea>', page, re.S):
            values[name] = html.unescape(text).replace("\r\n", "\n")  # as browsers do
        for name, options in re.findall(r'<select name="(\w+)"[^>]*>(.*?)</select>', page, re.S):
            if name in NAMES:
                values[name] = (re.search(r'value="([^"]*)" selected', options) or ["", ""])[1]
        return values


NAMES = {
    "version", "seen", "address", "customer_name", "customer_phone", "priority", "window_day", "window_from",
    "window_until", "expected_minutes", "notes", "note",
}  # fmt: skip


@pytest.fixture(params=["console:act", "admin:jobs_job_act"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_second_confirmation_keeps_what_the_other_dispatcher_changed(floor: Floor, where: str) -> None:
    floor.crew("Ann")
    job = floor.started(notes="Gate code 4711\nRing twice\n")
    mine, theirs = Screen(floor, job, where), Screen(floor, job, where)
    assert theirs.send(customer_name="Dolores Umber", expected_minutes="90").status_code == 302
    refused = mine.send(notes="Ring\nthrice")
    assert refused.status_code == 409
    assert "Review the job and confirm again" in refused.content.decode()
    assert (mine.entered["customer_name"], mine.entered["expected_minutes"]) == ("Dolores Umber", "90")
    assert mine.entered["notes"] == "Ring\nthrice"
    assert mine.send().status_code == 302
    after = floor.job(job)
    assert (after.customer_name, after.expected_minutes, after.notes) == ("Dolores Umber", 90, "Ring\nthrice")


def test_a_field_that_was_not_changed_is_neither_judged_nor_sent(floor: Floor, where: str) -> None:
    floor.crew("Ann")
    job = floor.started()
    Job.objects.filter(pk=job.pk).update(customer_phone="+15555", customer_name="")
    screen = Screen(floor, job, where)
    assert screen.send(priority="1").status_code == 302
    after = floor.job(job)
    assert (after.priority, str(after.customer_phone), after.customer_name) == (1, "+15555", "")


def test_an_address_in_two_lines_is_read_as_one(floor: Floor, where: str) -> None:
    floor.crew("Ann")
    job = floor.started()
    Job.objects.filter(pk=job.pk).update(address="1 W Adams St\nPhoenix, AZ 85003")
    screen = Screen(floor, job, where)
    assert screen.entered["address"] == "1 W Adams St\nPhoenix, AZ 85003"
    assert screen.send(priority="1").status_code == 302
    assert floor.job(job).address == "1 W Adams St\nPhoenix, AZ 85003", "it was not changed"
    assert Screen(floor, job, where).send(address="200 W Washington St,\nPhoenix, AZ 85003").status_code == 302
    assert floor.job(job).address == "200 W Washington St, Phoenix, AZ 85003"


def test_a_job_called_again_without_a_new_address_keeps_its_position(floor: Floor, where: str) -> None:
    floor.crew("Ann")
    job = floor.started(address="1 W Adams St\nPhoenix,  AZ 85003", lat=33.45, lng=-112.07)
    services.cancel(job.pk, "a mistake", actor=MARIA)
    assert Screen(floor, job, where, "dispatch_again").send().status_code == 302
    after = floor.job(job)
    assert (after.status, after.address) == ("dispatching", "1 W Adams St\nPhoenix,  AZ 85003")
    assert (after.lat, after.lng, after.position_source) == (33.45, -112.07, "form")


@pytest.mark.parametrize("seen", ["", "[]", "{", '{"notes": 5}', "[" * 5000])
def test_values_are_compared_with_the_job_if_the_page_lacks_them(floor: Floor, where: str, seen: str) -> None:
    floor.crew("Ann")
    job = floor.started(notes="Gate code 4711")
    screen = Screen(floor, job, where)
    screen.entered["seen"] = seen
    assert screen.send(notes="Ring twice").status_code == 302
    assert floor.job(job).notes == "Ring twice"
