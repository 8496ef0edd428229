"""An admin list filters only by what its page offers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import get_fields_from_path
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db.models import Field, Model
from django.http import QueryDict
from django.template.response import SimpleTemplateResponse
from django.urls import reverse

from accounts.admin.base import OwnedAdmin
from accounts.models import Membership, User
from dispatch.jobs.models import Job
from dispatch.telephony.models import Call, Text
from tests.accounts.test_admin_walk import admin_of, both, by_model, signed_in, url
from tests.support import factories as make

pytestmark = pytest.mark.django_db

OPERATORS = [
    "exact",
    "iexact",
    "contains",
    "icontains",
    "startswith",
    "istartswith",
    "endswith",
    "iendswith",
    "regex",
    "iregex",
    "gt",
    "gte",
    "lt",
    "lte",
    "in",
    "range",
    "isnull",
    "isempty",
    "year",
    "year__gte",
    "month",
    "day",
    "date",
    "hour",
    "time",
    "quarter",
    "week",
    "len",
    "contained_by",
    "overlap",
    "has_key",
    "0",
]
PLAIN = {"exact", "isnull", "isempty", "gte", "lt", "year", "month", "day", ""}
SECRETS = ("password", "secret", "token", "body")


def columns(model: type[Model], depth: int = 2) -> Iterator[str]:
    """Yield the path of every column of the model, and of every column that its relations reach."""
    for field in model._meta.get_fields():
        if isinstance(field, Field):
            yield field.name
            yield field.attname
        if depth > 1 and field.is_relation and field.related_model:
            for path in columns(field.related_model, depth - 1):
                yield f"{field.name}__{path}"


def offered_columns(own: Any, request: Any) -> set[str]:
    """Return the columns of the list's filters, and the parameters of filters without one."""
    found = {own.date_hierarchy}
    for item in own.get_list_filter(request):
        found.add(item.parameter_name if isinstance(item, type) else item[0] if isinstance(item, tuple) else item)
    return found - {None}


def test_every_registered_admin_limits_its_filters():
    for model, own in admin.site._registry.items():
        assert isinstance(own, OwnedAdmin), f"{model.__name__} accepts every lookup"
        assert type(own).lookup_allowed is OwnedAdmin.lookup_allowed, model.__name__


@by_model
def test_list_rejects_every_lookup_that_its_page_does_not_offer(model, ours, rf):
    request = rf.get("/")
    request.user = ours.admin
    own = admin_of(model)
    offered = offered_columns(own, request)
    tried = 0
    for path in set(columns(model)):
        for operator in ("", *OPERATORS):
            lookup = f"{path}__{operator}" if operator else path
            for value in ("1", "a", "2026-01-01"):
                tried += 1
                if not own.lookup_allowed(lookup, value, request):
                    continue
                assert operator in PLAIN, lookup
                assert path in offered or path.rpartition("__")[0] in offered, lookup
                assert not any(word in lookup for word in SECRETS), lookup
    assert tried > 1000


@by_model
def test_lookup_that_is_not_offered_is_rejected_over_http(model, ours):
    names = {field.name for field in model._meta.concrete_fields}
    client = both(ours)["admin"]
    if client.get(url(model, "changelist")).status_code != 200:
        return  # not theirs, or one row, which opens at once
    for name in names:
        assert client.get(url(model, "changelist"), {f"{name}__startswith": "a"}).status_code == 400, name


@by_model
def test_every_link_of_a_list_opens(model, ours, monkeypatch):
    """The page of each set of parameters is rendered once; other values of them are queried only."""
    opened: set[str] = set()  # by the Admin; a Dispatcher opens what only they are offered
    rendered: set[frozenset[str]] = set()
    for client in both(ours).values():
        page = client.get(url(model, "changelist"))
        if page.status_code != 200:
            continue
        queries = {unescape(found) for found in re.findall(r'href="(\?[^"]+)"', page.content.decode())} - opened
        for query in sorted(queries):
            parameters = frozenset(QueryDict(query[1:]))
            with monkeypatch.context() as patch:
                if parameters in rendered:
                    patch.setattr(SimpleTemplateResponse, "rendered_content", "")
                    patch.setattr(admin.site, "each_context", lambda request: {})
                answer = client.get(url(model, "changelist") + query)
            assert answer.status_code == 200, query
            list(answer.context_data["cl"].result_list)  # raises what a rendered page would have raised
            rendered.add(parameters)
        opened |= queries


@pytest.mark.parametrize(
    "query",
    [
        "created_at__year=999999999999999999",
        "created_at__year=0",
        "created_at__year=9999",
        "created_at__month=13",
        "created_at__year=2026&created_at__month=2&created_at__day=31",
        "created_at__regex=%5B",
        "created_at__gte=0001-01-01%2000:00:00%2B14:00",
        "to_phone__regex=%5B",
        "body__regex=%5B",
        "body__startswith=a",
        "status__exact=nothing",
        "status__in=sent,failed",
        "number__id__exact=999999999999999999999999",
        "number__id__exact=abc",
        "number__account__auth_token__startswith=a",
        "organization__slug__startswith=a",
        "sid=%00",
        "o=999999999999999999999.-x.password",
        "p=999999999999999999999",
        "nothing=1",
        "_to_field=body",
        "_to_field=sid",
    ],
)
@pytest.mark.parametrize("model", [Text, Call])
def test_invalid_parameter_redirects_or_is_rejected(model, query, ours):
    ours.row(model)
    for client in both(ours).values():
        assert client.get(f"{url(model, 'changelist')}?{query}").status_code in (200, 302, 400), query


@pytest.mark.parametrize("query", ["created_at__year=999999999999999999", "created_at__gte=abc", "kind__regex=["])
def test_invalid_date_in_the_notification_list_is_rejected(query, ours):
    name, _, value = query.partition("=")
    address = reverse("admin:notifications_alert_changelist")
    assert both(ours)["admin"].get(address, {name: value}).status_code in (302, 400)


@pytest.mark.parametrize(
    "lookup",
    [
        "password__regex",
        "password__startswith",
        "memberships__user__password__startswith",
        "is_superuser__exact",
        "email_confirmed_at__isnull",
    ],
)
def test_filters_reveal_nothing_about_a_colleagues_account(lookup, ours):
    answer = both(ours)["admin"].get(reverse("admin:accounts_user_changelist"), {lookup: "1"})
    assert answer.status_code == 400


@pytest.mark.parametrize("lookup", ["user__password__startswith", "user__password", "user__phone__contains"])
def test_filters_reveal_nothing_through_a_membership(lookup, ours):
    answer = both(ours)["admin"].get(reverse("admin:accounts_membership_changelist"), {lookup: "pbkdf2"})
    assert answer.status_code == 400


def test_related_row_is_selected_by_id_only(ours):
    address = reverse("admin:telephony_call_changelist")
    client, call = both(ours)["admin"], ours.row(Call)
    assert client.get(address, {"number__id__exact": call.number_id}).status_code == 200
    assert client.get(address, {"number__phone__exact": "+1"}).status_code == 400
    assert client.get(address, {"number__account__auth_token__exact": "x"}).status_code == 400


def test_a_list_cannot_be_ordered_by_a_column_that_it_does_not_show(ours, rf):
    request = rf.get("/", {"o": "password.-secret.99"})
    request.user = ours.admin
    listed = admin_of(User).get_changelist_instance(request)
    assert not any("password" in str(part) for part in listed.queryset.query.order_by)


@by_model
def test_no_list_searches_or_shows_a_credential(model, rf):
    own = admin_of(model)
    request = rf.get("/")
    request.user = make.user(is_superuser=True)
    for path in (*own.search_fields, *(path for path in own.get_list_display(request) if isinstance(path, str))):
        try:
            field = get_fields_from_path(model, path.lstrip("^=@"))[-1]
        except FieldDoesNotExist:
            continue
        assert field.name not in ("password", "secret", "secret_hash", "auth_token"), path


@pytest.mark.parametrize("extra", ["password__startswith", "user__password__regex", "email__startswith", "q", "o"])
def test_autocompletion_ignores_filters(extra, ours):
    source = {"app_label": "accounts", "model_name": "membership", "field_name": "user"}
    address = reverse("admin:autocomplete")
    client = both(ours)["admin"]
    plain = client.get(address, {**source, "term": ""})
    assert plain.status_code == 200
    filtered = client.get(address, {**source, "term": "", extra: "zzz"})
    assert filtered.json() == plain.json()


@pytest.mark.parametrize("field", ["password", "nothing", "user__password", ""])
def test_autocomplete_without_a_relation_is_rejected(field, ours):
    source = {"app_label": "accounts", "model_name": "membership", "field_name": field, "term": "a"}
    assert both(ours)["admin"].get(reverse("admin:autocomplete"), source).status_code == 403


@pytest.mark.parametrize("field", ["password", "email", "organization__slug"])
def test_popup_identifies_rows_by_primary_key_only(field, ours):
    for name in ("accounts_user_changelist", "accounts_membership_add"):
        answer = both(ours)["admin"].get(reverse(f"admin:{name}"), {"_to_field": field, "_popup": "1"})
        assert answer.status_code in (400, 403), name


def test_credential_as_a_filter_is_reported_at_startup():
    class Leaky(OwnedAdmin):
        list_filter = ["password"]

    with pytest.raises(ImproperlyConfigured, match="password"):
        Leaky(User, admin.site)


def test_filters_of_the_page_still_filter(ours):
    client = both(ours)["admin"]
    address = reverse("admin:jobs_job_changelist")
    job = ours.row(Job)
    page = client.get(address, {"status__exact": job.status, "priority__exact": job.priority})
    assert list(page.context["cl"].queryset) == [job]
    assert not client.get(address, {"status__exact": "cancelled"}).context["cl"].queryset.exists()


def test_a_member_of_two_organizations_filters_by_organization(ours, theirs):
    Membership.objects.create(organization=theirs.organization, user=ours.admin, role="dispatcher")
    client = signed_in(ours.admin)
    page = client.get(reverse("admin:jobs_job_changelist"), {"organization__id__exact": theirs.organization.pk})
    assert list(page.context["cl"].queryset) == [theirs.row(Job)]


@by_model
def test_search_with_thousands_of_words_is_rejected(model, ours):
    for client in both(ours).values():
        if client.get(url(model, "changelist")).status_code != 200 or not admin_of(model).search_fields:
            continue
        assert client.get(url(model, "changelist"), {"q": "ab " * 5000}).status_code == 400
        assert client.get(url(model, "changelist"), {"q": "1 Long Street, Phoenix, AZ 85001"}).status_code == 200
