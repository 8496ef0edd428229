"""Extend the admin of provider accounts: check the credentials at the provider."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action

from accounts.admin.extensions import extend_admin
from dispatch.capacity import account_outages
from dispatch.capacity.admin import ProviderAccountAdmin
from dispatch.capacity.models import ProviderAccount
from dispatch.telephony import providers
from dispatch.telephony.providers.base import AccountInfo
from dispatch.telephony.request_threads import PROBES

TRIAL = _("A trial account calls and texts only phones that were verified at the provider.")


@extend_admin(ProviderAccount)
class CheckedAccountAdmin(ProviderAccountAdmin):
    """Accounts with a check of their credentials."""

    actions_detail = ["check_credentials", *ProviderAccountAdmin.actions_detail]

    @action(
        description=_("Check"),
        permissions=["change"],
        dialog={
            "title": _("Check this account?"),
            "description": _("Asks the provider for the account's status and type. Nobody is called."),
        },
    )
    def check_credentials(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        """Show the account's status and type, or why the provider refuses it."""
        account: ProviderAccount = self.get_object(request, object_id)
        slot = PROBES.reserve(account.pk, ("check", account.pk))
        if slot is None:
            messages.warning(request, gettext("The provider has not answered the last check yet. Please wait."))
            return self.back_to(object_id)
        try:
            with slot:
                info = providers.for_account(account).fetch_account()
        except providers.UnknownProvider as error:
            messages.error(request, str(error))
            return self.back_to(object_id)
        if info is None:
            messages.warning(
                request, gettext("The provider did not report the account's status. Try again in a minute.")
            )
        elif not isinstance(info, AccountInfo):
            messages.error(
                request, gettext("The provider refused the account: {reason}").format(reason=info.reason)
            )
        else:
            shown = gettext("{name}: status {status}, type {kind}.").format(
                name=info.name or account.name, status=info.status, kind=info.kind or gettext("unknown")
            )
            is_trial = info.kind.lower() == "trial"
            note = messages.success if info.is_active and not is_trial else messages.warning
            note(request, f"{shown} {TRIAL}" if is_trial else shown)
            account_outages.probe_now(account.pk, is_changed=False)
        return self.back_to(object_id)
