"""Memberships that end while they are changed, and invitations that end while they are accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction
from django.test import Client
from django.urls import reverse

from accounts import invitations, services
from accounts.invitations import Invitation
from accounts.models import Membership, Organization, User
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject
from tests.accounts.test_invitations import CHOSEN, choose_password
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)

EMAIL = "dana@example.com"


@pytest.fixture
def organization() -> Organization:
    return make.organization("Ours")


@pytest.fixture
def invited(organization: Organization, settings: Any) -> Membership:
    """An open invitation, whose link an Admin passes on."""
    settings.EMAIL_URL = ""
    return services.add_member(organization, email=EMAIL, name="Dana", role="dispatcher", actor=SYSTEM)[0]


def link_of(membership: Membership) -> str:
    link = invitations.send_invitation(membership).link
    assert link
    return link.removeprefix(settings.PUBLIC_BASE_URL)


def answer_after(change: Callable[[], object], request: Callable[[], Any]) -> Any:
    """Begin the request, which must wait for the change, and return its response after the commit."""
    answers: list[Any] = []
    with transaction.atomic():
        change()
        requesting = Elsewhere(lambda: answers.append(request()))
        requesting.wait_for_lock()
    requesting.finish()
    return answers[0]


def join(membership: Membership) -> None:
    """Accept the invitation with the password "the first password"."""
    services.join_organization(
        Invitation(membership, mailed=False), name="Dana", phone="", password="the first password"
    )


def test_invitation_that_is_withdrawn_while_it_is_accepted_is_no_longer_valid(invited: Membership) -> None:
    link = link_of(invited)
    answer = answer_after(
        lambda: services.remove_member(invited.pk, actor=SYSTEM), lambda: choose_password(link, phone="")
    )
    assert (answer.status_code, answer.url) == (302, link)
    assert "This invitation is no longer valid" in Client().get(link).content.decode()
    assert not User.objects.get(email=EMAIL).has_usable_password()


def test_link_that_is_opened_twice_at_the_same_time_sets_one_password(invited: Membership) -> None:
    link = link_of(invited)
    answer = answer_after(lambda: join(invited), lambda: choose_password(link, phone=""))
    assert (answer.status_code, answer.url) == (302, link)
    assert User.objects.get(email=EMAIL).check_password("the first password")


def test_second_invitation_sets_no_password_of_an_account_that_just_joined(invited: Membership) -> None:
    theirs, _ = services.add_member(
        make.organization("Theirs"), email=EMAIL, name="D", role="dispatcher", actor=SYSTEM
    )
    link = link_of(theirs)
    answer = answer_after(lambda: join(invited), lambda: choose_password(link, phone=""))
    assert (answer.status_code, answer.url) == (302, link)
    assert "/login/" in Client().get(link)["Location"], "the owner must sign in to join"
    person = User.objects.get(email=EMAIL)
    assert (person.check_password("the first password"), person.check_password(CHOSEN)) == (True, False)
    assert [each.organization.name for each in person.memberships.filter(is_active=True)] == ["Ours"]


def test_link_to_the_former_address_sets_no_password_while_the_address_is_corrected(invited: Membership) -> None:
    link = link_of(invited)
    correct = lambda: User.objects.filter(email=EMAIL).update(email="dana@example.org")  # noqa: E731
    answer = answer_after(correct, lambda: choose_password(link, phone=""))
    assert (answer.status_code, answer.url) == (302, link)
    assert "This invitation is no longer valid" in Client().get(link).content.decode()
    person = User.objects.get(email="dana@example.org")
    assert (person.has_usable_password(), person.email_confirmed_at) == (False, None)
    assert not person.joined_memberships.exists()


def accept_while(invited: Membership, action: Callable[[], object]) -> Elsewhere:
    """Begin the action while the person accepts the invitation, and return it after they have joined."""
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=invited.user_id)  # the first step of accepting
        acting = Elsewhere(action)
        acting.wait_for_lock()
        services.join_organization(Invitation(invited, mailed=False), name="Dana", phone="")
    return acting


def test_deletion_of_a_user_waits_for_the_invitation_that_they_accept(invited: Membership) -> None:
    deleting = accept_while(invited, lambda: services.delete_user(invited.user, actor=SYSTEM))
    deleting.finish()
    assert not User.objects.filter(email=EMAIL).exists()
    events = Event.objects.filter(subject_id=invited.pk, kind__startswith="membership.").order_by("pk")
    kinds = [event.kind.removeprefix("membership.") for event in events]
    assert kinds == ["added", "joined", "changed", "removed"]


def test_member_who_joins_another_organization_meanwhile_is_not_erased(invited: Membership) -> None:
    ours = make.organization("Their first")
    Membership.objects.create(organization=ours, user=invited.user, role="dispatcher", joined_at=clock.now())
    person = DataSubject(ours.pk, user_id=invited.user_id)
    erasing = accept_while(invited, lambda: personal_data.erase_person(person, actor=SYSTEM))
    with pytest.raises(personal_data.StillNeeded, match="member of other organizations"):
        erasing.finish()
    assert User.objects.get(email=EMAIL).active_memberships, "nothing was changed"
    invited.refresh_from_db()
    assert invited.is_active


@pytest.mark.parametrize("what", ["role", "removal", "duty"])
def test_change_of_a_member_who_was_just_removed_is_a_conflict(organization: Organization, what: str) -> None:
    boss, dana = make.admin(organization), make.dispatcher(organization)
    member = dana.memberships.get()
    requests: dict[str, Callable[[], Any]] = {
        "role": lambda: Api(user=boss).patch(f"members/{member.pk}/", {"role": "admin"}),
        "removal": lambda: Api(user=boss).delete(f"members/{member.pk}/"),
        "duty": lambda: Api(user=dana).post("duty/", {"on_duty": True}),
    }
    answer = answer_after(lambda: services.remove_member(member.pk, actor=SYSTEM), requests[what])
    assert (answer.status_code, answer.json()["detail"]) == (409, "This person was removed meanwhile.")


def test_admin_page_says_that_a_member_was_just_removed(organization: Organization) -> None:
    boss, member = make.admin(organization), make.dispatcher(organization).memberships.get()
    page = make.browser(boss)
    form = {"organization": organization.pk, "role": "admin", "is_active": "on", "alert_order": 100}
    url = reverse("admin:accounts_membership_change", args=[member.pk])
    answer_after(lambda: services.remove_member(member.pk, actor=SYSTEM), lambda: page.post(url, form))
    assert "This person was removed meanwhile." in page.get(reverse("admin:index")).content.decode()
