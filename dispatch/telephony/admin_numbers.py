"""What telephony adds to the numbers' admin: the addresses to enter at the provider."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpResponse
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from phonenumber_field.phonenumber import PhoneNumber
from unfold.decorators import action
from unfold.forms import BaseDialogForm
from unfold.widgets import UnfoldAdminTextInputWidget

from dispatch.capacity.admin import OutboundNumberAdmin
from dispatch.capacity.models import OutboundNumber
from dispatch.telephony import addresses, number_tests
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy

admin.site.unregister(OutboundNumber)

# What the provider's console calls it, and the kind in our address.
_ENTRIES = (
    ("A call comes in", "voice"),
    ("Call status changes", "status"),
    ("A message comes in", "sms"),
)

_NO_LINE = {
    "lines_busy": "all lines of this number are in use, or reserved for alerts and offers",
    "pool_full": "its pool is full",
    "pool_paused": "its pool is paused",
    "no_number": "the number makes no calls now",
}


class TestCallForm(BaseDialogForm):
    """Whom to call."""

    phone = forms.CharField(
        max_length=32, label="Phone to call", widget=UnfoldAdminTextInputWidget(attrs={"type": "tel"})
    )


@admin.register(OutboundNumber)
class NumberWithWebhooksAdmin(OutboundNumberAdmin):
    """Numbers, with where the provider must post what comes in, and a call to try them."""

    actions_detail = ["test"]

    def get_fields(self, request: Any, obj: Any = None) -> list:
        fields = list(super().get_fields(request, obj))
        return [*fields, "webhooks"] if obj else fields

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list:
        return [*super().get_readonly_fields(request, obj), "webhooks"]

    @admin.display(description="to enter at the provider")
    def webhooks(self, number: OutboundNumber) -> SafeString:
        return format_html_join(
            "",
            '<p>{} (POST)<br><code class="select-all" style="overflow-wrap:anywhere">{}</code></p>',
            ((words, addresses.number_webhook(number, kind)) for words, kind in _ENTRIES),
        )

    @action(
        description="Test call",
        permissions=["change"],
        dialog={
            "title": "Place a test call?",
            "description": "It rings now, whatever the hour, takes one of this number's lines and costs what a "
            "call costs. Whoever answers hears that it is a test, and presses 1.",
            "form_class": TestCallForm,
        },
    )
    def test(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        number: OutboundNumber = self.get_object(request, object_id)
        phone = PhoneNumber.from_string(
            form.cleaned_data["phone"], region=number.organization.default_region or None
        )
        try:
            if not phone.is_valid():
                raise CallNotAllowed("not a phone number")
            call = number_tests.call_from(number, phone.as_e164, actor=request.actor)
        except (NoLine, PhoneBusy, CallNotAllowed, number_tests.NumberPaused) as refused:
            messages.error(request, f"No call was placed: {_why(refused)}.")
            return self.back_to(object_id)
        self.log_change(request, number, f"Placed a test call (call {call.pk}).")
        messages.success(request, f"Call {call.pk} is on its way. Load this page again to see what came of it.")
        name = f"{self.admin_site.name}:telephony_call_change"
        return HttpResponse(headers={"HX-Redirect": reverse(name, args=[call.pk])})


def _why(refused: Exception) -> str:
    match refused:
        case NoLine():
            return _NO_LINE[refused.reason]
        case PhoneBusy():
            return "that phone has an open call already"
        case CallNotAllowed():
            return refused.reason
    return "the number, its pool or its account is paused"
