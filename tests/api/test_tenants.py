"""Walk over every endpoint of the API as an owner, a member, a key and an outsider.

The endpoints come from the URL configuration, so a new endpoint is included automatically. One that is based on a
model needs only a row in tests/support/tenant_rows.py; any other view must be listed in WITHOUT_ROWS or OPEN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import django_filters
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, get_resolver
from rest_framework import serializers
from rest_framework.mixins import CreateModelMixin
from rest_framework.relations import ManyRelatedField

from accounts.api.base import OrganizationViewSet, OwnedView
from accounts.auth.permissions import ANYONE
from accounts.models import ApiKey, Membership
from dispatch.jobs.models import Job, ServiceType
from dispatch.leads.models import Campaign
from dispatch.technicians.models import Skill, Technician
from notifications.models import AlertChannel
from tests.api.client import Api
from tests.support import factories as make
from tests.support.tenants import FOREIGN, OWN, Tenant, everything_of

pytestmark = pytest.mark.django_db

OPEN = {"schema", "webhooks-schema", "docs"}
# Views without a queryset, whose answers are checked all the same.
WITHOUT_ROWS = {
    "me", "choose-organization", "organization", "duty", "notification-preferences", "notification-preference",
    "escalation-policy", "lead-dispatch", "lead-engine", "spend-cap",
}  # fmt: skip
# Plain views with a separate token; their slices test them.
BY_TOKEN = {"outbox_process"}
# Actions with a separate body that names a row: URL name → a body that names a row of the given tenant.
NAMED_IN_BODIES: dict[str, Callable[[Tenant], dict[str, Any]]] = {
    "job-assign": lambda of: {"technician": of.row(Technician).pk, "confirm_unfit": True},
    "submission-list": lambda of: make.form(of.row(ServiceType)),
    "lead-list": lambda of: {"campaign": of.row(Campaign).code, "phone": "+16025550134"},
    "lead-bulk": lambda of: {"campaign": of.row(Campaign).code, "leads": [{"phone": "+16025550135"}]},
}
# Bodies with which a detail action would succeed on one's own row.
BODIES: dict[str, dict[str, Any]] = {
    "endpoint-replay": {"since": "2026-01-05T00:00:00Z"},
    "job-texts": {"body": "The blue door."},
    "lead-outcome": {"disposition": "wants_quote"},
    "technician-duty": {"on_duty": False},
    "technician-position": {"lat": 33.4, "lng": -112.0},
}
CHANGES = ("post", "put", "patch", "delete")


@dataclass(frozen=True)
class Endpoint:
    name: str
    path: str  # with {pk} in place of a row's id
    view: Any  # the view class
    methods: tuple[str, ...]
    actions: dict[str, str]

    def __str__(self) -> str:
        return self.name

    @property
    def model(self) -> Any:
        return self.view.queryset.model

    @property
    def of_rows(self) -> bool:
        return issubclass(self.view, OwnedView)

    def at(self, pk: Any) -> str:
        return self.path.replace("{pk}", str(pk))


def _patterns(found: Any, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in found:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            yield route, pattern
        else:
            yield from _patterns(pattern.url_patterns, route)


def endpoints() -> list[Endpoint]:
    """Return every endpoint under /api/v1/."""
    found = []
    for route, pattern in _patterns(get_resolver().url_patterns):
        if not route.startswith("api/v1/") or pattern.name in BY_TOKEN:
            continue
        view = getattr(pattern.callback, "cls", None) or pattern.callback.view_class
        actions = getattr(pattern.callback, "actions", None) or {}
        methods = tuple(actions) or tuple(m for m in ("get", *CHANGES) if hasattr(view, m))
        allowed = tuple(m for m in methods if m in view.http_method_names and m != "head")
        path = re.sub(r"\(\?P<\w+>[^)]*\)|<[^>]+>", "{pk}", route).replace("^", "").replace("$", "")
        found.append(Endpoint(pattern.name, "/" + path.replace("\\", ""), view, allowed, actions))
    return found


ALL = endpoints()
CLOSED = [endpoint for endpoint in ALL if endpoint.name not in OPEN]
OF_ROWS = [endpoint for endpoint in CLOSED if endpoint.of_rows]
OF_ONE = [endpoint for endpoint in OF_ROWS if "{pk}" in endpoint.path]
OF_MANY = [endpoint for endpoint in OF_ROWS if "{pk}" not in endpoint.path]


def callers(of: Tenant) -> dict[str, Api]:
    people = {"admin": Api(), "dispatcher": Api()}
    of.sign_in(people["admin"].client, of.admin)
    of.sign_in(people["dispatcher"].client, of.dispatcher)
    return {**people, "key": Api(key=of.key)}


def test_every_endpoint_is_walked():
    unknown = [endpoint.name for endpoint in CLOSED if not endpoint.of_rows and endpoint.name not in WITHOUT_ROWS]
    assert not unknown, (
        f"say in WITHOUT_ROWS that these are no rows of an organization, or make them so: {unknown}"
    )
    assert {endpoint.name for endpoint in ALL} >= OPEN | WITHOUT_ROWS, "an entry has no endpoint"


@pytest.mark.parametrize("endpoint", CLOSED, ids=str)
def test_anonymous_requests_are_rejected(endpoint):
    for method in endpoint.methods:
        answer = Api().send(method.upper(), endpoint.at(1))
        assert answer.status_code == 401, method
        assert answer["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("endpoint", CLOSED, ids=str)
def test_a_key_without_the_scope_gets_nothing(endpoint, ours):
    bare = Api(key=make.api_key(ours.organization, "read"))
    for method in endpoint.methods:
        needed = endpoint.view.required[endpoint.actions.get(method, method)]
        if needed in (ANYONE, "read"):
            continue
        refused = bare.send(method.upper(), endpoint.at(1))
        assert refused.status_code == 403, method
        scopes = [one for one in ((needed,) if isinstance(needed, str) else needed) if one in ApiKey.Scope.values]
        missing = (
            f"This API key needs the scope {scopes[0]}."
            if scopes
            else "This needs a signed-in user. An API key can't do it."
        )
        assert refused.json()["detail"] == missing


@pytest.mark.parametrize("endpoint", CLOSED, ids=str)
def test_every_action_declares_its_requirement(endpoint):
    for method in endpoint.methods:
        assert endpoint.view.required.get(endpoint.actions.get(method, method)), method


@pytest.mark.parametrize("endpoint", [e for e in CLOSED if "get" in e.methods], ids=str)
def test_responses_contain_no_foreign_rows(endpoint, ours, theirs):
    for who, api in callers(ours).items():
        path = endpoint.at(ours.row(endpoint.model).pk) if "{pk}" in endpoint.path else endpoint.path
        answer = api.get(path)
        assert answer.status_code in (200, 403, 404), who
        assert FOREIGN.lower() not in answer.content.decode().lower(), who


@pytest.mark.parametrize("endpoint", [e for e in OF_MANY if e.actions.get("get") == "list"], ids=str)
def test_own_rows_are_listed(endpoint, ours, theirs):
    own = ours.row(endpoint.model)
    if endpoint.name == "team-channel-list":  # a tenant's channel is a member's
        AlertChannel.objects.update(user=None)
    seen = [api.get(endpoint.path) for api in callers(ours).values()]
    listed = [[row["id"] for row in answer.json()["results"]] for answer in seen if answer.status_code == 200]
    assert any(own.pk in ids for ids in listed), "nobody of the organization sees its row"
    assert not any(theirs.row(endpoint.model).pk in ids for ids in listed)


@pytest.mark.parametrize("endpoint", OF_ONE, ids=str)
def test_row_of_another_organization_is_404(endpoint, ours, theirs):
    foreign = theirs.row(endpoint.model)
    before = everything_of(theirs)
    for who, api in callers(ours).items():
        for method in endpoint.methods:
            answer = api.send(method.upper(), endpoint.at(foreign.pk), BODIES.get(endpoint.name))
            assert answer.status_code != 400, f"give {endpoint.name} a valid body in BODIES: {answer.content}"
            assert answer.status_code in (403, 404), (who, method, answer.content)
            assert FOREIGN.lower() not in answer.content.decode().lower()
    admin = callers(ours)["admin"]
    if "get" in endpoint.methods:
        assert admin.get(endpoint.at(foreign.pk)).status_code == 404
    assert everything_of(theirs) == before


@pytest.mark.parametrize("endpoint", OF_ONE, ids=str)
def test_naming_the_other_organization_finds_no_row_either(endpoint, ours, theirs):
    foreign = theirs.row(endpoint.model)
    before = everything_of(theirs)
    for api in (
        Api(user=ours.admin, organization=FOREIGN.lower()),
        Api(key=ours.key, organization=FOREIGN.lower()),
    ):
        for method in endpoint.methods:
            assert api.send(method.upper(), endpoint.at(foreign.pk)).status_code == 403
    assert everything_of(theirs) == before


def _relations(serializer: serializers.BaseSerializer, path: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield (field, the queryset's model, many) of every relation that a body can name."""
    for name, item in getattr(serializer, "fields", {}).items():
        if item.read_only:
            continue
        related = item.child_relation if isinstance(item, ManyRelatedField) else item
        if isinstance(related, serializers.RelatedField):
            yield path + name, related, isinstance(item, ManyRelatedField)


@pytest.mark.parametrize("endpoint", OF_ROWS, ids=str)
def test_a_foreign_row_cannot_be_named_in_a_body(endpoint, ours, theirs):
    before = everything_of(theirs)
    pk = ours.row(endpoint.model).pk
    for method in endpoint.methods:
        if endpoint.actions.get(method) not in ("create", "update", "partial_update"):
            continue  # another action has a separate body: NAMED_IN_BODIES
        view = endpoint.view()
        view.action, view.request, view.format_kwarg = endpoint.actions.get(method), None, None
        for name, related, many in _relations(view.get_serializer()):
            foreign = theirs.row(related.queryset.model)
            slug = getattr(related, "slug_field", "pk")
            value = getattr(foreign, slug)
            answer = Api(user=ours.admin).send(method.upper(), endpoint.at(pk), {name: [value] if many else value})
            assert answer.status_code == 400, answer.content
            assert name in {str(error["field"]).split(".")[0] for error in answer.json()["errors"]}
    if named := NAMED_IN_BODIES.get(endpoint.name):
        untouched = everything_of(ours)
        answer = Api(user=ours.admin).post(endpoint.at(pk), named(theirs))
        assert answer.status_code in (400, 404), answer.content
        assert everything_of(ours) == untouched
        accepted = Api(user=ours.admin).post(endpoint.at(pk), named(ours))
        assert accepted.status_code < 300, f"the body in NAMED_IN_BODIES is not a good one: {accepted.content}"
    assert everything_of(theirs) == before


@pytest.mark.parametrize("endpoint", OF_MANY, ids=str)
def test_a_foreign_row_cannot_be_named_in_a_filter(endpoint, ours, theirs):
    filters = getattr(endpoint.view, "filterset_class", None)
    named = filters.base_filters.items() if filters else ()
    for name, item in named:
        if not isinstance(item, django_filters.ModelChoiceFilter | django_filters.ModelMultipleChoiceFilter):
            continue
        foreign = theirs.row(item.queryset.model)
        answer = Api(user=ours.admin).get(f"{endpoint.path}?{name}={foreign.pk}")
        assert answer.status_code == 400
        assert FOREIGN.lower() not in answer.content.decode().lower()


def test_an_ended_membership_ends_access_at_once(ours):
    api = Api(user=ours.dispatcher)
    assert api.get("me/").status_code == 200
    Membership.objects.filter(user=ours.dispatcher).update(is_active=False)
    assert api.get("me/").status_code == 403
    ours.dispatcher.is_active = False
    ours.dispatcher.save()
    assert api.get("me/").status_code == 401


def test_member_of_two_organizations_selects_one_by_header(ours, theirs):
    Membership.objects.create(organization=theirs.organization, user=ours.admin, role="dispatcher")
    api = Api(user=ours.admin)
    assert api.get("me/").json()["organization"]["slug"] == OWN.lower()
    there = api.get("me/", X_Organization=FOREIGN.lower()).json()
    assert (there["organization"]["slug"], there["role"]) == (FOREIGN.lower(), "dispatcher")
    assert api.get("api-keys/", X_Organization=FOREIGN.lower()).status_code == 403, "only a dispatcher there"
    assert api.post("me/organization/", {"organization": FOREIGN.lower()}).json()["role"] == "dispatcher"
    assert api.get("me/").json()["organization"]["slug"] == FOREIGN.lower(), "the session remembers"
    Membership.objects.filter(user=ours.admin, organization=theirs.organization).delete()
    assert api.get("me/").json()["organization"]["slug"] == OWN.lower()
    assert api.post("me/organization/", {"organization": FOREIGN.lower()}).status_code == 403


def test_a_session_needs_the_csrf_token_to_change_anything(ours):
    api = Api(user=ours.dispatcher, csrf=True)
    assert api.get("duty/").status_code == 200
    refused = api.post("duty/", {"on_duty": False})
    assert (refused.status_code, refused["Content-Type"]) == (403, "application/problem+json")
    api.client.get("/admin/")  # sets the cookie, as any page does
    token = api.client.cookies["csrftoken"].value
    assert api.post("duty/", {"on_duty": False}, X_CSRFToken=token).status_code == 200


def test_tenant_walk_has_every_row_that_it_names(ours):
    assert ours.row(Technician).skills.get() == ours.row(Skill)
    assert ours.row(Job).organization == ours.organization
    assert [row["notes"] for row in everything_of(ours)[Job._meta.label]] == [OWN]
    assert all(everything_of(ours).values()), "a table without a row of the walk's"


def test_view_must_set_the_organization_of_new_rows() -> None:
    with pytest.raises(ImproperlyConfigured, match="before CreateModelMixin"):
        type("SkillViewSet", (CreateModelMixin, OrganizationViewSet), {})
    type("SkillViewSet", (OrganizationViewSet, CreateModelMixin), {})
