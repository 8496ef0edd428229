"""What a dispatcher sees in a browser while phones ring."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from dispatch.jobs.models import Job
from notifications import loops as notifier
from tests.core.horizon import all_readable
from tests.core.threads import Elsewhere
from tests.phones import answer, ignore
from tests.support import factories

pytestmark = pytest.mark.browser


def tell_people() -> None:
    """The notifier's pass, until it has read everything. Elsewhere: Playwright's event loop is in this thread."""

    def read_all() -> None:
        all_readable()
        while notifier.step() == 0:
            pass

    Elsewhere(read_all).finish()


def test_a_job_goes_from_calling_to_accepted_on_its_page_without_reload(floor, app_url, sign_in):
    ann = floor.technician("Ann")
    dispatcher = factories.dispatcher(floor.organization, "Dana")
    job = floor.started()
    call = floor.rings(ann)
    page = sign_in(dispatcher)
    page.get_by_role("link", name=f"#{job.pk}").click()
    page.wait_for_url("**/change/")
    expect(page.get_by_text("Calling").first).to_be_visible()
    page.evaluate("window.neverReloaded = true")
    call.answer().press("1").hears("the job is yours")
    expect(page.get_by_text("Ann accepted the job")).to_be_visible()
    expect(page.locator(".state", has_text="Assigned").first).to_be_visible()
    assert page.evaluate("window.neverReloaded")


def test_one_dispatcher_acknowledges_exhausted_job_for_both(floor, sign_in):
    floor.phone(floor.technician("Ann")).will(answer(press="2"))
    first, second = (factories.dispatcher(floor.organization, name) for name in ("Dana", "Kim"))
    pages = [sign_in(first), sign_in(second, width=390, scheme="dark")]
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    tell_people()
    for page in pages:
        expect(page.get_by_role("alert")).to_contain_text("Nobody accepted")
    expect(pages[1]).to_have_title(re.compile(r"^\(1\) "))
    pages[0].get_by_role("button", name="Acknowledge").click()
    for page in pages:
        expect(page.get_by_role("alert")).to_have_count(0)


def test_manual_assignment_conflict_names_the_first_dispatcher(floor, app_url, sign_in):
    ann, bob = floor.crew("Ann", "Bob")
    for technician in (ann, bob):
        floor.phone(technician).will(ignore())
    dana = factories.dispatcher(floor.organization, "Dana")
    kim = factories.dispatcher(floor.organization, "Kim")
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    pages = [sign_in(dana), sign_in(kim)]
    for page in pages:
        page.goto(f"{app_url}/admin/jobs/job/{job.pk}/change/")
        page.get_by_role("link", name="Assign").click()
    ends = (pages[0].locator(".state", has_text="Assigned").first, pages[1].get_by_text("Dana assigned").first)
    for page, name, end in zip(pages, ("Bob", "Ann"), ends, strict=True):
        choice = page.get_by_label("Technician")
        choice.select_option(choice.locator("option", has_text=name).first.get_attribute("value"))
        page.get_by_role("button", name="Assign").click()
        expect(end).to_be_visible()
    assert Job.objects.get(pk=job.pk).technician == bob


def test_an_outsider_gets_no_page_of_another_organizations_job(floor, app_url, sign_in):
    job = floor.started() if floor.technician("Ann") else None
    outsider = factories.admin(factories.organization("Elsewhere"))
    page = sign_in(outsider)
    answer = page.goto(f"{app_url}/admin/jobs/job/{job.pk}/change/")
    assert answer.status == 404
    expect(page.get_by_text("Water heater repair")).to_have_count(0)
