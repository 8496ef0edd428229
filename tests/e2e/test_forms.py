"""Every form outside the console is submitted once by a real Chromium, on desktop and phone.

Browsers send headers that Django's test client does not: an Origin that depends on the referrer policy, and
requests that the page's content security policy allows or blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from accounts import services
from accounts.models import Membership, Organization, User
from dispatch.core import clock
from dispatch.jobs import signed_links
from dispatch.jobs.models import Job, Offer, PublicForm, Submission
from dispatch.schedules.models import Schedule
from dispatch.technicians.models import Technician
from notifications.models import PhoneConfirmation
from notifications.services import phone_confirmation
from tests.support import factories as make
from tests.support.factories import PASSWORD
from tests.support.tenants import Tenant, tenant
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

CHOSEN = "three blind llamas"
DEVICES = [pytest.param((1440, "light"), id="desktop"), pytest.param((390, "dark"), id="phone")]


@pytest.fixture(params=DEVICES)
def device(request) -> tuple[int, str]:
    return request.param


@pytest.fixture
def visitor(chromium: Browser, app_url: str, device: tuple[int, str]) -> Iterator[Callable[[str], Page]]:
    """`visitor(path)` is that page in the browser of a person who has not signed in."""
    width, scheme = device
    contexts = []

    def open_page(path: str) -> Page:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(app_url + path)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def organization(app_url: str) -> Organization:
    return make.organization("Desert Air")


def path_of(url: str) -> str:
    return urlsplit(url).path


def sign_in_on(page: Page, email: str, password: str) -> None:
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def invite(page: Page, app_url: str, email: str, name: str) -> str:
    """Invite this person in the admin and return the invitation link."""
    page.goto(f"{app_url}/admin/accounts/membership/add/")
    page.locator("#id_email").fill(email)
    page.locator("#id_name").fill(name)
    page.locator("#id_role").select_option("dispatcher")
    page.get_by_role("button", name="Save", exact=True).click()
    return page.locator("[data-secret]").inner_text()


def test_a_person_signs_in_and_out(app_url, organization, visitor):
    person = make.dispatcher(organization, "Dana")
    page = visitor("/board/")
    sign_in_on(page, person.email, PASSWORD)
    page.wait_for_url(f"{app_url}/board/")
    page.locator("summary[aria-label^=Dana]").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/admin/log*/**")
    page.goto(f"{app_url}/board/")
    page.wait_for_url("**/admin/login/**")


def test_an_invited_colleague_joins_and_works_on_the_board(app_url, organization, sign_in, visitor, device):
    width, scheme = device
    administrator = sign_in(make.admin(organization, "Grace"), width=width, scheme=scheme, path="/admin/")
    link = invite(administrator, app_url, "new@example.com", "Noor Haddad")
    page = visitor(path_of(link))
    expect(page.get_by_role("heading")).to_have_text("Join Desert Air")
    expect(page.locator("#id_name")).to_have_value("Noor Haddad")
    page.locator("#id_phone").fill("602 555 0142")
    page.locator("#id_new_password1").fill(CHOSEN)
    page.locator("#id_new_password2").fill(CHOSEN)
    page.get_by_role("button", name="Join").click()
    page.wait_for_url("**/admin/login/**")
    person = User.objects.get(email="new@example.com")
    assert (person.memberships.get().is_active, str(person.phone)) == (True, "+16025550142")
    sign_in_on(page, "new@example.com", CHOSEN)
    page.wait_for_url("**/admin/")
    page.goto(f"{app_url}/board/")
    page.get_by_role("button", name="Go on duty").click()
    expect(page.get_by_role("button", name="On duty", exact=True)).to_be_visible()
    assert Membership.objects.get(user__email="new@example.com").on_duty


def test_a_known_person_joins_another_organization(app_url, organization, sign_in, device):
    width, scheme = device
    person = make.dispatcher(organization, "Dana")
    other = make.organization("Mesa Plumbing")
    administrator = sign_in(make.admin(other, "Grace"), width=width, scheme=scheme, path="/admin/")
    link = invite(administrator, app_url, person.email, "Dana")
    page = sign_in(person, width=width, scheme=scheme, path=path_of(link))
    page.get_by_role("button", name="Join").click()
    page.wait_for_url(f"{app_url}/board/**")
    assert Membership.objects.get(user=person, organization=other).is_active


def test_a_password_is_chosen_from_a_link(organization, visitor):
    person = make.dispatcher(organization, "Dana")
    page = visitor(services.password_path(person))
    page.locator("#id_new_password1").fill(CHOSEN)
    page.locator("#id_new_password2").fill(CHOSEN)
    page.get_by_role("button", name="Save password").click()
    page.wait_for_url("**/admin/login/")
    assert User.objects.get(pk=person.pk).check_password(CHOSEN)


def test_a_person_changes_their_password(organization, sign_in, device):
    width, scheme = device
    person = make.dispatcher(organization, "Dana")
    page = sign_in(person, width=width, scheme=scheme, path="/admin/password_change/")
    page.locator("#id_old_password").fill(PASSWORD)
    page.locator("#id_new_password1").fill(CHOSEN)
    page.locator("#id_new_password2").fill(CHOSEN)
    page.get_by_role("button", name="Change password").click()
    page.wait_for_url("**/admin/password_change/done/")
    assert User.objects.get(pk=person.pk).check_password(CHOSEN)


def test_a_technician_sets_duty_and_position(organization, visitor):
    ann = make.technician(organization, "Ann")
    page = visitor(path_of(signed_links.technician_url(ann)))
    page.get_by_role("button", name="Go off duty").click()
    expect(page.get_by_text("You're off duty.", exact=False).first).to_be_visible()
    page.get_by_label("Address or ZIP code").fill("85281")
    page.get_by_role("button", name="Set position").click()
    expect(page.get_by_text("Your position has been updated.")).to_be_visible()
    ann.refresh_from_db()
    assert (ann.on_duty, round(ann.lat, 1)) == (False, 33.4)


@pytest.fixture
def ours(app_url: str) -> Tenant:
    return tenant("Alphaville")


def assigned(ours: Tenant) -> Technician:
    """The tenant's technician, with its job assigned to them."""
    technician = ours.row(Technician)
    Job.objects.filter(pk=ours.row(Job).pk).update(
        status="assigned",
        technician=technician,
        assigned_at=clock.now(),
        pending_reason="",
        waiting_for="technician",
    )
    Technician.objects.filter(pk=technician.pk).update(open_jobs=1)
    return technician


def test_a_technician_completes_a_job(ours, visitor):
    page = visitor(path_of(signed_links.technician_url(assigned(ours))))
    page.get_by_role("button", name="Mark as done").click()
    expect(page.get_by_text("The job is marked as done. Thank you.")).to_be_visible()
    assert Job.objects.get(pk=ours.row(Job).pk).status == "completed"


def test_a_technician_gives_a_job_back(ours, visitor):
    page = visitor(path_of(signed_links.technician_url(assigned(ours))))
    page.get_by_text("I can't make it").click()
    page.get_by_label("Reason (dispatchers see it)").fill("Flat tire")
    page.get_by_role("button", name="Give job back").click()
    expect(page.get_by_text("We'll find another technician for the job.")).to_be_visible()
    assert Job.objects.get(pk=ours.row(Job).pk).technician is None


@pytest.mark.parametrize(("button", "status"), [("Accept job", "accepted"), ("Decline", "declined")])
def test_an_offer_is_answered_on_its_page(ours, visitor, button, status):
    offer = ours.row(Offer)
    Offer.objects.filter(pk=offer.pk).update(status="pending", expires_at=clock.now() + timedelta(minutes=5))
    Job.objects.filter(pk=offer.job_id).update(
        status="dispatching", pending_reason="", waiting_for="offer", next_action_at=offer.expires_at
    )
    page = visitor(path_of(signed_links.offer_url(offer)))
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("button", name=button)).to_have_count(0)
    assert Offer.objects.get(pk=offer.pk).status == status


@pytest.mark.parametrize("embedded", ["", "embed/"])
def test_a_customer_sends_the_form_and_follows_the_request(app_url, organization, visitor, embedded):
    make.service_type(organization)
    PublicForm.objects.create(organization=organization, is_on=True)
    page = visitor(f"/f/{organization.slug}/{embedded}")
    with clock.restored():
        clock.travel(5)  # nobody fills it in within two seconds
        page.get_by_label("What do you need help with?").select_option("plumbing")
        page.get_by_label("Your name").fill("Dana Whitfield")
        page.get_by_label("Phone").fill("602 555 0134")
        page.get_by_label("Street address").fill("200 W Washington St")
        page.get_by_label("City").fill("Phoenix")
        page.get_by_label("ZIP code").fill("85003")
        page.get_by_role("button", name="Request service").click()
        page.wait_for_url("**/thanks/**")
    made = Submission.objects.get()
    assert made.customer_name == "Dana Whitfield"
    page.goto(app_url + path_of(signed_links.status_url(made)))
    expect(page.get_by_role("heading").first).to_be_visible()


def test_member_confirms_their_phone_by_the_texted_code(app_url, organization, sign_in, device):
    width, scheme = device
    make.number(organization, sends_texts=True)
    person = make.dispatcher(organization, "Dana")
    page = sign_in(person, width=width, scheme=scheme, path="/notifications/choices/")
    page.get_by_label("Phone, for texts and calls").fill("602 555 0142")
    page.get_by_role("button", name="Save number").click()
    expect(page.get_by_text("We texted you a code.")).to_be_visible()
    expect(page.locator("#health")).to_contain_text("Confirm your phone to receive alerts")
    code = phone_confirmation.code_of(PhoneConfirmation.objects.select_related("user").get(), 1)
    field = page.get_by_label("6-digit code, valid for 10 minutes")
    field.fill("12345")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("Wrong code. 4 tries left.")
    field.fill(f"{code[:3]} {code[3:]}")
    page.get_by_role("button", name="Confirm phone").click()
    expect(page.get_by_text("Phone confirmed.")).to_be_visible()
    expect(page.locator("#health")).not_to_contain_text("Confirm your phone")


def test_enter_creates_a_schedule_and_does_not_change_its_kind(app_url: str, sign_in: Callable[..., Page]) -> None:
    organization = make.organization()
    page = sign_in(make.dispatcher(organization, "Dora"), path="/schedules/new/?kind=lead")
    page.get_by_label("Name", exact=True).fill("Ping the boiler")
    page.get_by_role("button", name="Call a URL").click()
    page.get_by_label("URL").fill("https://example.com/hook")
    expect(page.get_by_label("Name", exact=True)).to_have_value("Ping the boiler")
    page.get_by_label("Name", exact=True).press("Enter")
    expect(page.get_by_text("Schedule created.")).to_be_visible()
    assert Schedule.objects.get().kind == "http"
