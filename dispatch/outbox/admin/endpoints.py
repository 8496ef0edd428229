"""Manage endpoints in the admin: create, pause, test, rotate secrets, and show their health."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.forms import BaseDialogForm
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelect2MultipleWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from accounts.admin.base import ACT, OwnedAdmin, OwnedForm, render_secret_once
from dispatch.core import clock
from dispatch.core.http import client_certificates
from dispatch.core.http.ssrf import check_target_url
from dispatch.core.labels import label, translate_label
from dispatch.core.stored_texts import mark_stored
from dispatch.core.web.form_fields import BoundedJSONField
from dispatch.outbox.admin.catalog import event_type_choices
from dispatch.outbox.admin.messages import exact_time, shorten
from dispatch.outbox.models import Endpoint, EventType
from dispatch.outbox.services import authentication, target_health
from dispatch.outbox.services import endpoints as services
from dispatch.outbox.validators import (
    check_condition,
    check_event_type,
    check_own_headers,
    check_permanent_code,
    longest_timeout_s,
)

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
# Form fields that are never shown, by the endpoint's field.
WRITTEN_ONLY = {
    "new_headers": "headers",
    "new_client_secret": "oauth_client_secret",
    "new_client_key": "client_key",
}


class HeadersField(BoundedJSONField):
    """Show nothing instead of null. An empty value means "leave the headers unchanged"."""

    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)


class EndpointForm(OwnedForm):
    """Edit an endpoint. Headers can be entered but are never displayed: they may contain a password."""

    new_headers = HeadersField(
        required=False,
        label=_("Headers"),
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text=(
            _(
                'Example: {"Authorization": "Bearer …"}. Stored encrypted and never shown. '
                "Leave empty to keep the current headers; enter {} to remove them."
            )
        ),
    )

    event_types = forms.MultipleChoiceField(
        label=_("Event types"),
        required=False,
        widget=UnfoldAdminSelect2MultipleWidget,
        help_text=_("From the event catalog. Leave empty for messages addressed to it by name only."),
    )
    new_client_secret = forms.CharField(
        required=False,
        label=_("Client secret"),
        max_length=2000,
        strip=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text=_("Stored encrypted and never shown. Leave empty to keep the current one."),
    )
    new_client_key = forms.CharField(
        required=False,
        label=_("Certificate's private key"),
        max_length=client_certificates.MAX_LENGTH,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "autocomplete": "off", "spellcheck": "false"}),
        help_text=(
            _(
                "In PEM, without a passphrase. Stored encrypted and never shown. Leave empty to keep the "
                "current one."
            )
        ),
    )

    class Meta:
        model = Endpoint
        fields = [
            "organization", "name", "receiver", "url", "event_types", "condition", "mode", "pool", "timeout_s",
            "retry_schedule_s", "retry_jitter", "permanent_codes", "expire_after_s", "oauth_token_url",
            "oauth_client_id", "oauth_scope", "oauth_audience", "oauth_client_auth", "client_certificate",
        ]  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in {"retry_schedule_s", "permanent_codes"} & set(self.fields):
            self.fields[name].widget = UnfoldAdminTextInputWidget()
        if "retry_schedule_s" in self.fields:
            self.fields["retry_schedule_s"].label = label("Retry schedule (s)")
        if "oauth_client_auth" in self.fields:
            self.fields["oauth_client_auth"].required = False
        if "client_certificate" in self.fields:
            self.fields["client_certificate"].widget.attrs |= {"rows": 3, "spellcheck": "false"}
        if "pool" in self.fields:
            self.fields["pool"].required = False
            self.fields["pool"].help_text = gettext(
                "Leave empty to use the organization's default pool for messages."
            )

    def clean_url(self) -> str:
        check_target_url(self.cleaned_data["url"])
        return str(self.cleaned_data["url"])

    def clean_oauth_client_auth(self) -> str:
        return self.cleaned_data["oauth_client_auth"] or Endpoint.ClientAuth.BASIC

    def clean_oauth_token_url(self) -> str:
        authentication.check_token_url(self.cleaned_data["oauth_token_url"])
        return str(self.cleaned_data["oauth_token_url"])

    def clean(self) -> dict[str, Any]:
        """Store in `changes` what was changed and what follows from it."""
        cleaned = super().clean() or self.cleaned_data
        given = {name: cleaned[name] for name in self.changed_data if name in cleaned and name != "organization"}
        for shown, name in WRITTEN_ONLY.items():
            if (value := given.pop(shown, None)) is not None and (value or name == "headers"):
                given[name] = value
        if self.errors:
            return cleaned
        try:
            self.changes = authentication.complete_changes(self.instance if self.instance.pk else None, given)
        except ValidationError as error:
            shown_as = {name: shown for shown, name in WRITTEN_ONLY.items()}
            for name, problems in error.error_dict.items():
                self.add_error(shown_as.get(name, name), problems)
        return cleaned

    def clean_event_types(self) -> list[str]:
        return _each(self.cleaned_data["event_types"], check_event_type)

    def clean_condition(self) -> str:
        check_condition(self.cleaned_data["condition"])
        return str(self.cleaned_data["condition"])

    def clean_permanent_codes(self) -> list[int]:
        return _each(self.cleaned_data["permanent_codes"], check_permanent_code)

    def clean_timeout_s(self) -> float:
        if self.cleaned_data["timeout_s"] > longest_timeout_s():
            raise ValidationError(gettext("At most {seconds:g} seconds.").format(seconds=longest_timeout_s()))
        return float(self.cleaned_data["timeout_s"])

    def clean_pool(self) -> Any:
        return self.cleaned_data["pool"] or (self.instance.pool if self.instance.pool_id else None)

    def clean_new_headers(self) -> dict[str, str] | None:
        given = self.cleaned_data["new_headers"]
        if given is None:
            return None
        if not isinstance(given, dict):
            raise ValidationError(gettext('Enter a JSON object such as {"Name": "value"}.'))
        check_own_headers(given)
        return given

    def _get_validation_exclusions(self) -> set[str]:
        # Without a pool, the service picks the default one after the form is validated.
        excluded = super()._get_validation_exclusions()
        return excluded if self.cleaned_data.get("pool") else excluded | {"pool"}


def _each(values: list[Any] | None, check: Callable[[Any], None]) -> list[Any]:
    for value in values or []:
        check(value)
    return list(values or [])


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
    """Filter endpoints by health."""

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
        failing = Q(target__failures__gt=0) | Q(target__open_until__isnull=False)
        failing |= Q(target__deferring_since__isnull=False)
        match self.value():
            case "ok":
                return queryset.filter(is_paused=False, disabled_at=None).exclude(failing)
            case "failing":
                return queryset.filter(failing)
            case "paused":
                return queryset.filter(is_paused=True)
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
        (None, {"fields": [*readonly_fields[:2], *own_fields, *readonly_fields[2:5]]}),
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
        if not (self.permitted(request, "change", obj) if obj else self.permitted(request, "add")):
            hidden |= set(WRITTEN_ONLY)
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
                endpoint, "PENDING", gettext("{count} pending").format(count=_format_count(report.pending))
            ),
            gettext("{count} in flight").format(count=_format_count(report.in_flight)),
            self._messages(
                endpoint, "ERROR", gettext("{count} in error").format(count=_format_count(report.errors))
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
        done = [row for row in queryset if target_health.pause_endpoint(row.pk, "", actor=request.actor)]
        for row in done:
            self.log_change(request, row, mark_stored("Paused."))
        messages.success(request, gettext("{count} paused.").format(count=len(done)))

    @admin.action(description=_("Resume (waiting messages are sent)"), permissions=["act"])
    def resume(self, request: Any, queryset: QuerySet) -> None:
        done = [row for row in queryset if target_health.resume_endpoint(row.pk, actor=request.actor)]
        for row in done:
            self.log_change(request, row, mark_stored("Resumed."))
        messages.success(request, gettext("{count} resumed.").format(count=len(done)))

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
        shown = '<div id="dialog-form"><p>Copy it now. It is shown only once:</p><p><code>{}</code></p></div>'
        return HttpResponse(format_html(shown, secret), headers={"Cache-Control": "no-store"})

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


def _format_count(number: int) -> str:
    return gettext("{count:,} or more").format(count=number) if number >= services.COUNT_LIMIT else f"{number:,}"
