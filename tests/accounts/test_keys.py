"""API keys are shown once, stored hashed, scoped, revocable, and record their last use."""

from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from django.urls import reverse

from accounts import services
from accounts.auth import api_keys
from accounts.models import ApiKey, IdentityProvider, User
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from tests.api.client import Api
from tests.support import factories as make

pytestmark = pytest.mark.django_db


def test_a_key_is_shown_once_and_only_its_hash_is_kept():
    organization = make.organization()
    api = Api(user=make.admin(organization))
    made = api.post("api-keys/", {"name": "Website", "scopes": ["submissions:write", "read"]})
    assert made["Cache-Control"] == "no-store"
    assert made.status_code == 201
    whole = made.json()["key"]
    assert whole.startswith(f"dk_{made.json()['prefix']}_")
    row = ApiKey.objects.get(pk=made.json()["id"])
    assert whole.split("_", 2)[2] not in str(vars(row))
    assert len(row.secret_hash) == 64
    listed = api.get("api-keys/").json()["results"][0]
    assert "key" not in listed
    assert "secret_hash" not in listed
    assert Api(key=whole).get("me/").json()["api_key"]["name"] == "Website"
    assert Event.objects.filter(
        kind="api_key.created", subject_id=row.pk, actor_label=row.created_by.name
    ).exists()


@pytest.mark.parametrize("scopes", [["submissions:write"], ["manage", "jobs:write"], ["read"], list(ApiKey.Scope)])
def test_only_a_key_that_may_read_members_reads_who_created_it(scopes: list[str]) -> None:
    organization = make.organization()
    boss = make.admin(organization, "Boss")
    User.objects.filter(pk=boss.pk).update(phone="+16025550123")
    whole = Api(user=boss).post("api-keys/", {"name": "Website", "scopes": scopes}).json()["key"]
    answer = Api(key=whole).get("me/")
    creator = answer.json()["api_key"]["created_by"]
    if "read" in scopes:
        assert creator == {"id": boss.pk, "name": "Boss", "email": boss.email, "phone": "+16025550123"}
        assert Api(key=whole).get("members/").status_code == 200
    else:
        assert creator is None
        assert not any(each in answer.content.decode() for each in ("Boss", boss.email, "+16025550123"))
        assert Api(key=whole).get("members/").status_code == 403


@pytest.mark.parametrize("scopes", [["submissions:write"], ["manage", "jobs:write"], ["read"], list(ApiKey.Scope)])
def test_key_that_may_not_read_learns_only_which_organization_it_has(scopes: list[str]) -> None:
    organization = make.organization()
    api = Api(key=make.api_key(organization, *scopes))
    shown = api.get("me/").json()["organization"]
    if "read" in scopes:
        assert shown == api.get("organization/").json()
        assert shown["time_zone"] == organization.time_zone
    else:
        known = {name: value for name, value in shown.items() if value is not None}
        assert known == {"id": organization.pk, "name": organization.name, "slug": organization.slug}
        assert api.get("organization/").status_code == 403


@pytest.mark.parametrize(
    "spoil", [lambda k: k[:-1] + ("A" if k[-1] != "A" else "B"), lambda k: k + "x", lambda k: k[3:]]
)
def test_key_with_any_difference_is_unknown(spoil):
    whole = make.api_key(make.organization())
    answer = Api(key=spoil(whole)).get("me/")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer.json()["status"] == 401


def test_a_revoked_key_stops_at_once():
    organization = make.organization()
    whole = make.api_key(organization)
    api = Api(key=whole)
    assert api.get("me/").status_code == 200
    admin = Api(user=make.admin(organization))
    row = ApiKey.objects.get()
    assert admin.post(f"api-keys/{row.pk}/revoke/").json()["revoked_at"]
    assert api.get("me/").status_code == 401
    first = ApiKey.objects.get().revoked_at
    assert admin.post(f"api-keys/{row.pk}/revoke/").status_code == 200
    assert ApiKey.objects.get().revoked_at == first
    assert Event.objects.filter(kind="api_key.revoked").count() == 1


def test_an_expired_key_is_refused():
    organization = make.organization()
    whole = make.api_key(organization, expires_at=clock.now() + timedelta(hours=1))
    assert Api(key=whole).get("me/").status_code == 200
    clock.travel(3601)
    answer = Api(key=whole).get("me/")
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


def test_key_of_an_inactive_organization_is_rejected():
    organization = make.organization()
    whole = make.api_key(organization)
    organization.is_active = False
    organization.save()
    assert Api(key=whole).get("me/").status_code == 403


def test_last_used_moves_at_most_once_a_minute(django_assert_num_queries):
    whole = make.api_key(make.organization())
    api = Api(key=whole)
    api.get("me/")
    first = ApiKey.objects.get().last_used_at
    assert first is not None
    clock.travel(30)
    api.get("me/")
    assert ApiKey.objects.get().last_used_at == first
    clock.travel(31)
    api.get("me/")
    assert ApiKey.objects.get().last_used_at > first


@pytest.mark.parametrize(
    ("scopes", "path", "status"),
    [
        (["read"], "organization/", 200),
        (["submissions:write"], "organization/", 403),
        (["read"], "members/", 200),
        (["manage", "read", "jobs:write", "submissions:write"], "api-keys/", 403),
        (["manage"], "duty/", 403),
        (["read"], "notifications/", 403),
    ],
)
def test_scopes_limit_what_a_key_may_do(scopes, path, status):
    whole = make.api_key(make.organization(), *scopes)
    assert Api(key=whole).get(path).status_code == status


def test_a_key_cannot_be_made_without_or_with_unknown_scopes():
    api = Api(user=make.admin(make.organization()))
    for scopes in ([], ["everything"]):
        answer = api.post("api-keys/", {"name": "X", "scopes": scopes})
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["field"].startswith("scopes")


def test_keys_are_random_and_well_formed():
    made = {api_keys.generate_key()[1] for _ in range(50)}
    assert len(made) == 50
    key, whole = services.create_api_key(make.organization(), "K", ["read"], actor=SYSTEM)
    assert api_keys.authenticate_key(whole) == key


def test_a_key_expires_after_a_year_unless_its_creator_says_otherwise(settings, client):
    organization = make.organization()
    admin = make.admin(organization)
    api = Api(user=admin)
    whole = api.post("api-keys/", {"name": "Website", "scopes": ["read"]}).json()["key"]
    forever = api.post("api-keys/", {"name": "Archive", "scopes": ["read"], "expires_at": None}).json()
    assert forever["expires_at"] is None
    client.force_login(admin)
    in_a_year = (clock.now() + timedelta(days=365)).astimezone(ZoneInfo(organization.time_zone))
    assert f'value="{in_a_year:%Y-%m-%d}"' in client.get("/admin/accounts/apikey/add/").content.decode()
    clock.travel(364 * 86400)
    assert Api(key=whole).get("me/").status_code == 200
    clock.travel(2 * 86400)
    assert Api(key=whole).get("me/").status_code == 401
    assert Api(key=forever["key"]).get("me/").status_code == 200
    settings.API_KEY_DAYS = 0
    assert api.post("api-keys/", {"name": "No limit", "scopes": ["read"]}).json()["expires_at"] is None


@pytest.mark.parametrize(
    ("day", "words"),
    [("9999-12-31", "Choose a year from 1900 to 2200."), ("2020-01-01", "Must be in the future.")],
)
def test_key_that_would_never_work_or_never_be_read_is_refused(day, words, client):
    organization = make.organization(time_zone="America/Denver")
    admin = make.admin(organization)
    client.force_login(admin)
    sent = {"organization": organization.pk, "name": "Website", "scopes": ["read"]}
    page = client.post("/admin/accounts/apikey/add/", {**sent, "expires_at_0": day, "expires_at_1": "23:59"})
    assert words in str(page.context["errors"])
    sent = {"name": "Website", "scopes": ["read"], "expires_at": f"{day}T23:59:00-07:00"}
    (error,) = Api(user=admin).post("api-keys/", sent).json()["errors"]
    assert error["field"] == "expires_at"
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("change", [{"role": "dispatcher"}, {"is_active": False}, None])
def test_keys_end_with_the_admin_who_created_them_and_are_listed_before(change, client):
    organization = make.organization()
    leaver, stayer = make.admin(organization, "Lee"), make.admin(organization, "Sam")
    elsewhere = make.organization()
    elsewhere.memberships.create(user=leaver, role="admin", joined_at=clock.now())
    keys = {
        name: services.create_api_key(of, name, ["manage"], actor=SYSTEM, created_by=by)[1]
        for name, of, by in (
            ("theirs", organization, leaver),
            ("colleague's", organization, stayer),
            ("other organization's", elsewhere, leaver),
        )
    }
    membership = organization.memberships.get(user=leaver)
    client.force_login(stayer)
    page = client.get(f"/admin/accounts/membership/{membership.pk}/change/").content.decode()
    assert "theirs (dk_" in page
    assert "colleague" not in page
    assert "stop working when this person is removed, deactivated or no longer an Admin" in page
    api = Api(user=stayer)
    answer = api.patch(f"members/{membership.pk}/", change) if change else api.delete(f"members/{membership.pk}/")
    assert answer.status_code in (200, 204)
    assert {name: Api(key=whole).get("me/").status_code for name, whole in keys.items()} == {
        "theirs": 401,
        "colleague's": 200,
        "other organization's": 200,
    }
    assert Event.objects.get(kind="api_key.revoked").actor_label == "Sam"


@pytest.fixture
def root(settings):
    settings.SECOND_FACTOR_FOR_SUPERUSERS = False
    return make.user("Root", is_superuser=True)


@pytest.mark.parametrize("selected", [False, True])
def test_keys_and_memberships_end_when_the_operator_deletes_their_creator(client, root, selected):
    organization, elsewhere = make.organization(), make.organization()
    leaver = make.admin(organization, "Lee")
    make.admin(organization, "Sam")
    elsewhere.memberships.create(user=leaver, role="dispatcher", joined_at=clock.now())
    invited = services.add_member(make.organization(), email=leaver.email, name="Lee", role="admin", actor=SYSTEM)[
        0
    ]
    wholes = [
        services.create_api_key(of, "theirs", ["manage"], actor=SYSTEM, created_by=leaver)[1]
        for of in (organization, elsewhere)
    ]
    client.force_login(root)
    if selected:
        sent = {"action": "delete_selected", "_selected_action": [leaver.pk], "post": "yes"}
        client.post(reverse("admin:accounts_user_changelist"), sent)
    else:
        client.post(reverse("admin:accounts_user_delete", args=[leaver.pk]), {"post": "yes"})
    assert not User.objects.filter(pk=leaver.pk).exists()
    assert [Api(key=whole).get("me/").status_code for whole in wholes] == [401, 401]
    for of in (organization, elsewhere):
        assert Event.objects.get(organization_id=of.pk, kind="api_key.revoked").actor_label == "Root"
    removed = Event.objects.filter(kind="membership.removed", actor_label="Root")
    assert {event.organization_id for event in removed} == {
        organization.pk, elsewhere.pk, invited.organization_id,
    }  # fmt: skip


@pytest.mark.parametrize("reason", ["last active admin", "break-glass owner"])
def test_user_whom_an_organization_needs_is_not_deleted(client, root, reason):
    organization = make.organization()
    leaver = make.admin(organization, "Lee")
    if reason == "break-glass owner":
        make.admin(organization, "Sam")
        IdentityProvider.objects.create(
            organization=organization, issuer="https://login.example.com", client_id="x", client_secret="y",
            allowed_domains=["example.com"], is_required=True, break_glass=leaver,
        )  # fmt: skip
    whole = services.create_api_key(organization, "theirs", ["manage"], actor=SYSTEM, created_by=leaver)[1]
    client.force_login(root)
    address = reverse("admin:accounts_user_delete", args=[leaver.pk])
    assert reason in client.post(address, {"post": "yes"}, follow=True).content.decode()
    assert organization.memberships.filter(user=leaver, role="admin", is_active=True).exists()
    assert Api(key=whole).get("me/").status_code == 200
    assert not Event.objects.filter(kind__in=("api_key.revoked", "user.deleted")).exists()


def test_keys_end_when_the_operator_deactivates_their_creator(client):
    organization = make.organization()
    leaver = make.admin(organization, "Lee")
    make.admin(organization, "Sam")
    whole = services.create_api_key(organization, "theirs", ["manage"], actor=SYSTEM, created_by=leaver)[1]
    client.force_login(make.user("Root", is_superuser=True))
    address = reverse("admin:accounts_user_change", args=[leaver.pk])
    inline = {f"memberships-{name}": n for name, n in (("TOTAL_FORMS", 0), ("INITIAL_FORMS", 0))}
    client.post(address, {"name": "Lee", "email": leaver.email, **inline})
    leaver.refresh_from_db()
    assert not leaver.is_active
    assert Api(key=whole).get("me/").status_code == 401


def test_keys_of_a_former_superuser_stay_only_where_they_are_an_admin(client, root):
    ours, foreign, formerly = (make.organization() for _ in range(3))
    rita = make.user("Rita", is_superuser=True)
    ours.memberships.create(user=rita, role="admin", joined_at=clock.now())
    formerly.memberships.create(user=rita, role="admin", is_active=False, joined_at=clock.now())
    keys = {}
    for organization in (ours, foreign, formerly):
        made = Api(user=rita, organization=organization.slug).post("api-keys/", {"name": "K", "scopes": ["read"]})
        keys[organization] = made.json()["key"]
    client.force_login(root)
    address = reverse("admin:accounts_user_change", args=[rita.pk])
    inline = {f"memberships-{name}": n for name, n in (("TOTAL_FORMS", 0), ("INITIAL_FORMS", 0))}
    form = {"email": rita.email, "is_active": "on", **inline}
    assert client.post(address, {**form, "name": "Rita R.", "is_superuser": "on"}).status_code == 302
    assert {Api(key=key).get("me/").status_code for key in keys.values()} == {200}
    assert client.post(address, {**form, "name": "Rita R."}).status_code == 302
    assert {of: Api(key=key).get("me/").status_code for of, key in keys.items()} == {
        ours: 200, foreign: 401, formerly: 401,
    }  # fmt: skip
    assert Event.objects.get(kind="api_key.revoked", organization_id=foreign.pk).actor_label == "Root"
