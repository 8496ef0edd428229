"""One person's data: all of it is handed out, none of it is left, and history still reads."""

from __future__ import annotations

import io
import json
from datetime import time
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.core.serializers.json import DjangoJSONEncoder
from django.test import Client
from django.urls import reverse

from accounts import services
from accounts.models import IdentityProvider, SecurityMail, User
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject
from dispatch.jobs import timeline
from dispatch.jobs.models import Job, Offer, Submission
from dispatch.leads.models import Lead
from dispatch.outbox.models import Message
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, CallEvent, InboundCall, OptOut, Text
from notifications.models import Notification
from tests.accounts.second_factor import sign_in
from tests.api.client import Api
from tests.support import factories as make
from tests.support.tenants import Tenant, everything_of

pytestmark = pytest.mark.django_db

DANA, EMAIL, NAME = "+16025550123", "dana@example.com", "Dana Whitfield"
ANA = Actor("user", 1, "Ana")


@pytest.fixture
def ours(made: Tenant) -> Tenant:
    """Dana is a customer, was texted, called us, is a lead, and a message tells of her. All of it is over."""
    now, of = clock.now(), {"organization": made.organization}
    Submission.objects.filter(**of).update(
        customer_name=NAME, customer_phone=DANA, address="9 Elm Street", extra={"email": EMAIL}, form={"e": EMAIL}
    )
    Job.objects.filter(**of).update(
        customer_name=NAME, customer_phone=DANA, address="9 Elm Street", ended_at=now, status="cancelled",
        pending_reason="", waiting_for="",
    )  # fmt: skip
    Text.objects.filter(**of).update(to_phone=DANA, body=f"Dear {NAME}", ended_at=now)
    told = Text.objects.get(**of)
    told.pk, told.sid, told.purpose, told.subject_id = None, "SM-job", "job", made.row(Job).pk
    told.to_phone, told.body = made.row(Technician).phone, f"The job is yours. {NAME}, {DANA}, 9 Elm Street"
    told.save()
    InboundCall.objects.filter(**of).update(from_phone=DANA, ended_at=now)
    Call.objects.filter(**of).update(to_phone=DANA, ended_at=now, status="completed")
    CallEvent.objects.filter(**of).update(payload={"To": DANA})
    OptOut.objects.filter(**of).update(phone=DANA)
    Lead.objects.filter(**of).update(phone=DANA, status="finished", finished_at=now, outcome="answered")
    Message.objects.filter(**of).update(payload=json.dumps({"phone": DANA}), ended_at=now)
    Notification.objects.filter(**of).update(body=f"{NAME} · 9 Elm Street")
    job = made.row(Job)
    events.append(made.organization.pk, "submission.received", job.submission_id, customer=NAME, phone=DANA)
    events.append(made.organization.pk, "job.cancelled", job.pk, actor=ANA, reason=f"{NAME} called: it works")
    return made


def everything(of: Tenant) -> str:
    """All columns of all tables of the organization, and its log, as one text; without what opted out."""
    told = list(Event.objects.filter(organization_id=of.organization.pk).values("data", "actor_label"))
    rows = {name: value for name, value in everything_of(of).items() if "OptOut" not in name}
    return json.dumps([rows, told], cls=DjangoJSONEncoder)


def person(of: Tenant, **named: Any) -> DataSubject:
    return DataSubject(of.organization.pk, **named)


def test_the_export_has_all_that_is_kept_of_a_customer(ours):
    found = personal_data.export_person(person(ours, phone=DANA), actor=ANA)
    for table in (
        "submissions",
        "jobs",
        "calls",
        "provider_events",
        "texts",
        "inbound_calls",
        "leads",
        "messages",
    ):
        assert found[table], table
    assert "9 Elm Street" in json.dumps(found, cls=DjangoJSONEncoder)
    assert {row["kind"] for row in found["events"]} >= {"submission.received", "job.cancelled"}
    audit = Event.objects.get(kind="person.exported")
    assert audit.actor_label == "Ana"
    assert DANA not in json.dumps(audit.data), "whose data it was is what was to be kept quiet"


def test_nothing_is_left_and_the_history_still_reads(ours):
    assert all(word in everything(ours) for word in (DANA, NAME, "9 Elm Street", EMAIL))
    counts = personal_data.erase_person(person(ours, phone=DANA), actor=ANA)
    left = everything(ours)
    for word in (DANA, NAME, "Whitfield", "9 Elm Street", EMAIL):
        assert word not in left, word
    assert counts["jobs"] == 5, "the form, the job, its note, and what its technician was texted"
    job = ours.row(Job)
    job.refresh_from_db()
    assert (job.status, job.customer_name, str(job.customer_phone)) == ("cancelled", "erased", "")
    assert "Ana canceled the job: erased called: it works" in [one.text for one in timeline.load_timeline(job)]
    assert OptOut.objects.filter(phone=DANA).exists(), "they asked for it"
    assert Event.objects.get(kind="person.erased").data["counts"]["jobs"] == 5
    assert personal_data.erase_person(person(ours, phone=DANA), actor=ANA) == {}, "twice does nothing"


def test_pages_and_api_still_show_what_is_left(ours):
    personal_data.erase_person(person(ours, phone=DANA), actor=ANA)
    api = Api(user=ours.admin)
    for path in (f"jobs/{ours.row(Job).pk}/", "jobs/", "submissions/", "leads/"):
        assert api.get(path).status_code == 200, path
    browser = Client()
    ours.sign_in(browser, ours.admin)
    for model in (Job, Submission, Call, Text, Lead):
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        assert browser.get(reverse(f"{name}_changelist")).status_code == 200, name
        assert browser.get(reverse(f"{name}_change", args=[ours.row(model).pk])).status_code == 200, name


def test_customer_is_found_by_email(ours):
    assert personal_data.export_person(person(ours, email=EMAIL), actor=ANA)["submissions"]
    personal_data.erase_person(person(ours, email=EMAIL), actor=ANA)
    assert EMAIL not in everything(ours)
    assert Job.objects.of(ours.organization).get().customer_name == "erased"


@pytest.mark.parametrize(
    ("model", "change", "reason"),
    [
        (Job, {"ended_at": None, "status": "pending", "pending_reason": "exhausted"}, "is open"),
        (Lead, {"status": "backlog", "outcome": "", "finished_at": None}, "is waiting to be called"),
        (Call, {"ended_at": None, "status": "ringing"}, "is in progress"),
        (Message, {"ended_at": None}, "not delivered yet"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_open_work_prevents_erasure(ours, model, change, reason):
    model.objects.of(ours.organization).update(**change)
    before = everything(ours)
    with pytest.raises(personal_data.StillNeeded, match=reason):
        personal_data.erase_person(person(ours, phone=DANA), actor=ANA)
    assert everything(ours) == before


def test_a_technician_is_erased_and_their_jobs_remember_somebody(ours):
    technician = ours.row(Technician)
    offer = ours.row(Offer)
    Technician.objects.filter(pk=technician.pk).update(name="Zed Quill", phone="+16025550777", live_offer_id=None)
    events.append(
        ours.organization.pk, "offer.made", offer.pk, technician_id=technician.pk, technician="Zed Quill",
        job_id=offer.job_id,
    )  # fmt: skip
    who = person(ours, technician_id=technician.pk, phone="+16025550777")
    assert personal_data.export_person(who, actor=ANA)["technicians"][0]["name"] == "Zed Quill"
    personal_data.erase_person(who, actor=ANA)
    assert "Zed Quill" not in everything(ours)
    assert "+16025550777" not in everything(ours)
    row = Technician.objects.get(pk=technician.pk)
    assert (row.is_active, row.on_duty, row.name) == (False, False, f"Erased technician {row.pk}")
    assert "offered the job to erased (attempt None)" in [one.did for one in timeline.load_timeline(ours.row(Job))]


def test_working_hours_of_a_technician_are_erased(ours):
    technician = ours.row(Technician)
    Technician.objects.filter(pk=technician.pk).update(live_offer_id=None)
    technicians.set_shifts(technician, [(0, time(8), time(16, 30))])
    assert Technician.objects.get(pk=technician.pk).hours
    personal_data.erase_person(person(ours, technician_id=technician.pk), actor=ANA)
    row = Technician.objects.get(pk=technician.pk)
    assert (row.hours, row.shifts.count()) == (None, 0)


def test_technician_with_open_jobs_is_not_erased(ours):
    technician = ours.row(Technician)
    Technician.objects.filter(pk=technician.pk).update(open_jobs=1)
    with pytest.raises(personal_data.StillNeeded, match="open jobs"):
        personal_data.erase_person(person(ours, technician_id=technician.pk), actor=ANA)


def test_a_user_is_erased_and_can_sign_in_no_more(ours):
    user = ours.dispatcher
    User.objects.filter(pk=user.pk).update(name="Yara Voss", email="yara@example.com", phone="+16025550888")
    events.append(ours.organization.pk, "job.paused", ours.row(Job).pk, actor=Actor("user", user.pk, "Yara Voss"))
    who = person(ours, user_id=user.pk, email="yara@example.com", phone="+16025550888")
    found = personal_data.export_person(who, actor=ANA)
    assert found["users"][0]["email"] == "yara@example.com"
    assert "password" not in found["users"][0]
    personal_data.erase_person(who, actor=ANA)
    left = everything(ours)
    for word in ("Yara Voss", "yara@example.com", "+16025550888"):
        assert word not in left, word
    user.refresh_from_db()
    assert (user.is_active, user.has_usable_password(), user.email) == (
        False, False, f"erased-{user.pk}@invalid.invalid",
    )  # fmt: skip
    assert not Notification.objects.filter(user=user).exists()


def test_the_names_of_a_users_keys_are_erased_from_the_log(ours):
    user = ours.dispatcher
    User.objects.filter(pk=user.pk).update(email="yara@example.com")
    key, _ = services.create_api_key(
        ours.organization, "ERP of yara@example.com", ["read"], actor=ANA, created_by=user
    )
    acted = Actor("api_key", key.pk, key.name)
    events.append(ours.organization.pk, "job.paused", ours.row(Job).pk, actor=acted)
    personal_data.erase_person(person(ours, user_id=user.pk, email="yara@example.com"), actor=ANA)
    assert "yara@example.com" not in everything(ours)
    assert Event.objects.get(kind="api_key.revoked").data["name"] == "ERP of erased"


def test_the_sessions_of_an_erased_user_are_deleted(ours):
    user = ours.dispatcher
    browser = sign_in(user)
    stored = Session.objects.get(pk=browser.session.session_key)
    assert user.email not in json.dumps(stored.get_decoded())
    personal_data.erase_person(person(ours, user_id=user.pk, email=user.email), actor=ANA)
    assert not Session.objects.filter(pk=stored.pk).exists()
    assert not UserSession.objects.filter(user=user).exists()


def test_the_last_admin_stays(ours):
    with pytest.raises(personal_data.StillNeeded, match="last admin"):
        personal_data.erase_person(person(ours, user_id=ours.admin.pk), actor=ANA)


def test_a_member_of_two_organizations_is_not_erased_by_one_of_them(ours):
    make.organization().memberships.create(user=ours.dispatcher)
    with pytest.raises(personal_data.StillNeeded, match="other organizations"):
        personal_data.erase_person(person(ours, user_id=ours.dispatcher.pk), actor=ANA)


OWNED_BY_USERS = (("api_keys_made", "name"), ("single_sign_on", "uid"))


def test_export_of_a_shared_user_names_nothing_of_the_other_organization(ours):
    user, elsewhere = ours.dispatcher, make.organization()
    elsewhere.memberships.create(user=user)
    services.create_api_key(elsewhere, "Their ERP", ["read"], actor=ANA, created_by=user)
    services.create_api_key(ours.organization, "Our ERP", ["read"], actor=ANA, created_by=user)
    for organization, subject in ((elsewhere, "theirs"), (ours.organization, "ours")):
        provider, _ = IdentityProvider.objects.get_or_create(
            organization=organization, defaults={"issuer": "https://login.example.com", "client_id": "dispatch",
            "client_secret": "secret", "allowed_domains": ["example.com"]},
        )  # fmt: skip
        SocialAccount.objects.create(provider=provider.provider_id, uid=subject, user=user)
    found = personal_data.export_person(person(ours, user_id=user.pk), actor=ANA)
    keys, links = ([row[name] for row in found[table]] for table, name in OWNED_BY_USERS)
    assert ("Our ERP" in keys, "Their ERP" in keys) == (True, False)
    assert ("ours" in links, "theirs" in links) == (True, False)


ACCOUNT_TABLES = {"accesslog", "accessattempt", "sessions", "security_mails", "second_factors"}


def test_export_of_a_shared_user_leaves_out_where_they_sign_in(ours):
    """The sessions may be of their work for the other organization."""
    user = ours.dispatcher
    sign_in(user)
    sign_in(user, password="a guess")
    Authenticator.objects.create(user=user, type=Authenticator.Type.WEBAUTHN, data={})
    SecurityMail.objects.create(user=user, kind="webauthn_added")

    def exported(by: Any) -> dict[str, Any]:
        form = {"user": user.email, "what": "export"}
        answer = make.browser(by).post(reverse("personal_data"), form)
        found: dict[str, Any] = json.loads(answer.content)
        return found

    found = exported(ours.admin)
    assert (found.keys() >= ACCOUNT_TABLES, "left_out" in found) == (True, False)
    make.organization().memberships.create(user=user, is_active=False, joined_at=None)
    assert exported(ours.admin).keys() >= ACCOUNT_TABLES, "an invitation shares nothing"
    make.organization().memberships.create(user=user)
    found = exported(ours.admin)
    assert not found.keys() & ACCOUNT_TABLES
    assert found["left_out"][0]["user"] == user.pk
    assert "A superuser can export them." in found["left_out"][0]["reason"]
    assert {"users", "memberships"} <= found.keys()
    found = json.loads(run("export", "--organization", ours.organization.slug, "--user", user.email))
    assert (found.keys() >= ACCOUNT_TABLES, "left_out" in found) == (True, False)
    root = make.user("Root", is_superuser=True)
    ours.organization.memberships.create(user=root, role="admin")
    assert exported(root).keys() >= ACCOUNT_TABLES


def test_another_organization_s_rows_are_not_seen_and_not_touched(ours, theirs):
    other = theirs
    Submission.objects.filter(organization=other.organization).update(customer_phone=DANA, customer_name=NAME)
    before = everything(other)
    assert len(personal_data.export_person(person(ours, phone=DANA), actor=ANA)["submissions"]) == 1
    personal_data.erase_person(person(ours, phone=DANA), actor=ANA)
    assert everything(other) == before


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("personal_data", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_exports_and_erases(ours, tmp_path):
    given = ("--organization", "alphaville", "--phone", "(602) 555-0123")
    assert json.loads(run("export", *given))["jobs"][0]["customer_name"] == NAME
    run("export", *given, "--output", str(tmp_path / "dana.json"))
    assert NAME in (tmp_path / "dana.json").read_text()
    with pytest.raises(CommandError, match="--yes"):
        run("erase", *given)
    assert "jobs: 5" in run("erase", *given, "--yes")
    assert "Nothing found." in run("erase", *given, "--yes")
    assert Event.objects.filter(kind="person.erased").count() == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--organization", "nowhere", "--phone", DANA), "Unknown organization"),
        (("--organization", "alphaville"), "exactly one"),
        (("--organization", "alphaville", "--phone", DANA, "--email", EMAIL), "exactly one"),
        (("--organization", "alphaville", "--phone", "12"), "not a valid phone number"),
        (("--organization", "alphaville", "--phone", "banana"), "not a valid phone number"),
        (("--organization", "alphaville", "--technician", "9999"), "no technician"),
        (("--organization", "alphaville", "--user", "nobody@example.com"), "has no member"),
    ],
)
def test_command_reports_why_it_cannot_erase(ours, arguments, told):
    with pytest.raises(CommandError, match=told):
        run("export", *arguments)


def test_an_admin_exports_and_erases_in_the_browser(ours):
    browser, page = Client(), reverse("personal_data")
    ours.sign_in(browser, ours.admin)
    assert browser.get(page).status_code == 200
    download = browser.post(page, {"phone": DANA, "what": "export"})
    assert download["Content-Disposition"].startswith("attachment")
    assert download.json()["jobs"]
    refused = browser.post(page, {"phone": DANA, "what": "erase"}).content.decode()
    assert "Type erase to confirm." in refused
    assert NAME in everything(ours)
    done = browser.post(page, {"phone": DANA, "what": "erase", "confirmation": "erase"}).content.decode()
    assert "jobs: 5" in done
    assert NAME not in everything(ours)
    assert Event.objects.get(kind="person.erased").actor_label == "Alphaville admin"
    assert "exactly one" in browser.post(page, {"what": "export"}).content.decode()
    for phone in ("abc", "-", "12"):
        answer = browser.post(page, {"phone": phone, "what": "export"})
        assert "is not a valid phone number" in answer.content.decode()


def test_only_admins_can_open_the_page(ours):
    browser, page = Client(), reverse("personal_data")
    assert browser.get(page).status_code == 302
    ours.sign_in(browser, ours.dispatcher)
    assert browser.get(page).status_code == 403
    assert browser.post(page, {"phone": DANA, "what": "export"}).status_code == 403
