"""Extend the admin of numbers with the webhook URLs to enter at the provider, and with test calls."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import admin, messages
from django.http import HttpResponse
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action
from unfold.forms import BaseDialogForm
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts.admin.base import VIEW, OwnedAdmin
from accounts.admin.extensions import extend_admin
from dispatch.capacity.admin import OutboundNumberAdmin
from dispatch.capacity.models import OutboundNumber
from dispatch.core.labels import label
from dispatch.core.languages import DAYS
from dispatch.core.phone_numbers import InvalidPhone, parse_phone
from dispatch.core.stored_texts import mark_stored, translate_stored
from dispatch.telephony import number_check_calls, number_health, webhook_urls
from dispatch.telephony.admin.refusals import describe_refusal
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy
from dispatch.telephony.models import NumberHealthPolicy
from dispatch.telephony.services import number_rests

PLACED = mark_stored("Placed a test call (call {id}).")
mark_stored("Ended the rest.")  # in rows of earlier versions
# Pairs of a label in the provider's console and the kind in our URL.
_ENTRIES = (
    (_("A call comes in"), "voice"),
    (_("Call status changes"), "status"),
    (_("A message comes in"), "sms"),
)


class TestCallForm(BaseDialogForm):
    """Ask for the phone to call."""

    phone = forms.CharField(
        max_length=32, label=_("Phone number to call"), widget=UnfoldAdminTextInputWidget(attrs={"type": "tel"})
    )


@extend_admin(OutboundNumber)
class NumberWithWebhooksAdmin(OutboundNumberAdmin):
    """Manage numbers, with their webhook URLs and a test call."""

    actions_detail = ["test", "end_rest"]

    def get_fields(self, request: Any, obj: Any = None) -> list:
        fields = list(super().get_fields(request, obj))
        return [*fields, "call_health", "text_health", "webhooks"] if obj else fields

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list:
        return [*super().get_readonly_fields(request, obj), "call_health", "text_health", "webhooks"]

    @admin.display(description=label("call health"))
    def call_health(self, number: OutboundNumber) -> str:
        """Say how the latest calls fared, and until when and why the number rests."""
        health = number_health.call_health(number).describe()
        if not number_health.is_resting(number) or number.rests_until is None:
            return health
        until = number.rests_until.astimezone(ZoneInfo(number.organization.time_zone))
        return gettext("rests until {day} {until:%H:%M %Z}: {reason}").format(
            day=gettext(DAYS[until.weekday()]), until=until, reason=translate_stored(number.rest_reason)
        )

    @action(
        description=_("Use again now"),
        permissions=["change"],
        dialog={
            "title": _("Use this number again now?"),
            "description": _(
                "Calls are placed from it again. Only its calls from now on count toward its health."
            ),
        },
    )
    def end_rest(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        number: OutboundNumber = self.get_object(request, object_id)
        if number_rests.end_rest(number, actor=request.actor):
            self.log_change(request, number, mark_stored("Ended the rest of the number."))
            messages.success(request, gettext("The number is used again."))
        else:
            messages.success(request, gettext("The number is not resting."))
        return self.back_to(object_id)

    @admin.display(description=label("text delivery"))
    def text_health(self, number: OutboundNumber) -> str:
        return number_health.text_health(number).describe()

    @admin.display(description=label("webhooks to enter at the phone provider"))
    def webhooks(self, number: OutboundNumber) -> SafeString:
        return format_html_join(
            "",
            '<p>{} (POST)<br><code class="select-all" style="overflow-wrap:anywhere">{}</code></p>',
            (
                *((words, webhook_urls.number_webhook(number, kind)) for words, kind in _ENTRIES),
                (gettext("Primary handler fails (calls)"), webhook_urls.fallback(number.account.provider)),
            ),
        )

    @action(
        description=_("Test call"),
        permissions=["change"],
        dialog={
            "title": _("Place a test call?"),
            "description": _(
                "The phone rings now, at any hour. The call uses one of this number's lines and costs "
                "the usual rate. The person hears a test message and presses 1 to confirm."
            ),
            "form_class": TestCallForm,
        },
    )
    def test(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        number: OutboundNumber = self.get_object(request, object_id)
        try:
            phone = parse_phone(form.cleaned_data["phone"], number.organization.default_region)
        except InvalidPhone as error:
            messages.error(request, gettext("No call was placed: {reason}").format(reason=error))
            return self.back_to(object_id)
        try:
            call = number_check_calls.place_test_call(number, phone.as_e164, actor=request.actor)
        except (NoLine, PhoneBusy, CallNotAllowed, number_check_calls.NumberPaused) as error:
            messages.error(
                request, gettext("No call was placed: {reason}.").format(reason=describe_refusal(error))
            )
            return self.back_to(object_id)
        self.log_change(request, number, PLACED.format(id=call.pk))
        messages.success(
            request, gettext("Placing call {pk}. Reload this page to see the result.").format(pk=call.pk)
        )
        name = f"{self.admin_site.name}:telephony_call_change"
        return HttpResponse(headers={"HX-Redirect": reverse(name, args=[call.pk])})


@admin.register(NumberHealthPolicy)
class NumberHealthPolicyAdmin(OwnedAdmin):
    """Admins set when a number rests; dispatchers see it."""

    subject = "number_health"
    dispatcher_may = VIEW
    list_display = [
        "__str__",
        "window_hours",
        "min_calls",
        "min_answer_percent",
        "max_error_percent",
        "rest_hours",
    ]
    fields = [
        ("window_hours", "min_calls"),
        ("min_answer_percent", "max_error_percent", "max_blocked_percent"),
        "rest_hours",
    ]

    def save_model(self, request: Any, obj: NumberHealthPolicy, form: Any, change: bool) -> None:
        changed = {name: form.cleaned_data[name] for name in form.changed_data}
        number_rests.save_policy(obj, changed, actor=request.actor)

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False  # change the thresholds instead, so that the log says who changed them
