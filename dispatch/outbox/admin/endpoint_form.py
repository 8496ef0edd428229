"""The form of an endpoint in the admin. Credentials and headers are entered in it and never shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelect2MultipleWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from accounts.admin.base import OwnedForm
from dispatch.core.http import client_certificates
from dispatch.core.http.ssrf import check_target_url
from dispatch.core.labels import label
from dispatch.outbox.models import Endpoint
from dispatch.outbox.services import authentication
from dispatch.outbox.validators import (
    MAX_HEADERS_LENGTH,
    check_condition,
    check_event_type,
    check_own_headers,
    check_permanent_code,
    longest_timeout_s,
)

# Form fields that are never shown, by the endpoint's field.
WRITTEN_ONLY = {
    "new_headers": "headers",
    "new_client_secret": "oauth_client_secret",
    "new_client_key": "client_key",
}


class HeadersField(forms.CharField):
    """Read one header per line, as "Name: value". An empty value means "leave the headers unchanged"."""

    widget = UnfoldAdminTextareaWidget(attrs={"rows": 3, "autocomplete": "off", "spellcheck": "false"})

    def clean(self, value: Any) -> dict[str, str] | None:
        headers: dict[str, str] = {}
        for line in filter(str.strip, super().clean(value).splitlines()):
            name, colon, text = (part.strip() for part in line.partition(":"))
            if not (name and colon and text):
                raise ValidationError(gettext("Write one header per line, such as Authorization: Bearer …"))
            if name.lower() in (known.lower() for known in headers):
                raise ValidationError(gettext("{name} is entered twice.").format(name=name))
            headers[name] = text
        if headers:
            check_own_headers(headers)
        return headers or None


class EndpointForm(OwnedForm):
    """Edit an endpoint. Headers can be entered but are never displayed: they may contain a password."""

    new_headers = HeadersField(
        required=False,
        max_length=2 * MAX_HEADERS_LENGTH,
        label=_("Headers"),
        help_text=_(
            "One per line, such as Authorization: Bearer … They replace the current ones. Stored encrypted and "
            "never shown. Leave empty to keep the current headers."
        ),
    )
    remove_headers = forms.BooleanField(
        required=False, label=_("Remove all headers"), widget=UnfoldBooleanSwitchWidget
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
            if value := given.pop(shown, None):
                given[name] = value
        if given.pop("remove_headers", False):
            if "headers" in given:
                self.add_error("remove_headers", gettext("Enter new headers or remove all, not both."))
            given["headers"] = {}
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

    def _get_validation_exclusions(self) -> set[str]:
        # Without a pool, the service picks the default one after the form is validated.
        excluded = super()._get_validation_exclusions()
        return excluded if self.cleaned_data.get("pool") else excluded | {"pool"}


def _each(values: list[Any] | None, check: Callable[[Any], None]) -> list[Any]:
    for value in values or []:
        check(value)
    return list(values or [])
