"""Changes of single sign-on at the same time as other changes: none undoes or contradicts another."""

from __future__ import annotations

import pytest
from django.db import transaction

from accounts import services
from accounts.models import IdentityProvider, Organization, User
from accounts.sso import services as sso
from accounts.sso.admission import admit_identity
from dispatch.core import clock
from dispatch.core.api.problems import Conflict, Unprocessable
from dispatch.core.events import SYSTEM
from tests.core.threads import Elsewhere
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def organization() -> Organization:
    return make.organization("Acme")


@pytest.fixture
def owner(organization: Organization) -> User:
    """An Admin besides another one, so that they may leave."""
    make.admin(organization)
    return make.admin(organization, "Olga")


@pytest.fixture
def provider(organization: Organization) -> IdentityProvider:
    return IdentityProvider.objects.create(
        organization=organization, issuer="https://login.acme.example", client_id="dispatch", client_secret="s",
        allowed_domains=["acme.example"], tried_at=clock.now(),
    )  # fmt: skip


def stored() -> IdentityProvider:
    return IdentityProvider.objects.get()


def test_two_admins_change_different_fields_at_the_same_time(provider: IdentityProvider) -> None:
    first, second = stored(), stored()
    first.is_active = False
    sso.save_provider(first, ["is_active"], actor=SYSTEM)
    second.second_factor = "always"
    sso.save_provider(second, ["second_factor"], actor=SYSTEM)
    assert (stored().is_active, stored().second_factor) == (False, "always")


def test_change_keeps_a_trial_that_ended_meanwhile(provider: IdentityProvider) -> None:
    IdentityProvider.objects.update(tried_at=None)
    stale = stored()
    sso.record_trial(stored(), actor=SYSTEM)
    stale.second_factor = "always"
    sso.save_provider(stale, ["second_factor"], actor=SYSTEM)
    assert stored().tried_at is not None


def test_change_of_a_removed_configuration_is_refused(provider: IdentityProvider) -> None:
    stale = stored()
    sso.delete_provider(provider, actor=SYSTEM)
    with pytest.raises(Conflict):
        sso.save_provider(stale, ["is_active"], actor=SYSTEM)
    assert not IdentityProvider.objects.exists()


def test_role_that_changes_while_the_person_joins_keeps_both(provider: IdentityProvider) -> None:
    IdentityProvider.objects.update(verified_domains=["acme.example"])
    claims = {"sub": "dana", "email": "dana@acme.example", "email_verified": True, "name": "Dana"}
    invited, _ = services.add_member(
        provider.organization, email="dana@acme.example", name="Dana", role="dispatcher", actor=SYSTEM
    )
    with transaction.atomic():
        services.change_member(invited.pk, actor=SYSTEM, role="admin")
        joining = Elsewhere(lambda: admit_identity(stored(), claims))
        joining.wait_for_lock()
    joining.finish()
    invited.refresh_from_db()
    assert (invited.role, invited.is_active, invited.joined_at is None) == ("admin", True, False)


def test_owner_who_is_being_removed_cannot_become_break_glass(provider: IdentityProvider, owner: User) -> None:
    chosen = stored()
    chosen.break_glass, chosen.is_required = owner, True
    choose = lambda: sso.save_provider(chosen, ["break_glass", "is_required"], actor=SYSTEM)  # noqa: E731
    with transaction.atomic():
        services.remove_member(owner.memberships.get().pk, actor=SYSTEM)
        choosing = Elsewhere(choose)
        choosing.wait_for_lock()
    with pytest.raises(Unprocessable, match="active Admin"):
        choosing.finish()
    assert (stored().break_glass_id, stored().is_required) == (None, False)


def test_break_glass_owner_who_was_just_chosen_cannot_be_removed(provider: IdentityProvider, owner: User) -> None:
    chosen, membership_id = stored(), owner.memberships.get().pk
    chosen.break_glass, chosen.is_required = owner, True
    with transaction.atomic():
        sso.save_provider(chosen, ["break_glass", "is_required"], actor=SYSTEM)
        removing = Elsewhere(lambda: services.remove_member(membership_id, actor=SYSTEM))
        removing.wait_for_lock()
    with pytest.raises(services.BreakGlassOwner):
        removing.finish()
    assert owner.memberships.filter(is_active=True).exists()
