"""Manage endpoints in the admin: create, pause, test, rotate secrets, and show their health."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.forms import BaseDialogForm
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextInputWidget,
)

from accounts.admin.base import ACT, OwnedAdmin, render_secret_once
from dispatch.core import clock
from dispatch.core.labels import label, translate_label
from dispatch.core.stored_texts import mark_stored
from dispatch.outbox.admin.catalog import event_type_choices
from dispatch.outbox.admin.endpoint_form import WRITTEN_ONLY, EndpointForm
from dispatch.outbox.admin.messages import exact_time, format_count, shorten
from dispatch.outbox.models import Endpoint, EventType
from dispatch.outbox.services import endpoints as services
from dispatch.outbox.services import target_health

STATE_LABELS = {
    "healthy": "success",
    "failing": "warning",
    "deferring": "warning",
    "probing": "warning",
    "circuit_open": "danger",
    "paused": "info",
    "disabled": "danger",
}
HOURS = 3600


class ReasonForm(BaseDialogForm):
    """Ask for the reason, which is shown in the history."""

    reason = forms.CharField(max_length=200, required=False, label=_("Reason"), widget=UnfoldAdminTextInputWidget)


class RotationForm(BaseDialogForm):
    """Ask how long the previous secret stays valid."""

    overlap_h = forms.IntegerField(
        min_value=0,
        max_value=services.MAX_OVERLAP_S // HOURS,
        initial=services.OVERLAP_S // HOURS,
        label=_("Overlap in hours"),
        widget=UnfoldAdminIntegerFieldWidget,
        help_text=(
            _(
                "Both secrets stay valid for this long. Enter 0 to revoke the current secret "
                "immediately (for example, if it leaked)."
            )
        ),
    )


class HealthFilter(admin.SimpleListFilter):
    """Filter endpoints by health, as the list's badges show it."""

    title = label("health")
    parameter_name = "health"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("ok", gettext("Enabled and healthy")),
            ("failing", gettext("Failing")),
            ("paused", gettext("Paused")),
            ("off", gettext("Disabled")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        enabled = queryset.filter(disabled_at=None)
        match self.value():
            case "ok":
                return enabled.filter(is_paused=False).exclude(services.HAS_FAILURES)
            case "failing":
                return enabled.filter(services.HAS_FAILURES, is_paused=False)
            case "paused":
                return enabled.filter(is_paused=True)
            case "off":
                return queryset.filter(disabled_at__isnull=False)
        return queryset


@admin.register(Endpoint)
class EndpointAdmin(OwnedAdmin):
    """Show and change endpoints. Every change goes through the services, which record it."""

    service_checks_deletion = True
    form = EndpointForm
    dispatcher_may = ACT
    list_display = ["name", "address", "state", "subscriptions", "mode", "pool"]
    list_filter = [HealthFilter, "mode", "pool"]
    list_select_related = ["pool", "target"]
    search_fields = ["name", "url"]
    actions = ["pause", "resume"]
    actions_detail = ["test", "pause_this", "resume_this", "rotate_secret", "disable", "enable"]
    readonly_fields = [
        "health", "waiting", "header_names", "previous_secret_until", "created_at", "client_certificate_until",
    ]  # fmt: skip
    own_fields = [
        "name", "receiver", "url", "event_types", "condition", "new_headers", "mode", "pool", "timeout_s",
        "retry_schedule_s", "retry_jitter", "permanent_codes", "expire_after_s",
    ]  # fmt: skip
    oauth_fields = [
        "oauth_token_url", "oauth_client_id", "new_client_secret", "oauth_scope", "oauth_audience",
        "oauth_client_auth",
    ]  # fmt: skip
    certificate_fields = ["client_certificate", "new_client_key"]
    fieldsets = [
        (
            None,
            {
                "fields": [
                    *readonly_fields[:2],
                    *own_fields,
                    "header_names",
                    "remove_headers",
                    *readonly_fields[3:5],
                ]
            },
        ),
        (_("OAuth 2.0 client credentials"), {"fields": oauth_fields, "classes": ["collapse"]}),
        (_("Mutual TLS"), {"fields": [*certificate_fields, "client_certificate_until"], "classes": ["collapse"]}),
    ]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Offer the event types of the endpoint's organization, or of those for which the user may add one."""
        form = super().get_form(request, obj, change, **kwargs)
        if field := form.base_fields.get("event_types"):
            own = EventType.objects.of(obj.organization_id) if obj else self.visible(request, EventType)
            assert own is not None
            field.choices = event_type_choices(own, obj.event_types if obj else [])
        return form

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Hide the health fields of a new endpoint, and headers from users who may not change them."""
        hidden = set() if obj else set(self.readonly_fields)
        if obj is None or not obj.headers:
            hidden.add("remove_headers")
        if not (self.permitted(request, "change", obj) if obj else self.permitted(request, "add")):
            hidden |= {*WRITTEN_ONLY, "remove_headers"}
        fieldsets = super().get_fieldsets(request, obj)
        for _title, options in fieldsets:
            options["fields"] = [name for name in options["fields"] if name not in hidden]
        return fieldsets

    @display(description=label("URL"), ordering="url")
    def address(self, endpoint: Endpoint) -> str:
        return shorten(endpoint.url)

    @display(description=label("health"), label=STATE_LABELS)
    def state(self, endpoint: Endpoint) -> tuple[str, str]:
        state = services.health_of(endpoint).state
        return state, translate_label(state.replace("_", " "))

    @display(description=label("event types"))
    def subscriptions(self, endpoint: Endpoint) -> str:
        return shorten(", ".join(endpoint.event_types)) or gettext("Only messages addressed to it")

    @display(description=label("health"))
    def health(self, endpoint: Endpoint) -> str:
        return services.health_of(endpoint, endpoint.organization.time_zone).words

    @display(description=label("waiting"))
    def waiting(self, endpoint: Endpoint) -> str:
        report = services.build_report(endpoint)
        due_at = report.oldest_due_at
        is_late = due_at is not None and due_at < clock.now()
        since = exact_time(due_at, endpoint.organization.time_zone) if due_at else ""
        return format_html(
            "{}, {}, {}, {}{}",
            self._messages(
                endpoint, "PENDING", gettext("{count} pending").format(count=format_count(report.pending))
            ),
            gettext("{count} in flight").format(count=format_count(report.in_flight)),
            self._messages(
                endpoint, "ERROR", gettext("{count} in error").format(count=format_count(report.errors))
            ),
            gettext("blocked groups: {count}").format(count=report.blocked_groups),
            gettext("; the oldest has been due since {since}").format(since=since) if is_late else "",
        )

    def _messages(self, endpoint: Endpoint, status: str, words: str) -> str:
        """Return a link to the endpoint's messages in that status."""
        at = reverse(f"{self.admin_site.name}:outbox_message_changelist")
        query = urlencode({"endpoint__id__exact": endpoint.pk, "status__exact": status})
        shown = '<a class="text-primary-600 dark:text-primary-500" href="{}?{}">{}</a>'
        return format_html(shown, at, query, words)

    @display(description=label("configured headers"))
    def header_names(self, endpoint: Endpoint) -> str:
        return ", ".join(sorted(endpoint.headers or {})) or gettext("none")

    # --- Saving -----------------------------------------------------------------------------------------------
    def save_model(self, request: Any, obj: Endpoint, form: Any, change: bool) -> None:
        if change:
            services.change_endpoint(obj.pk, form.changes, actor=request.actor)
            return
        names = [*self.own_fields, *self.oauth_fields, *self.certificate_fields]
        fields = {name: form.cleaned_data[name] for name in names if name not in WRITTEN_ONLY}
        endpoint, request.shown_once = services.create_endpoint(
            obj.organization, {**fields, **form.changes}, actor=request.actor
        )
        obj.pk, obj.pool, obj._state.adding = endpoint.pk, endpoint.pool, False

    def response_add(self, request: Any, obj: Endpoint, post_url_continue: str | None = None) -> HttpResponse:
        text = gettext(
            "Give this secret to the receiver so that it can verify our signatures. It won't be shown again."
        )
        return render_secret_once(
            self,
            request,
            gettext("The endpoint “{name}” was added").format(name=obj.name),
            text,
            request.shown_once,
        )

    def delete_model(self, request: Any, obj: Endpoint) -> None:
        services.delete_endpoint(obj.pk, actor=request.actor)

    def _log_action(self, request: HttpRequest, object_id: str, words: str) -> None:
        """Record the action in the endpoint's admin history, if `words` is not empty."""
        if words:
            self.log_change(request, self.get_object(request, object_id), words)

    # --- Actions ----------------------------------------------------------------------------------------------
    @admin.action(description=_("Pause (messages are kept)"), permissions=["act"])
    def pause(self, request: Any, queryset: QuerySet) -> None:
        pause = partial(target_health.pause_endpoint, reason="", actor=request.actor)
        self._change_selected(request, queryset, pause, mark_stored("Paused."), gettext("{count} paused."))

    @admin.action(description=_("Resume (waiting messages are sent)"), permissions=["act"])
    def resume(self, request: Any, queryset: QuerySet) -> None:
        resume = partial(target_health.resume_endpoint, actor=request.actor)
        self._change_selected(request, queryset, resume, mark_stored("Resumed."), gettext("{count} resumed."))

    def _change_selected(
        self, request: Any, queryset: QuerySet, change: Callable[[int], bool], log: str, words: str
    ) -> None:
        """Change each selected endpoint by its id, and say how many changed."""
        done, same = self.change_each(request, queryset, lambda row: change(row.pk), log)
        if done or same:
            messages.success(request, words.format(count=done))

    @action(
        description=_("Pause"),
        permissions=["act"],
        dialog={
            "title": _("Pause this endpoint?"),
            "description": _("Delivery stops until you resume it. Messages are kept."),
            "form_class": ReasonForm,
        },
    )
    def pause_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        done = target_health.pause_endpoint(int(object_id), form.cleaned_data["reason"], actor=request.actor)
        self._log_action(request, object_id, mark_stored("Paused.") if done else "")
        messages.success(request, gettext("Paused.") if done else gettext("It was already paused."))
        return self.back_to(object_id)

    @action(
        description=_("Resume"),
        permissions=["act"],
        dialog={"title": _("Resume this endpoint?"), "description": _("Waiting messages are sent right away.")},
    )
    def resume_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        done = target_health.resume_endpoint(int(object_id), actor=request.actor)
        self._log_action(request, object_id, mark_stored("Resumed.") if done else "")
        messages.success(request, gettext("Resumed.") if done else gettext("It wasn't paused."))
        return self.back_to(object_id)

    @action(
        description=_("Send a test message"),
        permissions=["act"],
        dialog={
            "title": _("Send a test message?"),
            "description": (
                _("Sends a message of type endpoint.test. It has no order, so it doesn't block other messages.")
            ),
        },
    )
    def test(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        message_id = services.send_test(self.get_object(request, object_id), actor=request.actor)
        messages.success(request, gettext("Message {message_id} is on its way.").format(message_id=message_id))
        return HttpResponse(
            headers={"HX-Redirect": reverse(f"{self.admin_site.name}:outbox_message_change", args=[message_id])}
        )

    @action(
        description=_("Replace the secret"),
        permissions=["change"],
        dialog={
            "title": _("Replace the signing secret?"),
            "description": (
                _(
                    "The new secret is shown once. Both secrets stay valid during the "
                    "overlap, so that the receiver can switch."
                )
            ),
            "form_class": RotationForm,
        },
    )
    def rotate_secret(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        endpoint, secret, _ = services.rotate_secret(
            int(object_id), actor=request.actor, overlap_s=form.cleaned_data["overlap_h"] * HOURS
        )
        self.log_change(request, endpoint, mark_stored("Replaced the signing secret."))
        shown = '<div id="dialog-form"><p>{}</p><p><code>{}</code></p></div>'
        words = gettext("Copy it now. It is shown only once.")
        return HttpResponse(format_html(shown, words, secret), headers={"Cache-Control": "no-store"})

    @action(
        description=_("Disable"),
        permissions=["change"],
        dialog={
            "title": _("Disable this endpoint?"),
            "description": (
                _(
                    "Dispatch does this automatically after several days of failures. "
                    "Messages are kept until you enable it."
                )
            ),
            "form_class": ReasonForm,
        },
    )
    def disable(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        done = target_health.disable_endpoint(
            int(object_id), form.cleaned_data["reason"] or mark_stored("Disabled manually."), actor=request.actor
        )
        self._log_action(request, object_id, mark_stored("Disabled.") if done else "")
        messages.success(request, gettext("Disabled.") if done else gettext("It was already disabled."))
        return self.back_to(object_id)

    @action(
        description=_("Enable"),
        permissions=["change"],
        dialog={"title": _("Enable this endpoint?"), "description": _("Waiting messages are sent right away.")},
    )
    def enable(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        done = target_health.enable_endpoint(int(object_id), actor=request.actor)
        self._log_action(request, object_id, mark_stored("Enabled.") if done else "")
        messages.success(request, gettext("Enabled.") if done else gettext("It wasn't disabled."))
        return self.back_to(object_id)
