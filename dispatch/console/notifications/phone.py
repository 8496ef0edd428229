"""The user's own phone number, and its confirmation by a code. Nobody can do either for another user."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST

from accounts import services as accounts
from accounts.sso import sessions as sso
from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.notifications.preferences import render_settings
from dispatch.console.views_base import console_view
from dispatch.core.languages import gettext as _
from dispatch.core.phone_numbers import InvalidPhone, parse_phone
from dispatch.core.stored_texts import translate_stored
from dispatch.core.web.client_addresses import limit_key
from dispatch.telephony.rules import why_not_callable
from notifications.services import phone_confirmation
from notifications.services.phone_confirmation import CodeNotSent, CodeRefused

BY_TEXT, BY_CALL = "text", "call"


@require_POST
@console_view
def change_phone(request: HttpRequest) -> HttpResponse:
    """Change the user's phone number, and text a code to it; empty removes it.

    A provider's session changes only an unshared one.
    """
    if not sso.may_change_account(request):
        raise PermissionDenied
    entered = request.POST.get("phone", "").strip()
    error, number = "", ""
    if entered:
        number, error = _read_phone(entered, request)
    if error:
        return render_settings(request, status=422, phone=entered, phone_error=error)
    if accounts.change_own_phone(user_of(request), number, actor=request.actor):
        messages.success(request, _("Phone number saved.") if number else _("Phone number removed."))
        if number:
            _send_code(request, BY_TEXT)
    return _back(request)


@require_POST
@console_view
def send_code(request: HttpRequest) -> HttpResponse:
    """Send a new code to the user's phone. `by`: text or call."""
    by = request.POST.get("by", "")
    if by not in (BY_TEXT, BY_CALL):
        raise BadRequest("Must be text or call.")
    _send_code(request, by)
    return _back(request)


@require_POST
@console_view
def confirm_phone(request: HttpRequest) -> HttpResponse:
    """Confirm the user's phone by the entered `code`."""
    try:
        phone_confirmation.confirm_phone(
            user_of(request), request.organization.pk, request.POST.get("code", "")[:40], actor=request.actor
        )
    except CodeRefused as error:
        return render_settings(request, status=422, code_error=str(error))
    return _back(request)


def _send_code(request: HttpRequest, by: str) -> None:
    try:
        phone_confirmation.send_code(
            user_of(request),
            request.organization,
            by_call=by == BY_CALL,
            address=limit_key(request),
            actor=request.actor,
        )
    except CodeNotSent as error:
        messages.warning(request, str(error))
        return
    if by == BY_CALL:
        messages.success(request, _("Your phone will ring in a few seconds. The call says the code."))
    else:
        messages.success(request, _("We texted you a code."))


def _read_phone(entered: str, request: HttpRequest) -> tuple[str, str]:
    """Return (E.164, "") or ("", error)."""
    try:
        number = parse_phone(entered, request.organization.default_region)
    except InvalidPhone as error:
        return "", translate_stored(str(error))
    why = why_not_callable(number.as_e164, request.organization.allowed_countries)
    if not why:
        return number.as_e164, ""
    words = _("{organization} can't call this number: {why}")
    return "", words.format(organization=request.organization, why=translate_stored(why))


def _back(request: HttpRequest) -> HttpResponse:
    return views_base.back_to(request, reverse("console:notification_choices"))
