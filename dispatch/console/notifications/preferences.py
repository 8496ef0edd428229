"""Notification settings: channels for each kind of event, and the language. `phone`: the user's phone number."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from accounts import services as accounts
from accounts.languages import language_of
from accounts.models import Membership
from accounts.phone_inputs import PhoneInput, phone_example
from accounts.sso import sessions as sso
from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.notifications.channels import channel_context
from dispatch.console.notifications.push import push_context
from dispatch.console.views_base import console_view
from dispatch.core import languages
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.telephony import services as telephony
from notifications import rules, services
from notifications.services import phone_confirmation
from notifications.services.preferences import Choice, Wants

WAYS = {
    "shown": mark("On screen"),
    "email": mark("Email"),
    "sms": mark("Text"),
    "voice": mark("Call"),
    "chat": mark("Chat"),
    "push": mark("Push"),
}


@require_http_methods(["GET", "POST"])
@console_view
def page(request: HttpRequest) -> HttpResponse:
    """Render the table; on POST, save it. Each check box is named `<kind>:<way>`; only changes are written."""
    if request.method == "POST":
        count = _save(request)
        messages.success(request, _("Saved.") if count else _("No changes."))
        return views_base.back_to(request, reverse("console:notification_choices"))
    return render_settings(request)


@require_POST
@console_view
def reset_preferences(request: HttpRequest) -> HttpResponse:
    """Reset the user's choices to the defaults."""
    services.reset_preferences(user_of(request), request.organization.pk, actor=request.actor)
    messages.success(request, _("Reset to defaults."))
    return views_base.back_to(request, reverse("console:notification_choices"))


@require_POST
@console_view
def change_language(request: HttpRequest) -> HttpResponse:
    """Change the language of the user's pages and alerts. Limited like `phone.change_phone`.

    Empty: that of the browser, and of the organization for alerts. With `stay`, the page that sent it reloads.
    """
    if not sso.may_change_account(request):
        raise PermissionDenied
    language = request.POST.get("language", "")
    if language and language not in languages.CODES:
        raise BadRequest("Unknown language.")
    is_new = accounts.change_own_language(user_of(request), language, actor=request.actor)
    if request.POST.get("stay"):
        return views_base.back_to(request, views_base.return_url(request))
    if is_new:
        with languages.override(language_of(request)):
            messages.success(request, _("Language saved."))
    return views_base.back_to(request, reverse("console:notification_choices"))


def render_settings(request: HttpRequest, *, status: int = 200, **more: Any) -> HttpResponse:
    """Render the page, with `more` in its context: what was entered, and errors."""
    user, region = user_of(request), request.organization.default_region or None
    choices = [
        choice for choice in services.choices_of(user, request.organization.pk) if _can_reach(choice, request.role)
    ]
    context = {
        "current": "notifications",
        "tab": "choices",
        "person": user,
        "may_change_account": sso.may_change_account(request),
        "choices": [
            {"choice": choice, "boxes": _boxes(choice), "note": _note(choice, request.role)} for choice in choices
        ],
        "any_own": any(choice.is_own for choice in choices),
        "may_text": telephony.may_text(request.organization.pk, user.phone) if user.phone else True,
        "opted_out": bool(user.phone) and telephony.is_opted_out(request.organization.pk, user.phone),
        "phone": PhoneInput(region).format_value(user.phone) or "",
        "phone_example": phone_example(region),
        "confirmation": phone_confirmation.state_of(request.organization.pk, user),
        "languages": languages.OWN_NAMES,
        **channel_context(request),
        **push_context(request),
        **more,
    }
    return views_base.render_page(request, "console/notices/choosing.html", context, status=status)


def _can_reach(choice: Choice, role: str) -> bool:
    """Return whether this kind can reach the user.

    Notifications for admins never go to dispatchers, except about what belongs to the dispatcher.
    """
    is_for_role = role == Membership.Role.ADMIN or choice.to != rules.ADMINS
    return choice.is_enabled and (is_for_role or bool(choice.rule.owner))


def _note(choice: Choice, role: str) -> str:
    if role != Membership.Role.ADMIN or choice.to != rules.DISPATCHERS or choice.rule.owner:
        return ""
    if choice.is_alert:
        return _("Goes to dispatchers. You get it if nobody acknowledges it or if there is no dispatcher.")
    return _("Goes to dispatchers. You get it if there is no dispatcher.")


def _boxes(choice: Choice) -> list[dict[str, Any]]:
    """Build the table's cells in the order of WAYS: enabled, checked, or fixed text."""
    return [
        {
            "name": f"{choice.rule.kind}:{way}",
            "words": _(words),
            "on": getattr(choice.wants, way),
            "instead": _fixed_text(choice, way),
        }
        for way, words in WAYS.items()
    ]


def _fixed_text(choice: Choice, way: str) -> str | None:
    """Return the text of a cell without a choice, or None.

    An alert is always shown, a quiet kind is only listed, and only alerts call.
    """
    if way == "shown":
        return {rules.CRITICAL: _("Always shown"), rules.QUIET: _("In the list only")}.get(choice.level)
    return "" if way == "voice" and not choice.is_alert else None


def _save(request: HttpRequest) -> int:
    user, count = user_of(request), 0
    for choice in services.choices_of(user, request.organization.pk):
        if not _can_reach(choice, request.role) or choice.rule.kind not in request.POST.getlist("kind"):
            continue
        chosen = {
            way: (
                f"{choice.rule.kind}:{way}" in request.POST
                if _fixed_text(choice, way) is None
                else getattr(choice.wants, way)
            )
            for way in WAYS
        }
        if Wants(**chosen) != choice.wants:
            services.save_preference(
                user, request.organization.pk, choice.rule.kind, Wants(**chosen), actor=request.actor
            )
            count += 1
    return count
