"""Provider accounts, pools and numbers in the admin: limits beside what is in use, pauses."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminPasswordWidget

from accounts.admin_base import ACT, OwnedAdmin, OwnedForm
from dispatch.capacity import services, sql
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount


class AccountForm(OwnedForm):
    """The token goes in and never comes out."""

    token = forms.CharField(
        required=False,
        strip=True,
        widget=UnfoldAdminPasswordWidget(render_value=False, attrs={"autocomplete": "new-password"}),
        label="Auth token",
        help_text="Stored encrypted and never shown. Leave it empty to keep the present one; a new one leaves the "
        "one before accepted on webhooks until you end the rotation.",
    )

    class Meta:
        model = ProviderAccount
        fields = ["organization", "name", "provider", "account_sid", "calls_per_second", "is_active"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if cleaned.get("is_active") and not cleaned.get("token") and not self.instance.auth_token:
            self.add_error(
                "token", "An active account needs a token: without one its webhooks cannot be verified."
            )
        return cleaned


@admin.register(ProviderAccount)
class ProviderAccountAdmin(OwnedAdmin):
    subject = "account"
    form = AccountForm
    list_display = ["name", "provider", "account_sid", "calls_per_second", "is_active", "rotating"]
    list_filter = ["is_active", "provider"]
    search_fields = ["name", "account_sid"]
    fields = ["name", "provider", "account_sid", "token", "calls_per_second", "is_active"]
    actions_detail = ["end_rotation"]

    @display(description="key rotation", boolean=True)
    def rotating(self, account: ProviderAccount) -> bool:
        return bool(account.previous_auth_token)

    def save_model(self, request: Any, obj: ProviderAccount, form: Any, change: bool) -> None:
        token = form.cleaned_data.get("token")
        if not change:
            obj.auth_token = token
        services.save(obj, _changed(form, without="token"), actor=request.actor)
        if change and token:
            services.set_token(obj, token, actor=request.actor)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # calls remember their account: make it inactive

    @action(
        description="End key rotation",
        permissions=["change"],
        dialog={
            "title": "End the key rotation?",
            "description": "Webhooks signed with the token before are refused from now on.",
        },
    )
    def end_rotation(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        account = self.get_object(request, object_id)
        ended = services.end_rotation(account, actor=request.actor)
        if ended:
            self.log_change(request, account, "Ended the key rotation.")
        messages.success(request, "The rotation is ended." if ended else "There was no rotation under way.")
        return self.back_to(object_id)


class LimitedAdmin(OwnedAdmin):
    """What pools and numbers share: use beside the limit, pausing."""

    dispatcher_may = ACT
    limit_field = ""
    actions = ["pause", "resume"]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).annotate(in_use=sql.open_calls(self.model))

    @display(description="in use", ordering="in_use")
    def use(self, row: Any) -> str:
        return f"{row.in_use} of {getattr(row, self.limit_field)}"

    @display(description="state", label={"active": "success", "paused": "warning"})
    def state(self, row: Any) -> str:
        return "paused" if row.is_paused else "active"

    def save_model(self, request: Any, obj: Any, form: Any, change: bool) -> None:
        services.save(obj, _changed(form), actor=request.actor)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # calls remember where they came from: pause it

    @admin.action(description="Pause: no new calls, those under way go on", permissions=["act"])
    def pause(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, True)

    @admin.action(description="Resume: calls are made again", permissions=["act"])
    def resume(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_paused(request, queryset, False)

    def _set_paused(self, request: Any, queryset: QuerySet, paused: bool) -> None:
        rows, changed = [], []
        for row in queryset:
            try:
                if services.set_paused(row, paused, actor=request.actor):
                    changed.append(row)
                rows.append(row)
            except services.NumberTaken as error:
                messages.error(request, f"{row}: {error}")
        for row in changed:
            self.log_change(request, row, "Paused." if paused else "Resumed.")
        word = "paused" if paused else "resumed"
        same = len(rows) - len(changed)
        note = f" {same} already {'was' if same == 1 else 'were'}." if same else ""
        if rows:
            messages.success(request, f"{len(changed)} {word}.{note}")


@admin.register(DispatchPool)
class DispatchPoolAdmin(LimitedAdmin):
    subject = "pool"
    limit_field = "concurrency"
    list_display = ["name", "code", "kind", "use", "rate_per_minute", "is_default", "state"]
    list_filter = ["kind", "is_paused"]
    search_fields = ["name", "code"]
    fields = ["name", "code", "kind", "concurrency", "rate_per_minute", "is_default", "is_paused"]
    prepopulated_fields = {"code": ["name"]}


@admin.register(OutboundNumber)
class OutboundNumberAdmin(LimitedAdmin):
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
        ("sends_texts", "texts_per_second"),
        "is_paused",
    ]

    @display(description="reserved for alerts + offers")
    def reserved(self, number: OutboundNumber) -> str:
        return f"{number.reserved_for_alerts} + {number.reserved_for_offers}"


def _changed(form: Any, without: str = "") -> dict[str, Any]:
    return {name: form.cleaned_data[name] for name in form.changed_data if name != without}
