"""Administer API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from accounts import services
from accounts.admin.base import OwnedAdmin, OwnedForm, render_secret_once
from accounts.auth.api_keys import check_expiry
from accounts.models import ApiKey
from accounts.tenancy import user_of
from dispatch.core import clock
from dispatch.core.labels import BadgeColors, label, translate_label
from dispatch.core.stored_texts import mark_stored

STATE_COLORS = BadgeColors({"active": "success", "revoked": "danger", "expired": "warning"})


class NewKeyForm(OwnedForm):
    """Show scopes as check boxes."""

    scopes = forms.MultipleChoiceField(
        label=_("Scopes"),
        choices=[(scope, label(words)) for scope, words in ApiKey.Scope.choices],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
    )

    def clean_expires_at(self) -> datetime | None:
        expires_at: datetime | None = self.cleaned_data["expires_at"]
        check_expiry(expires_at)
        return expires_at


@admin.register(ApiKey)
class ApiKeyAdmin(OwnedAdmin):
    """Administer API keys. A key is shown once, when it is created; it can be revoked but not edited."""

    subject = "api_key"
    admin_may = frozenset({"view", "add", "act"})
    form = NewKeyForm
    list_display = ["name", "prefix", "may", "state", "last_used_at", "expires_at", "created_by"]
    list_select_related = ["created_by"]
    search_fields = ["name", "prefix"]
    fields = ["name", "scopes", "expires_at"]
    readonly_fields = ["prefix", "state", "created_by", "created_at", "revoked_at", "last_used_at"]
    actions = ["revoke"]
    actions_detail = ["revoke_this"]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"expires_at": services.default_key_expiry(), **super().get_changeform_initial_data(request)}

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*self.fields, *self.readonly_fields] if obj else list(self.fields)

    @display(description=label("scopes"))
    def may(self, key: ApiKey) -> str:
        labels = dict(ApiKey.Scope.choices)
        return ", ".join(translate_label(str(labels.get(scope, scope))) for scope in key.scopes)

    @display(description=label("state"), label=STATE_COLORS)
    def state(self, key: ApiKey) -> str:
        if key.revoked_at:
            return translate_label("revoked")
        is_expired = key.expires_at and key.expires_at <= clock.now()
        return translate_label("expired") if is_expired else translate_label("active")

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        key, request.shown_once = services.create_api_key(
            obj.organization, obj.name, obj.scopes, expires_at=obj.expires_at, created_by=user_of(request),
            actor=request.actor,
        )  # fmt: skip
        obj.pk, obj.prefix, obj._state.adding = key.pk, key.prefix, False

    def response_add(
        self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None
    ) -> HttpResponse:
        text = gettext("Copy the key now. It isn't stored and won't be shown again.")
        return render_secret_once(
            self,
            request,
            gettext("The API key “{name}” was created").format(name=obj.name),
            text,
            request.shown_once,
        )

    @admin.action(
        description=_("Revoke: the keys stop working immediately. This can't be undone."), permissions=["act"]
    )
    def revoke(self, request: HttpRequest, queryset: models.QuerySet) -> None:
        for key in queryset:
            self._revoke(request, key)
        messages.success(request, gettext("The keys were revoked and no longer work."))

    @action(
        description=_("Revoke"),
        permissions=["act"],
        dialog={
            "title": _("Revoke this key?"),
            "description": _("The key stops working immediately. This can't be undone."),
        },
    )
    def revoke_this(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        self._revoke(request, self.get_object(request, object_id))
        return self.back_to(object_id)

    def _revoke(self, request: HttpRequest, key: ApiKey) -> None:
        services.revoke_api_key(key.pk, actor=request.actor)
        self.log_change(request, key, mark_stored("Revoked."))
