"""Manage members, roles, duty, and the organization itself, by API and admin."""

from __future__ import annotations

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.db import transaction
from django.urls import reverse

from accounts import services
from accounts.invitations import Invitation
from accounts.models import ApiKey, Membership, User
from accounts.tenancy import actor_of
from dispatch.core.api.problems import Conflict
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db

# What a browser sends of a dialog without fields.
SENT = {"_form_submitted": "True"}


@pytest.fixture
def organization():
    return make.organization("Ours")


@pytest.fixture
def admin(organization):
    return make.admin(organization, "Alice")


def test_going_on_duty_and_off(organization):
    person = make.dispatcher(organization, "Bob", on_duty=False)
    api = Api(user=person)
    on = api.post("duty/", {"on_duty": True}).json()
    assert on["on_duty"] is True
    assert on["duty_changed_at"]
    again = api.post("duty/", {"on_duty": True}).json()
    assert again == on, "the same again changes nothing"
    assert api.get("me/").json()["on_duty"] is True
    api.post("duty/", {"on_duty": False})
    kinds = list(Event.objects.filter(subject_type="membership").order_by("id").values_list("kind", "actor_label"))
    assert kinds == [("membership.on_duty", "Bob"), ("membership.off_duty", "Bob")]


def test_superuser_without_membership_has_no_duty(organization):
    root = make.user("Root", is_superuser=True)
    api = Api(user=root, organization=organization.slug)
    assert api.get("me/").json()["role"] == "admin"
    assert api.post("duty/", {"on_duty": True}).status_code == 422


def test_an_admin_adds_changes_and_removes_a_member(organization, admin):
    api = Api(user=admin)
    made = api.post("members/", {"email": "Carol@Example.com", "name": "Carol", "role": "dispatcher"})
    assert made.status_code == 201
    assert made.json()["user"]["email"] == "carol@example.com"
    assert "/join/" in made.json()["invitation_url"], "no mail server is set up"
    again = api.post("members/", {"email": "carol@example.com", "name": "Carol", "role": "admin"})
    assert (again.status_code, again.json()["type"]) == (409, "urn:dispatch:problem:already_a_member")
    path = f"members/{made.json()['id']}/"
    assert api.patch(path, {"role": "admin"}).json()["role"] == "admin"
    assert api.patch(path, {"role": "owner"}).status_code == 400
    assert api.delete(path).status_code == 204
    assert User.objects.filter(email="carol@example.com").exists(), "the person stays"
    kinds = list(Event.objects.filter(subject_type="membership").order_by("id").values_list("kind", flat=True))
    assert (kinds[0], kinds[-1]) == ("membership.added", "membership.removed")


@pytest.mark.parametrize("change", [{"role": "dispatcher"}, {"is_active": False}])
def test_the_last_admin_stays(organization, admin, change):
    own = f"members/{admin.memberships.get().pk}/"
    api = Api(user=admin)
    assert api.patch(own, change).json()["type"] == "urn:dispatch:problem:last_admin"
    assert api.delete(own).status_code == 422
    make.admin(organization)
    assert api.patch(own, change).status_code == 200


def test_deactivation_takes_the_member_off_duty(organization):
    membership = make.dispatcher(organization, on_duty=True).memberships.get()
    assert not services.change_member(membership.pk, actor=SYSTEM, is_active=False).on_duty


@pytest.mark.django_db(transaction=True)
def test_role_that_changes_while_the_person_joins_keeps_both(organization):
    membership, _ = services.add_member(
        organization, email="dana@example.com", name="Dana", role="dispatcher", actor=SYSTEM
    )
    with transaction.atomic():
        services.join_organization(Invitation(membership, mailed=False), name="Dana", phone="")
        changing = Elsewhere(lambda: services.change_member(membership.pk, actor=SYSTEM, role="admin"))
        changing.wait_for_lock()
    changing.finish()
    membership.refresh_from_db()
    assert (membership.role, membership.is_active, membership.joined_at is None) == ("admin", True, False)


@pytest.mark.django_db(transaction=True)
def test_duty_that_ends_while_the_role_changes_keeps_both(organization):
    dana = make.dispatcher(organization, on_duty=True).memberships.get()
    with transaction.atomic():
        services.set_duty(dana.pk, False, actor=SYSTEM)
        changing = Elsewhere(lambda: services.change_member(dana.pk, actor=SYSTEM, role="admin"))
        changing.wait_for_lock()
    changing.finish()
    dana.refresh_from_db()
    assert (dana.role, dana.on_duty) == ("admin", False)


def test_a_dispatcher_manages_nobody(organization, admin):
    api = Api(user=make.dispatcher(organization))
    assert api.get("members/").status_code == 200
    assert api.post("members/", {"email": "x@example.com", "name": "X", "role": "admin"}).status_code == 403
    assert api.patch(f"members/{admin.memberships.get().pk}/", {"role": "dispatcher"}).status_code == 403
    assert api.patch("organization/", {"name": "Mine"}).status_code == 403
    assert api.get("api-keys/").status_code == 403


def test_the_organization_is_changed_by_its_admin(organization, admin):
    api = Api(user=admin)
    changed = api.patch("organization/", {"time_zone": "America/Denver", "allowed_countries": ["US", "MX"]})
    assert changed.json()["time_zone"] == "America/Denver"
    assert api.patch("organization/", {"time_zone": "Mars/Base"}).status_code == 400
    assert api.patch("organization/", {"slug": "taken-over"}).json()["slug"] == organization.slug
    event = Event.objects.get(kind="organization.changed")
    assert event.data["changes"]["allowed_countries"] == ["US", "MX"]


def test_countries_are_known_to_the_phone_rules(organization, admin):
    api, address = Api(user=admin), reverse("admin:accounts_organization_change", args=[organization.pk])
    form = {
        "name": "Ours", "time_zone": organization.time_zone, "distance_unit": "mi", "language": "en",
        "voice": organization.voice, "default_region": "mx", "allowed_countries": "us, Ca,MX",
    }  # fmt: skip
    assert browser(admin).post(address, form).status_code == 302
    organization.refresh_from_db()
    assert (organization.default_region, organization.allowed_countries) == ("MX", ["US", "CA", "MX"])
    for unknown in ({"default_region": "ZZ"}, {"allowed_countries": "US,UK"}):
        page = browser(admin).post(address, {**form, **unknown})
        assert list(page.context["adminform"].form.errors) == list(unknown)
    for unknown in ({"default_region": "ZZ"}, {"allowed_countries": ["US", "UK"]}):
        refused = api.patch("organization/", unknown)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, next(iter(unknown)))
    organization.refresh_from_db()
    assert (organization.default_region, organization.allowed_countries) == ("MX", ["US", "CA", "MX"])


def test_countries_are_stored_once_and_a_long_list_is_refused(organization, admin):
    api, address = Api(user=admin), reverse("admin:accounts_organization_change", args=[organization.pk])
    form = {
        "name": "Ours", "time_zone": organization.time_zone, "distance_unit": "mi", "language": "en",
        "voice": organization.voice, "default_region": "US", "allowed_countries": ",".join(["US", "mx"] * 400),
    }  # fmt: skip
    assert browser(admin).post(address, form).status_code == 302
    organization.refresh_from_db()
    assert organization.allowed_countries == ["US", "MX"]
    page = browser(admin).post(address, {**form, "allowed_countries": ",".join(["US"] * 300_000)})
    assert page.context["adminform"].form.errors == {"allowed_countries": ["At most 1,000 values allowed."]}
    changed = api.patch("organization/", {"allowed_countries": ["CA"] * 1000})
    assert changed.json()["allowed_countries"] == ["CA"]
    assert api.patch("organization/", {"allowed_countries": ["CA"] * 1001}).status_code == 400


def test_a_conflict_is_raised_where_it_happens(organization, admin):
    with pytest.raises(Conflict):
        services.add_member(organization, email=admin.email, name="A", role="admin", actor=actor_of(admin))


# --- the admin -------------------------------------------------------------------------------------------------


def test_the_admin_shows_a_new_key_once(organization, admin):
    client = browser(admin)
    made = client.post(
        reverse("admin:accounts_apikey_add"),
        {
            "organization": organization.pk,
            "name": "Website",
            "scopes": ["read"],
            "expires_at_0": "",
            "expires_at_1": "",
        },
    )
    whole = re.search(r"dk_[a-z0-9]{8}_[\w-]{43}", made.content.decode())[0]
    assert "no-store" in made["Cache-Control"]
    assert Api(key=whole).get("me/").status_code == 200
    key = ApiKey.objects.get()
    for address in (
        reverse("admin:accounts_apikey_changelist"),
        reverse("admin:accounts_apikey_change", args=[key.pk]),
    ):
        shown = client.get(address).content.decode()
        assert whole not in shown
        assert key.prefix in shown
    assert LogEntry.objects.get().user == admin
    revoke = reverse("admin:accounts_apikey_revoke_this", args=[key.pk])
    assert client.get(revoke, headers={"HX-Request": "true"}).status_code == 200, "asks first"
    assert Api(key=whole).get("me/").status_code == 200
    assert client.post(revoke, SENT)["HX-Redirect"]
    assert Api(key=whole).get("me/").status_code == 401


def test_the_admin_revokes_many_keys(organization, admin):
    keys = [make.api_key(organization) for _ in range(2)]
    ids = [key.pk for key in ApiKey.objects.all()]
    browser(admin).post(
        reverse("admin:accounts_apikey_changelist"),
        {"action": "revoke", "confirmed": "1", "_selected_action": ids},
    )
    assert [Api(key=key).get("me/").status_code for key in keys] == [401, 401]


def test_the_admin_invites_with_a_link(organization, admin):
    made = browser(admin).post(
        reverse("admin:accounts_membership_add"),
        {
            "organization": organization.pk,
            "email": "Dora@example.com",
            "name": "Dora",
            "phone": "",
            "role": "dispatcher",
        },
    )
    assert "/join/" in made.content.decode()
    invited = Membership.objects.get(user__email="dora@example.com")
    assert invited.organization == organization
    page = browser(admin).get(reverse("admin:accounts_membership_change", args=[invited.pk])).content.decode()
    assert 'name="alert_order"' in page
    assert 'name="on_duty"' not in page, "they have not joined"


def test_page_from_before_a_change_overwrites_only_what_was_changed_on_it(organization, admin):
    dana = make.dispatcher(organization, "Dana", on_duty=False).memberships.get()
    address, client = reverse("admin:accounts_membership_change", args=[dana.pk]), browser(admin)
    shown = client.get(address).content.decode()
    seen = dict(re.findall(r'<input type="hidden" name="(initial-\w+)" value="(\w*)"', shown))
    services.set_duty(dana.pk, True, actor=SYSTEM)
    services.change_member(dana.pk, actor=SYSTEM, role="admin")
    fields = {"organization": organization.pk, "role": "dispatcher", "is_active": "on", "alert_order": 5}
    assert client.post(address, fields | seen).status_code == 302
    dana.refresh_from_db()
    assert (dana.role, dana.on_duty, dana.alert_order) == ("admin", True, 5)
    assert client.post(address, {**fields, **seen, "is_active": ""}).status_code == 302
    dana.refresh_from_db()
    assert (dana.is_active, dana.on_duty) == (False, False)
    assert client.post(address, {**fields, **seen, "is_active": "", "on_duty": "on"}).status_code == 302
    dana.refresh_from_db()
    assert not dana.on_duty, "they left meanwhile"


def test_admin_shows_that_the_last_admin_cannot_be_removed(organization, admin):
    own = admin.memberships.get()
    answer = browser(admin).post(
        reverse("admin:accounts_membership_change", args=[own.pk]),
        {"organization": organization.pk, "role": "dispatcher", "is_active": "on", "alert_order": 100},
        follow=True,
    )
    assert "last active admin" in answer.content.decode()
    own.refresh_from_db()
    assert own.role == "admin"


def test_admin_cannot_create_superusers_or_edit_shared_users(organization, admin):
    own = make.dispatcher(organization, "Own")
    shared = make.dispatcher(organization, "Shared")
    Membership.objects.create(organization=make.organization("Elsewhere Ltd"), user=shared, role="dispatcher")
    client = browser(admin)
    sent = {"name": "Renamed", "phone": "", "email": "taken@example.com", "is_superuser": "on", "is_active": ""}
    sent |= {"memberships-TOTAL_FORMS": "0", "memberships-INITIAL_FORMS": "0"}
    assert client.post(reverse("admin:accounts_user_change", args=[own.pk]), sent).status_code == 302
    own.refresh_from_db()
    assert (own.name, own.is_superuser, own.is_active) == ("Renamed", False, True)
    assert own.email != "taken@example.com"
    address = reverse("admin:accounts_user_change", args=[shared.pk])
    seen = client.get(address)
    assert seen.status_code == 200, "they may be seen"
    assert "Elsewhere" not in seen.content.decode(), "but not where else they belong"
    assert client.post(address, sent).status_code == 403
    link = "admin:accounts_user_new_password_link"
    assert client.post(reverse(link, args=[shared.pk]), SENT).status_code == 403
    assert "/set-password/" in client.post(reverse(link, args=[own.pk]), SENT).content.decode()
    assert client.get(reverse("admin:accounts_user_add")).status_code == 403


def test_an_admin_cannot_hand_out_a_superuser_s_account(organization, admin):
    root = make.user("Root", is_superuser=True)
    Membership.objects.create(organization=organization, user=root, role="dispatcher")
    link = reverse("admin:accounts_user_new_password_link", args=[root.pk])
    assert browser(admin).post(link, SENT).status_code == 403


def test_a_superuser_makes_users_and_organizations(organization):
    client = browser(make.user("Root", is_superuser=True))
    client.post(reverse("admin:accounts_user_add"), {"name": "New", "email": "New@x.com", "is_active": "on"})
    assert not User.objects.get(email="new@x.com").has_usable_password()
    made = client.post(
        reverse("admin:accounts_organization_add"),
        {
            "name": "Third", "slug": "third", "time_zone": "America/Denver", "default_region": "US",
            "distance_unit": "mi", "allowed_countries": "US", "is_active": "on",
            "language": "en", "voice": "Polly.Joanna-Neural",
        },
    )  # fmt: skip
    assert made.status_code == 302
