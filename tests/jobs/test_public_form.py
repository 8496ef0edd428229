"""The public form: one submission per form sent, machines kept out without losing a person, one tenant's only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import signed_links
from dispatch.jobs.models import Job, PublicForm, ServiceType, Submission
from dispatch.jobs.public import request_form
from dispatch.jobs.public.status import describe_status
from tests.support import factories

pytestmark = pytest.mark.django_db

GOOD = {
    "service": "drain",
    "urgency": "2",
    "name": "Dana Whitfield",
    "phone": "602-555-0177",
    "street": "200 W Washington St",
    "city": "Phoenix",
    "postcode": "85003",
    "notes": "Water under the sink.",
}


class Site:
    """An organization with a form, and a visitor's browser."""

    def __init__(self, slug: str = "desert-air") -> None:
        self.organization: Organization = factories.organization("Desert Air", slug=slug)
        self.service: ServiceType = factories.service_type(self.organization, "drain", name="Drain cleaning")
        self.form = PublicForm.objects.create(organization=self.organization)
        self.browser = Client(enforce_csrf_checks=True)
        self.address = f"/f/{slug}/"

    def open(self, address: str = "") -> Any:
        return self.browser.get(address or self.address)

    def ticket(self, address: str = "") -> str:
        """Of a form that was opened a while ago."""
        found: str = self.open(address).context["ticket"]
        clock.travel(10)
        return found

    def send(self, ticket: str = "", address: str = "", **changes: str) -> Any:
        data = {**GOOD, "ticket": ticket or self.ticket(address), "website": "", **changes}
        return self.browser.post(address or self.address, data)


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_form_becomes_a_submission_and_its_status_page_opens(site: Site) -> None:
    answer = site.send()
    assert answer.status_code == 303
    submission = Submission.objects.get()
    assert (submission.organization, submission.service_type) == (site.organization, site.service)
    assert str(submission.customer_phone) == "+16025550177"
    assert (submission.priority, submission.address) == (2, "200 W Washington St, Phoenix, 85003")
    assert submission.form["name"] == "Dana Whitfield"
    assert Event.objects.get(kind="submission.received").actor_label == "Public form"
    thanks = site.browser.get(answer["Location"])
    status = site.browser.get(thanks.context["status_url"])
    assert "We received your request" in status.content.decode()


def test_double_submission_is_one_and_a_changed_one_is_confirmed(site: Site) -> None:
    ticket = site.ticket()
    first, second = site.send(ticket), site.send(ticket)
    assert len({answer["Location"].partition("/thanks/")[2].partition("-")[0] for answer in (first, second)}) == 1
    again = site.send(ticket, notes="Something else.")
    assert again.status_code == 409
    assert "You already sent this form." in again.content.decode()
    assert Submission.objects.count() == 1
    clock.travel(10)
    assert site.send(again.context["ticket"], notes="Something else.").status_code == 303
    assert Submission.objects.count() == 2


def test_form_sent_again_is_accepted_although_its_service_is_off_by_now(site: Site) -> None:
    ticket = site.ticket()
    assert site.send(ticket).status_code == 303
    ServiceType.objects.update(is_active=False)
    assert site.send(ticket).status_code == 303
    assert site.send().status_code == 400
    assert Submission.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"phone": "12"}, "Enter a valid phone number, such as (201) 555-0123,"),
        ({"postcode": "99999"}, "Enter a valid ZIP code."),
        ({"postcode": "850"}, "Enter a valid ZIP code."),
        ({"postcode": "Phoenix"}, "Enter a valid ZIP code."),
        ({"postcode": "８５００３"}, "Enter a valid ZIP code."),
        ({"service": "nonsense"}, "Select a valid choice"),
        ({"name": ""}, "required"),
        ({"urgency": "7"}, "valid choice"),
        ({"notes": "x" * 2001}, "at most 2000"),
    ],
)
def test_form_errors_are_at_their_fields_and_input_is_kept(site: Site, changes: dict[str, str], said: str) -> None:
    answer = site.send(**changes)
    assert answer.status_code == 400
    page = answer.content.decode()
    assert said in page
    assert "200 W Washington St" in page
    assert not Submission.objects.exists()


def test_suspected_bots_can_resubmit_the_form(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    trapped = site.send(website="https://spam.example")
    assert trapped.status_code == 400
    assert "Please leave the “Website” field empty" in trapped.content.decode()

    monkeypatch.setattr(request_form, "MIN_FILL_TIME", timedelta(minutes=5))  # slow machines are quick, too
    ticket = site.open().context["ticket"]
    quick = site.send(ticket)
    assert "Please check your details and send again." in quick.content.decode()
    assert not Submission.objects.exists()
    clock.travel(301)
    assert site.send(quick.context["ticket"]).status_code == 303, "the person sends it once more"


def test_tickets_are_bound_to_an_organization_and_expire(site: Site) -> None:
    other = Site("silver-state")
    ticket = site.ticket()
    for wrong in ("", "1-2-3", other.ticket(), ticket[:-2] + "xx"):
        answer = site.send(wrong or " ")
        assert answer.status_code == 400
    clock.travel(25 * 3600)
    late = site.send(ticket)
    assert "This page expired. Please send the form again." in late.content.decode()
    clock.travel(5)
    assert site.send(late.context["ticket"]).status_code == 303
    assert not Submission.objects.of(other.organization).exists()


def test_too_many_from_one_address_or_for_one_organization_wait(site: Site, settings: Any) -> None:
    settings.PUBLIC_FORM_RATE = "2/hour"
    for _ in range(2):
        ticket = site.ticket()
        assert site.send(ticket).status_code == 303
    refused = site.send()
    assert refused.status_code == 429
    assert int(refused["Retry-After"]) > 0
    assert "200 W Washington St" in refused.content.decode()
    assert site.send(ticket).status_code == 303, "a repeat costs nothing"

    settings.PUBLIC_FORM_RATE = "100/hour"
    PublicForm.objects.update(per_hour=1)
    site.send()
    assert site.send().status_code == 429
    assert Submission.objects.count() <= 3


@pytest.mark.parametrize(
    ("addresses", "accepted"),
    [
        (["2001:db8:1:1::1", "2001:db8:1:1:ffff::2"], 1),
        (["2001:db8:1:10::1", "2001:db8:1:11::1", "2001:db8:1:12::1"], 2),
        ([f"2001:db8:1:{number:x}00::1" for number in range(6)], 4),
        ([f"203.0.113.{number}" for number in range(6)], 4),
        (["203.0.113.1", "198.51.100.1", "2001:db8:1::1", "2001:db8:2::1"], 4),
        (["::ffff:203.0.113.1", "::ffff:198.51.100.1", "::ffff:198.51.101.1", "203.0.113.1"], 3),
    ],
    ids=["/64", "/56", "/48", "IPv4 /24", "strangers", "mapped IPv4"],
)
def test_addresses_of_one_network_share_a_limit(
    site: Site, settings: Any, addresses: list[str], accepted: int
) -> None:
    settings.PUBLIC_FORM_RATE = "1/hour"
    sent = []
    for address in addresses:
        site.browser.defaults["REMOTE_ADDR"] = address
        sent.append(site.send().status_code)
    assert sent == [303] * accepted + [429] * (len(addresses) - accepted)


def test_only_the_fields_of_the_form_are_stored(site: Site) -> None:
    assert site.send(padding="x" * 100_000, email="eve@example.com").status_code == 303
    assert set(Submission.objects.get().form) == set(GOOD)


@pytest.mark.parametrize("field", ["service", "name", "notes", "street", "urgency"])
def test_character_that_cannot_be_stored_is_a_bad_request(site: Site, field: str) -> None:
    site.browser.raise_request_exception = False
    assert site.send(**{field: "drain\0"}).status_code == 400
    assert not Submission.objects.exists()


def test_disabled_form_is_404(site: Site) -> None:
    PublicForm.objects.update(is_on=False)
    for address in ("/f/desert-air/", "/f/desert-air/embed/", "/f/nobody/", "/f/silver-state/"):
        assert site.open(address).status_code == 404
    assert site.browser.post(site.address, GOOD).status_code == 404


def test_a_service_is_chosen_by_the_address_and_urgency_can_be_left_out(site: Site) -> None:
    assert 'value="drain" selected' in site.open(f"{site.address}?service=drain").content.decode()
    assert "selected" not in site.open(f"{site.address}?service=%3Cscript%3E").content.decode().replace(
        '<option value="" selected>', ""
    )
    PublicForm.objects.update(asks_urgency=False)
    assert "How urgent" not in site.open().content.decode()
    assert site.send(urgency="1").status_code == 303
    assert Submission.objects.get().priority == 3


def test_only_the_embedded_pages_may_be_framed_and_by_whom_the_admin_says(site: Site) -> None:
    plain = site.open()
    assert plain["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in plain["Content-Security-Policy"]
    embedded = site.open(f"{site.address}embed/")
    assert "X-Frame-Options" not in embedded
    assert embedded["Content-Security-Policy"].endswith("frame-ancestors *")

    PublicForm.objects.update(embed_origins="https://www.example.com\nhttps://shop.example.com:8443\n")
    framed = site.open(f"{site.address}embed/")
    assert framed["Content-Security-Policy"].endswith(
        "frame-ancestors https://www.example.com https://shop.example.com:8443"
    )
    sent = site.send(address=f"{site.address}embed/")
    thanks = site.browser.get(sent["Location"])
    assert "X-Frame-Options" not in thanks
    assert 'target="_blank"' in thanks.content.decode()
    status = site.browser.get(thanks.context["status_url"])
    assert status["X-Frame-Options"] == "DENY"


def test_admin_shows_the_snippet_and_validates_sites(site: Site) -> None:
    boss = Client()
    boss.force_login(factories.admin(site.organization), backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("admin:jobs_publicform_change", args=[site.form.pk])
    page = boss.get(address).content.decode()
    assert "/f/desert-air/embed/" in page
    data = {"organization": site.organization.pk, "per_hour": 60, "is_on": "on", "embed_origins": "example.com; *"}
    assert "an origin such as https://www.example.com." in boss.post(address, data).content.decode()
    assert boss.post(address, {**data, "embed_origins": "https://example.com"}).status_code == 302
    assert Event.objects.filter(kind="public_form.changed").count() == 1


def test_the_status_of_another_organization_is_not_thanked_for_here(site: Site) -> None:
    other = Site("silver-state")
    answer = other.send()
    token = answer["Location"].rstrip("/").rsplit("/", 1)[-1]
    assert site.open(f"/f/desert-air/thanks/{token}/").status_code == 404
    assert site.open("/s/1-2.nonsense/").status_code == 404


def test_the_status_in_the_customers_words(site: Site) -> None:
    site.send()
    submission = Submission.objects.get()
    unit = factories.technician(site.organization, "Unit 12")
    job = Job.objects.create(
        organization=site.organization,
        submission=submission,
        service_type=site.service,
        customer_name="Dana",
        customer_phone=submission.customer_phone,
        next_action_at=clock.now(),
    )
    path = signed_links.status_path(submission.pk)

    def page(**fields: Any) -> str:
        Job.objects.filter(pk=job.pk).update(**fields)
        return site.browser.get(path).content.decode()

    assert "We are calling technicians" in page()
    assert "check for updates" in page()
    pending = page(status="pending", pending_reason="exhausted", next_action_at=None)
    assert "A dispatcher is handling your request" in pending
    assert "Unit 12 is coming" in page(status="assigned", pending_reason="", technician=unit)
    assert "Unit 12 is on the way" in page(on_the_way_at=clock.now())
    done = page(status="completed")
    assert "The work is done" in done
    assert "check for updates" not in done
    assert "was canceled" in page(status="cancelled")
    assert "6025550177" not in done, "the link reveals only what the customer entered"
    assert describe_status(Submission.objects.get()).final
    assert site.browser.post(path).status_code == 400
