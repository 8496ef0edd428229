"""Manage the event catalog in the admin: an organization's event types and their schemas."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextareaWidget

from accounts.admin.base import VIEW, OwnedAdmin, OwnedForm
from accounts.admin.stored_values import show_json
from dispatch.core.labels import BadgeColors, label, translate_label
from dispatch.core.web.form_fields import BoundedJSONField
from dispatch.outbox import catalog
from dispatch.outbox.models import EventType
from dispatch.outbox.services import catalog as services


def event_type_choices(own: QuerySet, current: list[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the types that an endpoint can subscribe to, by subject. `current`: types that it has."""
    groups: dict[str, list[tuple[str, str]]] = {gettext("All"): [("*", gettext("* (all events)"))]}
    entries = [(row.name, row.description) for row in own.filter(archived_at=None).order_by("name")]
    entries += [(entry.name, entry.shown_description) for entry in catalog.built_in().values()]
    for name, description in entries:
        subject = name.partition(".")[0]
        group = groups.setdefault(
            subject, [(f"{subject}.*", gettext("{subject}.* (all of them)").format(subject=subject))]
        )
        group.append((name, f"{name}: {description}" if description else name))
    known = {name for group in groups.values() for name, _ in group}
    if others := sorted(set(current) - known):
        groups[gettext("Other")] = [(name, name) for name in others]
    return list(groups.items())


class EventTypeForm(OwnedForm):
    """Edit an event type. Another schema or example makes a new version."""

    stored_elsewhere = ("schema", "example")

    schema = BoundedJSONField(
        required=False,
        label=_("JSON Schema"),
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 12, "spellcheck": "false"}),
        help_text=(
            _(
                'Draft 2020-12, such as {"type": "object", "properties": {"id": {"type": "integer"}}}. '
                "Leave empty for none."
            )
        ),
    )
    example = BoundedJSONField(
        required=False,
        label=_("Example"),
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 6, "spellcheck": "false"}),
        help_text=_("A payload that matches the schema."),
    )

    class Meta:
        model = EventType
        fields = ["organization", "name", "description", "is_enforced"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.initial["schema"], self.initial["example"] = services.current_content(self.instance)

    def clean_name(self) -> str:
        services.check_name(self.cleaned_data["name"])
        return str(self.cleaned_data["name"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        try:
            services.check_content(cleaned.get("schema"), cleaned.get("example"))
        except ValidationError as error:
            self._show_current({*self.stored_elsewhere} - {*self.changed_data})
            for name, problems in error.error_dict.items():
                self.add_error(name, problems)
        return cleaned

    def _show_current(self, names: set[str]) -> None:
        """Show again what is stored, not what the page showed before: another person may have changed it."""
        if self.instance.pk and names:
            shown: Any = self.data
            self.data = shown = shown.copy()
            for name in names:
                text = self.fields[name].prepare_value(self.initial[name])
                shown[self.add_prefix(name)] = shown[self.add_initial_prefix(name)] = text


@admin.register(EventType)
class EventTypeAdmin(OwnedAdmin):
    """Show and change event types. Every change goes through the services, which record it."""

    form = EventTypeForm
    dispatcher_may = VIEW
    subject = "event_type"
    list_display = ["name", "description", "state", "version", "is_enforced"]
    list_filter = ["is_enforced"]
    search_fields = ["name", "description"]
    actions = ["archive", "restore"]
    readonly_fields = ["versions", "created_at"]
    fields = ["name", "description", "is_enforced", "schema", "example", "versions", "created_at"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Show schema and example as text to users who may not change them."""
        if obj is None:
            return [name for name in self.fields if name not in self.readonly_fields]
        if self.permitted(request, "change", obj):
            return list(self.fields)
        return [name for name in self.fields if name not in ("schema", "example")]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*self.readonly_fields, "name"] if obj else list(self.readonly_fields)

    @display(description=label("state"), label=BadgeColors({"current": "success", "archived": "info"}))
    def state(self, row: EventType) -> str:
        return translate_label("archived") if row.archived_at else translate_label("current")

    @display(description=label("versions"))
    def versions(self, row: EventType) -> Any:
        shown = (
            (
                version.number,
                f"{timezone.localtime(version.created_at):%Y-%m-%d %H:%M %Z}",
                show_json(version.schema),
            )
            for version in row.versions.all()
        )
        return format_html_join("", "<details><summary>{} ({})</summary>{}</details>", shown) or gettext("none")

    def save_model(self, request: Any, obj: EventType, form: Any, change: bool) -> None:
        names = ["name", "description", "is_enforced", "schema", "example"]
        if change:
            names = [name for name in names if name in form.changed_data]
        given = {name: form.cleaned_data[name] for name in names if name in form.cleaned_data}
        if change:
            services.change_type(obj.pk, given, actor=request.actor)
            return
        row = services.create_type(obj.organization, given, actor=request.actor)
        obj.pk, obj._state.adding = row.pk, False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: types are archived, since messages of these types may exist."""
        return False

    @admin.action(description=_("Archive (hidden from the catalog)"), permissions=["change"])
    def archive(self, request: Any, queryset: QuerySet) -> None:
        done = sum(services.archive_type(row.pk, actor=request.actor) for row in queryset)
        messages.success(request, gettext("{done} archived.").format(done=done))

    @admin.action(description=_("Restore (shown in the catalog)"), permissions=["change"])
    def restore(self, request: Any, queryset: QuerySet) -> None:
        done = sum(services.restore_type(row.pk, actor=request.actor) for row in queryset)
        messages.success(request, gettext("{done} restored.").format(done=done))
