"""What telephony adds to the numbers' admin: the addresses to enter at the provider."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from dispatch.capacity.admin import OutboundNumberAdmin
from dispatch.capacity.models import OutboundNumber
from dispatch.telephony import addresses

admin.site.unregister(OutboundNumber)

# What the provider's console calls it, and the kind in our address.
_ENTRIES = (
    ("A call comes in", "voice"),
    ("Call status changes", "status"),
    ("A message comes in", "sms"),
)


@admin.register(OutboundNumber)
class NumberWithWebhooksAdmin(OutboundNumberAdmin):
    """Numbers, with where the provider must post what comes in."""

    def get_fields(self, request: Any, obj: Any = None) -> list:
        fields = list(super().get_fields(request, obj))
        return [*fields, "webhooks"] if obj else fields

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list:
        return [*super().get_readonly_fields(request, obj), "webhooks"]

    @admin.display(description="to enter at the provider")
    def webhooks(self, number: OutboundNumber) -> SafeString:
        return format_html_join(
            "",
            '<p>{} (POST)<br><code class="break-all select-all">{}</code></p>',
            ((words, addresses.number_webhook(number, kind)) for words, kind in _ENTRIES),
        )
