"""Of a person who was invited and has not joined, an organization has the invitation only, not the account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from accounts import services
from accounts.invitations import Invitation
from accounts.models import Membership, Organization, User
from dispatch.console.privacy import lookup
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event, ReplayEntry
from dispatch.core.privacy import personal_data, replay
from dispatch.core.privacy.personal_data import DataSubject
from dispatch.jobs.models import Job, Submission
from tests.harness.jobs import started_job
from tests.personal.search import places_of
from tests.support import factories as make

pytestmark = pytest.mark.django_db
EMAIL, OWN_PHONE, INVITED_PHONE = "olga@theirs.example", "+16025550142", "+16025550199"
ERASE = {"user": EMAIL, "what": "erase", "confirmation": "erase"}


@pytest.fixture
def organization() -> Organization:
    return make.organization("Ours", slug="ours")


@pytest.fixture
def page(organization: Organization) -> Any:
    """The browser of an Admin, with which `page(form)` opens the page of personal data."""
    browser = make.browser(make.admin(organization, "Grace"))
    return lambda form: browser.post(reverse("personal_data"), form)


@pytest.fixture
def olga() -> User:
    """A member of another organization, who has signed in there."""
    user = make.dispatcher(make.organization("Theirs"), "Olga Petrova")
    User.objects.filter(pk=user.pk).update(email=EMAIL, phone=OWN_PHONE)
    make.browser(User.objects.get(pk=user.pk))
    return User.objects.get(pk=user.pk)


def invite(organization: Organization) -> Membership:
    membership, _ = services.add_member(
        organization, email=EMAIL, name="Ola Petrowa", role="dispatcher", phone=INVITED_PHONE, actor=SYSTEM
    )
    return membership


def test_export_of_an_invited_person_has_only_the_invitation(organization, page, olga):
    membership = invite(organization)
    found = page({"user": EMAIL, "what": "export"}).json()
    assert found.pop("invitations") == [
        {
            "id": membership.pk, "role": "dispatcher", "invited_name": "Ola Petrowa",
            "invited_phone": INVITED_PHONE, "email": EMAIL,
        }
    ]  # fmt: skip
    assert {event["kind"] for event in found.pop("events")} == {"membership.added"}
    assert not any(found.values()), "nothing of the account"
    shown = json.dumps(Event.objects.get(kind="person.exported").data)
    assert EMAIL not in shown


def test_invitation_elsewhere_prevents_no_erasing_of_a_member_and_is_withdrawn(organization, page, olga):
    theirs = olga.memberships.get().organization
    membership = invite(organization)
    shown = make.browser(make.admin(theirs)).post(reverse("personal_data"), ERASE, follow=True).content.decode()
    assert "other organizations" not in shown
    olga.refresh_from_db()
    assert (olga.is_active, olga.email) == (False, f"erased-{olga.pk}@invalid.invalid")
    assert list(olga.memberships.values_list("organization", flat=True)) == [theirs.pk]
    removed = Event.objects.get(organization_id=organization.pk, kind="membership.removed")
    assert (removed.subject_id, removed.actor_type) == (membership.pk, SYSTEM.type)
    assert "user_id" not in removed.data


def test_membership_elsewhere_prevents_erasing(organization, olga):
    Membership.objects.create(organization=organization, user=olga, role="dispatcher")
    with pytest.raises(personal_data.StillNeeded, match="member of other organizations"):
        personal_data.erase_person(DataSubject(organization.pk, user_id=olga.pk), actor=SYSTEM)


def test_erasing_an_invited_person_withdraws_the_invitation(organization, page, olga):
    invite(organization)
    assert "memberships" not in page(ERASE).content.decode()
    assert not Membership.objects.of(organization).filter(user=olga).exists()
    assert Event.objects.filter(organization_id=organization.pk, kind="membership.removed").exists()
    before = (olga.email, olga.name, olga.password, olga.is_active, str(olga.phone))
    olga.refresh_from_db()
    assert (olga.email, olga.name, olga.password, olga.is_active, str(olga.phone)) == before
    assert olga.active_memberships
    assert not places_of(["Petrowa", INVITED_PHONE])


def test_customer_with_the_phone_that_the_inviter_typed_stays(organization, page, olga):
    job = started_job(organization, make.service_type(organization))
    submission = Submission.objects.filter(pk=job.submission_id)
    for rows in (Job.objects.filter(pk=job.pk), submission):
        rows.update(customer_name="Carl Customer", customer_phone=INVITED_PHONE)
    invite(organization)
    found = page({"user": EMAIL, "what": "export"}).json()
    assert not found.keys() & {"jobs", "submissions"}
    page(ERASE)  # also while the job is open
    assert not Membership.objects.of(organization).filter(user=olga).exists()
    for row in (Job.objects.get(pk=job.pk), submission.get()):
        assert (row.customer_name, str(row.customer_phone)) == ("Carl Customer", INVITED_PHONE)


def test_account_that_was_made_by_the_invitation_is_deleted(organization, page):
    invite(organization)
    page(ERASE)
    assert not User.objects.filter(email=EMAIL).exists()
    assert not places_of([EMAIL, INVITED_PHONE])


def test_account_without_another_membership_is_kept(organization, page, olga):
    """It was used before: its owner may be invited again."""
    olga.memberships.all().delete()
    invite(organization)
    page(ERASE)
    olga.refresh_from_db()
    assert (olga.email, olga.name, olga.is_active) == (EMAIL, "Olga Petrova", True)


def test_a_person_who_joins_before_the_erasure_stays_a_member(organization, olga):
    membership = invite(organization)
    person = lookup.find_person(organization, user=EMAIL)
    services.join_organization(Invitation(membership, mailed=False), name="Olga Petrova", phone=OWN_PHONE)
    personal_data.erase_person(person, actor=SYSTEM)
    assert Membership.objects.of(organization).get(user=olga).is_active


def test_withdrawn_invitation_stays_withdrawn_after_a_restore(organization, page, olga, tmp_path: Path):
    membership = invite(organization)
    dumped = Membership.objects.get(pk=membership.pk)
    clock.travel(60)
    page(ERASE)
    replay.write_list(tmp_path / "replay.jsonl")
    assert EMAIL not in (tmp_path / "replay.jsonl").read_text()
    ReplayEntry.objects.all().delete()
    Membership.objects.bulk_create([dumped])
    call_command("replay_after_restore", str(tmp_path / "replay.jsonl"))
    assert not Membership.objects.filter(pk=membership.pk).exists()
    olga.refresh_from_db()
    assert (olga.email, olga.is_active) == (EMAIL, True)


def test_replayed_erasure_leaves_the_account_of_an_invited_person(organization, olga, tmp_path: Path):
    """A list from before the person left: the restored database has only their new invitation."""
    invite(organization)
    olga.memberships.exclude(organization=organization).delete()
    clock.travel(60)
    replay.record(organization.pk, replay.USER_ERASURE, subject_id=olga.pk)
    replay.write_list(tmp_path / "replay.jsonl")
    ReplayEntry.objects.all().delete()
    call_command("replay_after_restore", str(tmp_path / "replay.jsonl"))
    olga.refresh_from_db()
    assert (olga.email, olga.is_active) == (EMAIL, True)
