"""What is to reach one, and how: one line for each kind of event, and the phone that alerts call."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST
from phonenumber_field.phonenumber import PhoneNumber
from phonenumbers import NumberParseException

from accounts import services as accounts
from accounts.current import person_of
from accounts.models import Membership
from dispatch.console import web
from dispatch.console.web import console_view
from dispatch.telephony import services as telephony
from dispatch.telephony.rules import why_not_callable
from notifications import rules, services
from notifications.services.preferences import Choice, Wants

WAYS = {"shown": "On screen", "email": "E-mail", "sms": "Text", "voice": "Call"}


@require_http_methods(["GET", "POST"])
@console_view
def page(request: HttpRequest) -> HttpResponse:
    """The table; each box is named `<kind>:<way>`. Only what differs from before is written."""
    if request.method == "POST":
        count = _save(request)
        messages.success(request, "Saved." if count else "Nothing was changed.")
        return web.back_to(request, reverse("console:notification_choices"))
    return _shown(request)


@require_POST
@console_view
def usual(request: HttpRequest) -> HttpResponse:
    """Takes the choices back."""
    services.forget_preferences(person_of(request), request.organization.pk, actor=request.actor)
    messages.success(request, "Everything reaches you as usual again.")
    return web.back_to(request, reverse("console:notification_choices"))


@require_POST
@console_view
def phone(request: HttpRequest) -> HttpResponse:
    """Changes the person's own number; empty: none."""
    given = request.POST.get("phone", "").strip()
    error, number = "", ""
    if given:
        number, error = _read_phone(given, request)
    if error:
        return _shown(request, status=422, phone=given, phone_error=error)
    if accounts.change_own_phone(person_of(request), number, actor=request.actor):
        messages.success(request, "Your number is saved." if number else "Your number is removed.")
    return web.back_to(request, reverse("console:notification_choices"))


def _read_phone(given: str, request: HttpRequest) -> tuple[str, str]:
    """(E.164, "") or ("", what is wrong with it)."""
    try:
        number = PhoneNumber.from_string(given, region=request.organization.default_region)
    except NumberParseException:
        return "", "That is not a phone number. Write it as +16025550123."
    if not number.is_valid():
        return "", "There is no such number. Write it as +16025550123."
    why = why_not_callable(number.as_e164, request.organization.allowed_countries)
    return ("", f"{request.organization} cannot call it: {why}") if why else (number.as_e164, "")


def _shown(request: HttpRequest, *, status: int = 200, **more: Any) -> HttpResponse:
    user = person_of(request)
    choices = [one for one in services.choices_of(user, request.organization.pk) if _reaches(one, request.role)]
    context = {
        "current": "notifications",
        "tab": "choices",
        "person": user,
        "choices": [{"choice": one, "boxes": _boxes(one), "note": _note(one, request.role)} for one in choices],
        "any_own": any(one.is_own for one in choices),
        "may_text": telephony.may_text(request.organization.pk, user.phone) if user.phone else True,
        "opted_out": bool(user.phone) and telephony.is_opted_out(request.organization.pk, user.phone),
        "phone": str(user.phone or ""),
        **more,
    }
    return web.page(request, "console/notices/choosing.html", context, status=status)


def _reaches(choice: Choice, role: str) -> bool:
    """Whether it can reach such a person: what is for admins never goes to dispatchers."""
    return choice.is_told and (role == Membership.Role.ADMIN or choice.to == rules.DISPATCHERS)


def _note(choice: Choice, role: str) -> str:
    if role != Membership.Role.ADMIN or choice.to == rules.ADMINS:
        return ""
    if choice.is_alert:
        return "Goes to dispatchers; to you when nobody takes it on, or when there is no dispatcher."
    return "Goes to dispatchers; to you when there is none."


def _boxes(choice: Choice) -> list[dict[str, Any]]:
    """The table's cells, in the order of WAYS: what may be ticked, what is, and what stands there instead."""
    return [
        {
            "name": f"{choice.rule.kind}:{way}",
            "words": words,
            "on": getattr(choice.wants, way),
            "instead": _instead(choice, way),
        }
        for way, words in WAYS.items()
    ]


def _instead(choice: Choice, way: str) -> str | None:
    """What stands there where nothing can be chosen: an alert is always shown, what is quiet is only listed, and
    only alerts call. None: it can."""
    if way == "shown":
        return {rules.CRITICAL: "Always shown", rules.QUIET: "In the list"}.get(choice.level)
    return "" if way == "voice" and not choice.is_alert else None


def _save(request: HttpRequest) -> int:
    user, count = person_of(request), 0
    for choice in services.choices_of(user, request.organization.pk):
        if not _reaches(choice, request.role) or choice.rule.kind not in request.POST.getlist("kind"):
            continue
        chosen = {
            way: (
                f"{choice.rule.kind}:{way}" in request.POST
                if _instead(choice, way) is None
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
