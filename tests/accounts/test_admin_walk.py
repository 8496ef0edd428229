"""Walk over every page of the admin as an Admin, a Dispatcher and an outsider.

The pages come from the admin's registry, so a new page is included automatically; its model needs a row in
tests/support/tenant_rows.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin import ModelAdmin
from django.contrib.admin.utils import get_fields_from_path
from django.db import transaction
from django.db.models import Model
from django.test import Client
from django.urls import NoReverseMatch, reverse

from accounts.admin.base import OwnedAdmin
from accounts.models import Organization, User
from notifications.models import AlertChannel
from tests.support import factories as make
from tests.support.admin_forms import open_form, path_of
from tests.support.factories import browser
from tests.support.tenants import FOREIGN, OWN, Tenant, everything_of

pytestmark = pytest.mark.django_db

# Without an organization: only superusers see them; their slice tests them.
SUPERUSERS_ONLY = {
    "outbox.quarantinedpointer", "leads.callingrule", "leads.holiday", "leads.donotcalleverywhere",
    "leads.engineswitch",
}  # fmt: skip
MODELS = sorted(
    (model for model in admin.site._registry if model._meta.label_lower not in SUPERUSERS_ONLY),
    key=lambda model: model._meta.label,
)
# Further arguments in the URL of a slice's page, besides the row.
OTHER_ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "jobs_job_act": [{"action": action} for action in ("assign", "cancel", "complete", "dispatch_again", "pause")],
}
# The add page of these first asks for a kind; this is the page after it.
AFTER_THE_CHOICE = {"notifications.alertchannel": "?kind=webhook"}
# Fields of which any text is valid.
EDITED = ("name", "customer", "description")
GONE = (302, 403, 404)  # to the index with a message, refused, not there


@pytest.fixture
def ours(ours: Tenant) -> Tenant:
    return with_team_channel(ours)


@pytest.fixture
def theirs(theirs: Tenant) -> Tenant:
    return with_team_channel(theirs)


def with_team_channel(tenant: Tenant) -> Tenant:
    """Make the tenant's chat channel the team's: the admin does not show those of members."""
    AlertChannel.objects.filter(organization=tenant.organization).update(user=None)
    return tenant


def signed_in(user: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def both(of: Tenant) -> dict[str, Client]:
    browsers = {
        "admin": Client(raise_request_exception=False),
        "dispatcher": Client(raise_request_exception=False),
    }
    of.sign_in(browsers["admin"], of.admin)
    of.sign_in(browsers["dispatcher"], of.dispatcher)
    return browsers


def url(model: type[Model], page: str, *args: Any) -> str:
    address = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)
    return address + (AFTER_THE_CHOICE.get(model._meta.label_lower, "") if page == "add" else "")


def admin_of(model: type[Model]) -> Any:
    return admin.site._registry[model]


def leaks(answer: Any) -> bool:
    return FOREIGN.lower() in answer.content.decode().lower()


by_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label_lower)


@by_model
def test_every_admin_derives_from_owned_admin(model):
    assert isinstance(admin_of(model), OwnedAdmin), "a plain ModelAdmin shows every organization's rows"


@by_model
def test_anonymous_visitor_is_sent_to_sign_in(model):
    answer = Client().get(url(model, "changelist"))
    assert answer.status_code == 302
    assert "/login/" in answer["Location"]


@by_model
def test_the_list_shows_own_rows_only(model, ours, theirs):
    for who, client in both(ours).items():
        answer = client.get(url(model, "changelist"), follow=True)
        assert answer.status_code in (200, 403), who
        assert not leaks(answer), who


@by_model
def test_own_rows_open(model, ours, theirs):
    row = ours.row(model)
    opened = []
    for who, client in both(ours).items():
        answer = client.get(url(model, "change", row.pk))
        opened.append(answer.status_code == 200)
        assert answer.status_code in (200, *GONE), who
        assert not leaks(answer), who
        history = client.get(url(model, "history", row.pk))
        assert not leaks(history), who
        for action in _unfold_actions(model):
            dialog = client.get(reverse(f"admin:{action}", args=[row.pk]))
            is_page = dialog.status_code == 200 and "<html" in dialog.content.decode()
            assert is_page or dialog.status_code in GONE, "a browser that opens a dialog gets a whole page"
    assert any(opened), "nobody of the organization can open its row"


@by_model
def test_row_of_another_organization_is_not_found(model, ours, theirs):
    foreign = theirs.row(model)
    before = everything_of(theirs)
    for who, client in both(ours).items():
        for page in ("change", "history", "delete"):
            for method in (client.get, client.post):
                answer = method(url(model, page, foreign.pk), {"post": "yes"})
                assert answer.status_code in GONE, (who, page)
                assert not leaks(answer), (who, page)
        for action in _unfold_actions(model):
            for method in (client.get, client.post):
                answer = method(reverse(f"admin:{action}", args=[foreign.pk]), {"_form_submitted": "True"})
                assert answer.status_code in (403, 404), (who, action)
    assert everything_of(theirs) == before


def _unfold_actions(model: type[Model]) -> list[str]:
    own = admin_of(model)
    return [a.action_name for a in (*own._get_base_actions_detail(), *own._get_base_actions_row())]


def _pages_of_a_row(model: type[Model]) -> list[tuple[str, dict[str, Any]]]:
    """Return the pages of a slice that name a row: (URL name, the other arguments)."""
    found = []
    for pattern in admin_of(model).get_urls():
        parameters = set(pattern.pattern.converters)
        if pattern.name and "object_id" in parameters and pattern.name not in _unfold_actions(model):
            for extra in OTHER_ARGUMENTS.get(pattern.name, [{}]):
                assert parameters == {"object_id", *extra}, f"name arguments of {pattern.name} in OTHER_ARGUMENTS"
                found.append((pattern.name, extra))
    return found


@by_model
def test_custom_pages_of_another_organizations_row_are_not_found(model, ours, theirs):
    foreign = theirs.row(model)
    before = everything_of(theirs)
    for name, extra in _pages_of_a_row(model):
        for client in both(ours).values():
            for method in (client.get, client.post):
                answer = method(
                    reverse(f"admin:{name}", kwargs={"object_id": foreign.pk, **extra}), {"reason": "x"}
                )
                assert answer.status_code in GONE, (name, extra)
                assert not leaks(answer), (name, extra)
    assert everything_of(theirs) == before


@by_model
def test_actions_on_other_organizations_rows_change_nothing(model, ours, theirs, rf):
    foreign = theirs.row(model)
    before = everything_of(theirs)
    request = rf.get("/")
    request.user = make.user(is_superuser=True)
    for name in admin_of(model).get_actions(request):
        for client in both(ours).values():
            for across in ("0", "1"):
                asked = {"action": name, "_selected_action": [foreign.pk], "select_across": across}
                asked |= {"post": "yes", "confirmed": "1"}
                answer = client.post(url(model, "changelist"), asked)
                assert answer.status_code in (200, 302, 403), name
                assert not leaks(answer), name
    assert everything_of(theirs) == before


@by_model
def test_filter_by_another_organizations_id_finds_and_names_nothing(model, ours, theirs, rf):
    request = rf.get("/")
    request.user = ours.admin
    for item in admin_of(model).get_list_filter(request):
        name = item if isinstance(item, str) else item[0] if isinstance(item, tuple) else ""
        if not name or not (field := get_fields_from_path(model, name)[-1]).is_relation:
            continue
        foreign = theirs.row(field.related_model)
        for client in both(ours).values():
            answer = client.get(url(model, "changelist"), {f"{name}__id__exact": foreign.pk}, follow=True)
            assert not leaks(answer), name


def _posted(form: Any) -> dict[str, Any]:
    """Return what a browser would send back of this form."""
    data: dict[str, Any] = {}
    for bound in form:
        value = bound.value()
        if isinstance(value, bool):
            if value:
                data[bound.html_name] = "on"
        elif value is not None:
            data[bound.html_name] = value
    return data


@by_model
@pytest.mark.parametrize("page", ["add", "change"])
def test_a_foreign_row_cannot_be_chosen_in_a_form(model, page, ours, theirs):
    client = both(ours)["admin"]
    address = url(model, "add") if page == "add" else url(model, "change", ours.row(model).pk)
    shown = client.get(address)
    if shown.status_code != 200:
        assert shown.status_code in (302, 403), "not theirs alone, or nobody's to edit"
        return
    if "adminform" not in shown.context:
        assert "change" not in admin_of(model).admin_may, "a separate page, on which nothing is edited"
        return
    before = everything_of(theirs)
    count = model._default_manager.count()
    form = shown.context["adminform"].form
    for name, item in form.fields.items():
        queryset = getattr(item, "queryset", None)
        if queryset is None or item.disabled:
            continue
        foreign = theirs.row(queryset.model)
        assert not queryset.filter(pk=foreign.pk).exists(), name
        management = _management(shown)
        answer = client.post(address, {**management, **_posted(form), name: foreign.pk})
        assert answer.status_code == 200, f"{name} was accepted"
        assert name in answer.context["adminform"].form.errors
        assert not leaks(answer)
    assert (everything_of(theirs), model._default_manager.count()) == (before, count)


def _management(shown: Any) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for inline in shown.context["inline_admin_formsets"]:
        data |= {bound.html_name: bound.value() for bound in inline.formset.management_form}
        for form in inline.formset.forms:
            data |= _posted(form)
    return data


@by_model
def test_a_foreign_organization_cannot_be_given_to_a_new_row(model, ours, theirs):
    shown = both(ours)["admin"].get(url(model, "add"))
    if shown.status_code == 200 and "organization" in shown.context["adminform"].form.fields:
        item = shown.context["adminform"].form.fields["organization"]
        assert item.widget.is_hidden, "there is nothing to choose"
        assert [choice.pk for choice in item.queryset] == [ours.organization.pk]


@by_model
def test_autocompletion_offers_own_rows_only(model, ours, theirs):
    for name in admin_of(model).autocomplete_fields:
        asked = {"app_label": model._meta.app_label, "model_name": model._meta.model_name, "field_name": name}
        for term in ("", FOREIGN):
            answer = both(ours)["admin"].get(reverse("admin:autocomplete"), {**asked, "term": term})
            assert answer.status_code == 200
            assert not leaks(answer)


@by_model
def test_a_superuser_sees_both(model, ours, theirs):
    client = signed_in(make.user("Root", is_superuser=True))
    assert client.get(url(model, "changelist"), follow=True).status_code == 200
    for one in (ours, theirs):
        assert client.get(url(model, "change", one.row(model).pk)).status_code == 200


@by_model
def test_unchanged_form_can_be_saved(model, ours):
    """What an Admin may change can be saved unchanged: no forgotten field, no check that fails on itself."""
    client = both(ours)["admin"]
    address = url(model, "change", ours.row(model).pk)
    shown = client.get(address)
    if "change" not in admin_of(model).admin_may or shown.status_code != 200:
        return
    if not shown.context["has_change_permission"]:
        return
    answer = client.post(address, {**_management(shown), **_posted(shown.context["adminform"].form)})
    assert answer.status_code == 302, answer.context and answer.context["errors"]


def test_pages_over_everything_show_own_names_only(ours, theirs):
    for client in both(ours).values():
        for address in (reverse("admin:index"), reverse("admin:search") + f"?s={FOREIGN}&extended=1"):
            answer = client.get(address)
            assert answer.status_code == 200
            assert not leaks(answer)


def test_the_home_page_leads_to_the_admin(ours):
    assert both(ours)["dispatcher"].get("/", follow=True).status_code == 200


def test_the_queue_dashboard_is_for_superusers(ours):
    home = reverse("django_rq:home")
    assert Client().get(home).status_code == 302
    for name in ("home", "home_json", "metrics"):
        try:
            address = reverse(f"django_rq:{name}")
        except NoReverseMatch:
            continue
        for client in both(ours).values():
            assert client.get(address).status_code == 403, name
    assert signed_in(make.user("Root", is_superuser=True)).get(home).status_code == 200


def test_member_of_two_organizations_chooses_one_for_a_new_row(ours, theirs):
    from accounts.models import Membership
    from dispatch.technicians.models import Skill

    Membership.objects.create(organization=theirs.organization, user=ours.admin, role="admin")
    client = signed_in(ours.admin)
    shown = client.get(url(Skill, "add"))
    field = shown.context["adminform"].form.fields["organization"]
    assert {row.pk for row in field.queryset} == {ours.organization.pk, theirs.organization.pk}
    assert not field.widget.is_hidden
    client.post(url(Skill, "add"), {"organization": theirs.organization.pk, "code": "new", "name": "New"})
    assert Skill.objects.get(code="new").organization == theirs.organization
    made = Skill.objects.get(code="new")
    client.post(
        url(Skill, "change", made.pk), {"organization": ours.organization.pk, "code": "new", "name": "Newer"}
    )
    made.refresh_from_db()
    assert (made.organization, made.name) == (theirs.organization, "Newer"), "a row never changes hands"


def test_rows_of_two_organizations_cannot_be_related(ours, theirs):
    from accounts.models import Membership
    from dispatch.capacity.models import DispatchPool, OutboundNumber

    Membership.objects.create(organization=theirs.organization, user=ours.admin, role="admin")
    client = signed_in(ours.admin)
    own = ours.row(OutboundNumber)
    address = url(OutboundNumber, "change", own.pk)
    data = _posted(client.get(address).context["adminform"].form)
    answer = client.post(address, {**data, "pool": theirs.row(DispatchPool).pk})
    assert "another organization" in str(answer.context["adminform"].form.errors["pool"])
    own.refresh_from_db()
    assert own.pool == ours.row(DispatchPool)


def test_admin_of_one_and_dispatcher_of_another_edits_only_the_first(ours, theirs):
    from accounts.models import Membership
    from dispatch.technicians.models import Technician

    Membership.objects.create(organization=theirs.organization, user=ours.admin, role="dispatcher")
    client = signed_in(ours.admin)
    listed = client.get(url(Technician, "changelist"))
    assert leaks(listed), "a dispatcher there sees them"
    before = everything_of(theirs)
    foreign = theirs.row(Technician)
    assert client.get(url(Technician, "change", foreign.pk)).status_code == 200
    assert client.post(url(Technician, "change", foreign.pk), {"name": "Hijacked"}).status_code == 403
    client.post(
        url(Technician, "changelist"),
        {"action": "delete_selected", "_selected_action": [foreign.pk], "post": "yes"},
    )
    assert everything_of(theirs) == before
    assert Organization.objects.filter(slug__in=[OWN.lower(), FOREIGN.lower()]).count() == 2


def test_no_page_fails_if_its_row_is_removed_meanwhile(ours: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is removed before it is saved, and again before it is read: the first removal is rolled back."""
    person, tried, removed = browser(make.user("Root", is_superuser=True)), [], []
    save_form, get_object = ModelAdmin.save_form, ModelAdmin.get_object

    def remove(self: Any) -> None:
        self.model._base_manager.filter(pk=row.pk)._raw_delete("default")

    def save_removed(self: Any, *args: Any, **kwargs: Any) -> Any:
        removed.append(self.model)
        remove(self)
        return save_form(self, *args, **kwargs)

    def get_removed(self: Any, *args: Any) -> Any:
        if self.model in removed:
            remove(self)
        return get_object(self, *args)

    for model in admin.site._registry:
        row: Any = ours.row(model) if model in ours.rows | ours.known else None
        page = person.get(path_of(row)) if row else None
        if page is None or page.status_code != 200 or not page.context.get("has_change_permission"):
            continue
        form = open_form(person, row)
        form |= {name: f"{form[name]}x" for name in EDITED if f"initial-{name}" in form}
        with monkeypatch.context() as patch, transaction.atomic():
            patch.setattr(ModelAdmin, "save_form", save_removed)
            patch.setattr(ModelAdmin, "get_object", get_removed)
            answer = person.post(path_of(row), form)
            transaction.set_rollback(True)  # other rows need it
        assert answer.status_code == 302, model
        tried.append(model)
    assert len(tried) > 20
