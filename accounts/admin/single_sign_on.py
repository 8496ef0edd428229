"""Administer single sign-on."""

from __future__ import annotations

from typing import Any

from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from django import forms
from django.contrib import admin
from django.contrib.postgres.fields import ArrayField
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminTextInputWidget

from accounts.admin.base import OwnedAdmin, OwnedForm
from accounts.models import Membership, User
from accounts.sso import services, starts
from accounts.sso.models import IdentityProvider, validate_domain
from accounts.sso.provider import SignInFailed, callback_url, check_discovery
from dispatch.core.labels import label
from dispatch.core.web.form_fields import BoundedArrayField

# Each organization's provider is an IdentityProvider; nobody edits links and tokens.
for model in (SocialAccount, SocialApp, SocialToken):
    admin.site.unregister(model)

DOMAINS = ("allowed_domains", "verified_domains")
# Each request of the organization loads them.
MAX_DOMAINS = 100


class IdentityProviderForm(OwnedForm):
    """Never show the stored client secret. Accept domains in any case, with spaces, and more than once."""

    secret = forms.CharField(
        label=_("Client secret"),
        required=False,
        max_length=1000,
        widget=UnfoldAdminPasswordWidget(render_value=False, attrs={"autocomplete": "new-password"}),
    )

    class Meta:
        model = IdentityProvider
        fields = ["issuer"]

    def __init__(self, data: Any = None, *args: Any, **kwargs: Any) -> None:
        if data is not None:
            data = data.copy()
            for name in set(DOMAINS) & set(data):
                parts = dict.fromkeys(part.strip().lower() for part in data[name].split(","))
                data[name] = ",".join(filter(None, parts))
        super().__init__(data, *args, **kwargs)
        for name in set(DOMAINS) & set(self.fields):
            domains: Any = self.fields[name]
            domains.max_items = MAX_DOMAINS
            # Also here: of the model's errors about items, forms show only which item is meant.
            domains.base_field.validators = [*domains.base_field.validators, validate_domain]
        if "secret" in self.fields and self.instance.pk:
            self.fields["secret"].help_text = gettext(
                "Stored encrypted and never shown. Leave it empty to keep it."
            )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if secret := cleaned.get("secret"):
            self.instance.client_secret = secret
        elif "secret" in self.fields and not self.instance.client_secret:
            self.add_error("secret", gettext("Enter the client secret."))
        return cleaned


@admin.register(IdentityProvider)
class IdentityProviderAdmin(OwnedAdmin):
    """Administer the OpenID Connect provider of an organization. Only superusers verify domains."""

    form = IdentityProviderForm
    entry_name, entries_name = label("an identity provider"), label("identity providers")
    list_display = ["issuer", "is_active", "is_required", "tried_at"]
    fields = [
        "is_active", "issuer", "client_id", "secret", "redirect_uri", "allowed_domains", "verified_domains",
        "email_must_be_verified", "newcomer_role", "second_factor", "acr_values", "tried_at", "is_required",
        "break_glass",
    ]  # fmt: skip
    formfield_overrides = {ArrayField: {"form_class": BoundedArrayField, "widget": UnfoldAdminTextInputWidget}}
    actions_detail = ["try_configuration"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        own = [] if request.user.is_superuser else ["verified_domains"]
        return ["redirect_uri", "tried_at", *own]

    @display(description=label("redirect URI"))
    def redirect_uri(self, provider: IdentityProvider) -> str:
        if provider.pk is None:
            return gettext("Shown after saving. Enter it at the provider.")
        return format_html("<code>{}</code>", callback_url(provider))

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "break_glass":
            organizations = self.organizations_where(request, "change")
            admins = Membership.objects.filter(role=Membership.Role.ADMIN, is_active=True)
            if organizations is not None:
                admins = admins.filter(organization_id__in=organizations)
            kwargs["queryset"] = User.objects.filter(pk__in=admins.values("user_id"))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: IdentityProvider, form: Any, change: bool) -> None:
        changed = ["client_secret" if name == "secret" else name for name in form.changed_data]
        services.save_provider(obj, changed, actor=request.actor)

    def delete_model(self, request: HttpRequest, obj: IdentityProvider) -> None:
        services.delete_provider(obj, actor=request.actor)

    @action(
        description=_("Try this configuration"),
        permissions=["change"],
        dialog={
            "title": _("Try this configuration?"),
            "description": _(
                "You sign in at the provider, then see what it sends and who would be signed in here. "
                "Your session stays as it is."
            ),
        },
    )
    def try_configuration(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        provider = self.get_object(request, object_id)
        try:
            check_discovery(request, provider)
        except SignInFailed as failure:
            text = '<div id="dialog-form"><p>{}</p><p>{}</p></div>'
            return HttpResponse(format_html(text, failure.text, failure.detail))
        starts.allow_start(request, provider, is_trial=True)
        target = f"{reverse('sso_begin', args=[provider.pk])}?try=1"
        return HttpResponse(headers={"HX-Redirect": target})
