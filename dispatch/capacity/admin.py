"""Administer provider accounts, pools and numbers: limits with their current use, and pausing."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminPasswordWidget

from accounts.admin.base import ACT, OwnedAdmin, OwnedForm
from dispatch.capacity import account_outages, services, sql
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.labels import BadgeColors, label, translate_label
from dispatch.core.stored_texts import mark_stored, translate_stored

STATE_COLORS = BadgeColors({"active": "success", "paused": "warning", "resting": "warning"})
FALLBACK_HELP = _(
    "While the phone provider refuses or does not answer the accounts of all numbers of this pool, job offers, "
    "alert calls and calls about changed jobs are placed, and texts are sent, from the numbers of that pool."
)


class AccountForm(OwnedForm):
    """Edit a provider account. Its token is write-only."""

    token = forms.CharField(
        required=False,
        strip=True,
        widget=UnfoldAdminPasswordWidget(render_value=False, attrs={"autocomplete": "new-password"}),
        label=_("Auth token"),
        help_text=_(
            "Encrypted and never shown. Leave it empty to keep the current token. After a change, webhooks "
            "accept the previous token until you end the rotation."
        ),
    )

    secret = forms.CharField(
        required=False,
        strip=True,
        widget=UnfoldAdminPasswordWidget(render_value=False, attrs={"autocomplete": "new-password"}),
        label=_("API key secret"),
        help_text=_("Encrypted and never shown. Leave it empty to keep the current secret."),
    )

    class Meta:
        model = ProviderAccount
        fields = [
            "organization", "name", "provider", "account_sid", "api_key_sid", "region", "edge", "calls_per_second",
            "is_active",
        ]  # fmt: skip

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if cleaned.get("secret"):
            self.instance.api_key_secret = cleaned["secret"]  # before the model checks that the key has one
        if cleaned.get("is_active") and not cleaned.get("token") and not self.instance.auth_token:
            self.add_error("token", gettext("An active account needs a token to verify its webhooks."))
        return cleaned


@admin.register(ProviderAccount)
class ProviderAccountAdmin(OwnedAdmin):
    """Manage provider accounts. They are deactivated, never deleted, because calls refer to them."""

    subject = "account"
    form = AccountForm
    list_display = ["name", "provider", "account_sid", "calls_per_second", "is_active", "state", "rotating"]
    list_filter = ["is_active", "provider"]
    search_fields = ["name", "account_sid"]
    fields = [
        "name",
        "provider",
        "account_sid",
        "token",
        ("api_key_sid", "secret"),
        ("region", "edge"),
        "calls_per_second",
        "is_active",
    ]
    actions_detail = ["end_rotation"]

    @display(description=label("state"))
    def state(self, account: ProviderAccount) -> str:
        return translate_stored(account_outages.describe(account)) or translate_label("working")

    @display(description=label("key rotation"), boolean=True)
    def rotating(self, account: ProviderAccount) -> bool:
        return bool(account.previous_auth_token)

    def save_model(self, request: Any, obj: ProviderAccount, form: Any, change: bool) -> None:
        token = form.cleaned_data.get("token")
        if not change:
            obj.auth_token = token
        changed = {name: value for name, value in _changed(form, without="token").items() if name != "secret"}
        if form.cleaned_data.get("secret"):
            changed["api_key_secret"] = form.cleaned_data["secret"]
        services.save_row(obj, changed, actor=request.actor)
        if change and token:
            services.set_token(obj, token, actor=request.actor)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # calls refer to their account: deactivate it instead

    @action(
        description=_("End key rotation"),
        permissions=["change"],
        dialog={
            "title": _("End the key rotation?"),
            "description": _("Webhooks signed with the previous token will be rejected from now on."),
        },
    )
    def end_rotation(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        account = self.get_object(request, object_id)
        ended = services.end_rotation(account, actor=request.actor)
        if ended:
            self.log_change(request, account, mark_stored("Ended the key rotation."))
        messages.success(
            request,
            gettext("The key rotation has ended.") if ended else gettext("No key rotation was in progress."),
        )
        return self.back_to(object_id)


class LimitedAdmin(OwnedAdmin):
    """Show the use of pools and numbers compared with their limits, and pause them (base class)."""

    dispatcher_may = ACT
    limit_field = ""
    actions = ["pause", "resume"]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).annotate(in_use=sql.open_calls(self.model))

    @display(description=label("in use"), ordering="in_use")
    def use(self, row: Any) -> str:
        return gettext("{in_use} of {lines}").format(in_use=row.in_use, lines=getattr(row, self.limit_field))

    @display(description=label("state"), label=STATE_COLORS)
    def state(self, row: Any) -> str:
        return translate_label("paused") if row.is_paused else translate_label("active")

    def save_model(self, request: Any, obj: Any, form: Any, change: bool) -> None:
        services.save_row(obj, _changed(form), actor=request.actor)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # calls refer to it: pause it instead

    @admin.action(description=_("Pause: no new calls; calls in progress continue"), permissions=["act"])
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, True)

    @admin.action(description=_("Resume: new calls are made again"), permissions=["act"])
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, False)

    def _set_paused(self, request: Any, queryset: QuerySet, paused: bool) -> None:
        changed, unchanged = self.change_each(
            request,
            queryset,
            lambda row: services.set_paused(row, paused, actor=request.actor),
            mark_stored("Paused.") if paused else mark_stored("Resumed."),
            refusals=(services.NumberTaken,),
        )
        words = gettext("{count} paused.") if paused else gettext("{count} resumed.")
        note = ngettext("{count} already was.", "{count} already were.", unchanged).format(count=unchanged)
        if changed or unchanged:
            text = words.format(count=changed)
            messages.success(request, f"{text} {note}" if unchanged else text)


@admin.register(DispatchPool)
class DispatchPoolAdmin(LimitedAdmin):
    """Manage pools. They are paused, never deleted, because calls refer to them."""

    subject = "pool"
    limit_field = "concurrency"
    list_display = ["name", "code", "kind", "use", "rate_per_minute", "is_default", "fallback", "state"]
    list_select_related = ["fallback"]
    list_filter = ["kind", "is_paused"]
    search_fields = ["name", "code"]
    fields = ["name", "code", "kind", "concurrency", "rate_per_minute", "is_default", "fallback", "is_paused"]
    prepopulated_fields = {"code": ["name"]}

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Show the kind of a stored pool as text: numbers, campaigns and endpoints rely on it."""
        return [*super().get_readonly_fields(request, obj), *(["kind"] if obj else [])]

    def formfield_for_foreignkey(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name == "fallback":
            kwargs["help_text"] = FALLBACK_HELP
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


@admin.register(OutboundNumber)
class OutboundNumberAdmin(LimitedAdmin):
    """Manage caller numbers. They are paused, never deleted, because calls refer to them."""

    subject = "number"
    limit_field = "max_channels"
    list_display = ["phone", "name", "pool", "account", "use", "reserved", "sends_texts", "state"]
    list_filter = ["pool", "account", "is_paused"]
    list_select_related = ["pool", "account"]
    search_fields = ["phone", "name"]
    fields = [
        "phone",
        "name",
        "account",
        "pool",
        "max_channels",
        ("reserved_for_alerts", "reserved_for_offers"),
        "sends_texts",
        ("texts_per_second", "messaging_service_sid"),
        "is_paused",
    ]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Reserve a line of a new number for alerts, so that they never wait for offers and leads."""
        return {"reserved_for_alerts": 1, **super().get_changeform_initial_data(request)}

    @display(description=label("state"), label=STATE_COLORS)
    def state(self, number: OutboundNumber) -> str:
        if not number.is_paused and number.rests_until is not None and number.rests_until > clock.now():
            return translate_label("resting")
        return super().state(number)

    @display(description=label("reserved for alerts + offers"))
    def reserved(self, number: OutboundNumber) -> str:
        return f"{number.reserved_for_alerts} + {number.reserved_for_offers}"


def _changed(form: Any, without: str = "") -> dict[str, Any]:
    return {name: form.cleaned_data[name] for name in form.changed_data if name != without}
