"""Admin pages for the team's chat channels. Users add their own in the console."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget

from accounts.admin.base import OwnedAdmin, OwnedForm
from accounts.tenancy import user_of
from dispatch.core import events
from dispatch.core.api.problems import Conflict
from dispatch.core.labels import BadgeColors, label, translate_label
from notifications.channels import kinds
from notifications.models import AlertChannel
from notifications.services import chat_channels

STATES = BadgeColors({"Works": "success", "Fails": "warning", "Stopped": "danger"})
ENTRY = "entry_"


class ChannelForm(OwnedForm):
    """Edit a channel. The fields of its kind exist only while it is added: they are not shown again."""

    entry_kind = ""

    class Meta:
        model = AlertChannel
        fields = ["organization", "name", "scope", "audience"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if not self.entry_kind:
            return cleaned
        entered = {
            name.removeprefix(ENTRY): str(value or "") for name, value in cleaned.items() if name.startswith(ENTRY)
        }
        try:
            config, address = kinds.read_entered(self.entry_kind, entered)
        except ValidationError as error:
            for name, texts in error.message_dict.items():
                self.add_error(ENTRY + name if ENTRY + name in self.fields else None, texts)
        else:
            self.instance.kind, self.instance.config, self.instance.address = self.entry_kind, config, address
        return cleaned


def form_of(kind: kinds.ChannelKind) -> type[ChannelForm]:
    """Return the form that adds a channel of this kind."""
    fields: dict[str, Any] = {"entry_kind": kind.value, "__module__": __name__}
    for field in kind.fields:
        widget = UnfoldAdminPasswordWidget if field.is_secret else UnfoldAdminTextInputWidget
        about = " ".join(gettext(text) for text in (field.help, field.more_help) if text)
        fields[ENTRY + field.name] = forms.CharField(
            label=gettext(field.label), help_text=about, required=field.is_required, initial=field.initial,
            max_length=kinds.MAX_ENTERED, widget=widget(attrs={"autocomplete": "new-password"}),
        )  # fmt: skip
    return type("NewChannelForm", (ChannelForm,), fields)


@admin.register(AlertChannel)
class AlertChannelAdmin(OwnedAdmin):
    """Manage the chat services and webhooks that get the team's alerts, without a delay."""

    subject = "alert_channel"
    form = ChannelForm
    list_display = ["name", "kind", "address", "audience", "scope", "state", "error"]
    list_filter = ["kind"]
    search_fields = ["name"]
    actions = ["send_test"]
    actions_without_asking = ("send_test",)

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).filter(user=None, removed_at=None).defer("config")

    @display(description=label("state"), label=STATES)
    def state(self, row: AlertChannel) -> str:
        if row.stopped_at:
            return translate_label("Stopped")
        if row.error:
            return translate_label("Fails")
        return translate_label("Works") if row.tried_at else translate_label("No message yet")

    # --- forms
    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Ask for the kind first."""
        if self._chosen(request) is not None or not self.has_add_permission(request):
            return super().add_view(request, form_url, extra_context)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": gettext("Add a team channel"),
            "kinds": list(kinds.offered_kinds().values()),
        }
        return TemplateResponse(request, "admin/notifications/alertchannel/choose.html", context)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        chosen = self._chosen(request)
        if obj is None and chosen is not None:
            kwargs["form"] = form_of(chosen)
        return super().get_form(request, obj, change, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        chosen = self._chosen(request)
        if obj is not None or chosen is None:
            return ["name", "kind", "address", "scope", "audience", "state", "error"]
        return ["name", *(ENTRY + field.name for field in chosen.fields), "scope", "audience"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["kind", "address", "state", "error"] if obj is not None else []

    def _chosen(self, request: HttpRequest) -> kinds.ChannelKind | None:
        return kinds.offered_kinds().get(request.GET.get("kind", ""))

    # --- changes
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save the channel; a new one gets a test message."""
        if change:
            with transaction.atomic():
                super().save_model(request, obj, form, change)
                changed = sorted(form.changed_data)
                events.append(
                    obj.organization_id, "alert_channel.changed", obj.pk, actor=request.actor, name=obj.name,
                    fields=changed,
                )  # fmt: skip
            return
        try:
            chat_channels.save_new(obj, actor=request.actor)
        except ValidationError as error:
            raise Conflict(" ".join(error.messages)) from error
        self._test(request, obj)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        chat_channels.remove_channel(obj, actor=request.actor)

    @admin.action(description=_("Send a test message"), permissions=["change"])
    def send_test(self, request: HttpRequest, queryset: QuerySet) -> None:
        for row in queryset:
            self._test(request, row)

    def _test(self, request: HttpRequest, row: AlertChannel) -> None:
        try:
            chat_channels.send_test(row, user=user_of(request), actor=request.actor)
        except chat_channels.TestRefused as error:
            messages.warning(request, f"{row}: {error}")
        else:
            messages.success(
                request,
                gettext("{row}: a test message is on its way. The state shows the result.").format(row=row),
            )
