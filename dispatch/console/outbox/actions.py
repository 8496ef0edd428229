"""Handle the actions on messages and endpoints.

Messages are retried, ignored, resolved, canceled and replayed: one of them, the selected ones, or all that match
the filters. Endpoints are paused, resumed, disabled, enabled and tested.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseForbidden, QueryDict
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_POST

from accounts.models import Membership
from dispatch.console import views_base
from dispatch.console.outbox import queries
from dispatch.console.views_base import console_view
from dispatch.core.api.problems import LimitReached
from dispatch.core.ids import read_ids
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, ngettext
from dispatch.outbox.models import Message, Status
from dispatch.outbox.services import actions, endpoints, target_health
from dispatch.outbox.services.actions import Action

MAX_BY_FILTER = 10_000
MAX_NOTE_LENGTH = 500


@dataclass(frozen=True)
class ActionTexts:
    """The texts shown before an action. `refuses`: if no selected message allows it."""

    button: str
    question: str
    says: str
    refuses: str


WORDS = {
    Action.RETRY: ActionTexts(
        mark("Retry"),
        mark("Retry messages?"),
        mark("The attempt count is reset and the history is kept. The groups continue in order."),
        mark("Only messages in error can be retried, and none of these is selected."),
    ),
    Action.IGNORE: ActionTexts(
        mark("Ignore"),
        mark("Ignore messages?"),
        mark("Ignored messages are canceled and not sent again. Their groups continue."),
        mark("Only messages in error can be ignored, and none of these is selected."),
    ),
    Action.RESOLVE: ActionTexts(
        mark("Resolve"),
        mark("Resolve messages?"),
        mark("Resolved messages are completed and not sent again. Their groups continue."),
        mark("Only messages in error can be resolved, and none of these is selected."),
    ),
    Action.CANCEL: ActionTexts(
        mark("Cancel"),
        mark("Cancel messages?"),
        mark("A waiting message is never sent. An attempt in progress may still arrive."),
        mark("All selected messages have already ended."),
    ),
    Action.REPLAY: ActionTexts(
        mark("Replay"),
        mark("Replay messages?"),
        mark(
            "The receiver gets them again, with the same webhook-id and a header that says so. Each goes before "
            "later messages of its group."
        ),
        mark("Only completed, canceled or expired messages can be replayed, and none of these is selected."),
    ),
}
NONE_FITS = {
    Action.CANCEL: mark("None of these messages is open."),
    Action.REPLAY: mark("None of these messages is completed, canceled or expired."),
}


@require_POST
@console_view
def handle_action(request: HttpRequest) -> HttpResponse:
    """Handle `action` with `ids`, or `all=1` with the list's `filters`. Asks for confirmation first."""
    try:
        action = Action.of(request.POST.get("action", ""))
    except KeyError:
        return HttpResponseBadRequest("Unknown action.")
    ids = _selected_ids(request, action)
    back = _back(request)
    if not ids:
        if request.POST.get("all") == "1":
            nothing = NONE_FITS.get(action, mark("None of these messages is in error."))
        else:
            nothing = mark("No messages selected. Select at least one.")
        messages.warning(request, _(nothing))
        return views_base.back_to(request, back)
    if request.POST.get("sure") != "1":
        return _render_confirmation(request, action, ids, back)
    note = request.POST.get("note", "").strip().replace("\x00", "")[:MAX_NOTE_LENGTH]
    result = actions.act_on_messages(action, ids, actor=request.actor, note=note)
    if result.changed or not result.refused:
        messages.success(request, describe_changed(action, len(result.changed)))
    if result.refused:
        statuses = {_(Status(status).label).lower() for status in result.refused.values()}
        reason = _ONLY[action]
        if set(result.refused.values()) <= set(action.before):
            reason = mark("an attempt is in progress, or the content was erased")
        words = {
            "messages": _describe_count(len(result.refused)),
            "reason": _(reason).format(statuses=", ".join(sorted(statuses))),
        }
        messages.warning(request, _(_UNCHANGED[action]).format_map(words))
    return views_base.back_to(request, back)


def _render_confirmation(request: HttpRequest, action: Action, ids: list[int], back: str) -> HttpResponse:
    own = Message.objects.of(request.organization.pk).filter(pk__in=ids)
    fitting = own.filter(status__in=action.before)
    return views_base.render_page(
        request,
        "console/outbox/sure.html",
        {
            "current": "outbox", "tab": "messages", "counts": queries.count_outbox(request.organization.pk),
            "action": action, "words": WORDS[action], "ids": ids,
            "number": len(ids), "fitting": fitting.count(), "groups": fitting.values("group").distinct().count(),
            "first": list(fitting.select_related("endpoint", "group").order_by("id")[:10]), "back": back,
            "filters": request.POST.get("filters", ""), "everything": request.POST.get("all") == "1",
            "is_cut": len(ids) == MAX_BY_FILTER, "most": MAX_BY_FILTER,
        },
    )  # fmt: skip


def _selected_ids(request: HttpRequest, action: Action) -> list[int]:
    """Return the ids of this organization's messages to act on, oldest first.

    These are the selected messages, or those that match the filters and allow the action.
    """
    if request.POST.get("all") == "1":
        matches = queries.messages_in(request.organization.pk, QueryDict(request.POST.get("filters", "")))
        matches = matches.filter(status__in=action.before)
    else:
        matches = Message.objects.of(request.organization.pk).filter(pk__in=read_ids(request.POST.getlist("ids")))
    return list(matches.order_by("id").values_list("pk", flat=True)[:MAX_BY_FILTER])


@require_POST
@console_view
def act_on_endpoint(request: HttpRequest, endpoint_id: int) -> HttpResponse:
    """Handle `action`: pause, resume, test or, for admins, disable or enable. `reason` is recorded."""
    endpoint = get_object_or_404(queries.endpoints_of(request.organization.pk), pk=endpoint_id)
    reason = request.POST.get("reason", "").strip().replace("\x00", "")[:200]
    action = request.POST.get("action", "")
    if action in ("disable", "enable") and request.role != Membership.Role.ADMIN:
        return HttpResponseForbidden(_("Only admins can disable and enable endpoints. Ask an admin."))
    match action:
        case "test":
            try:
                message_id = endpoints.send_test(endpoint, actor=request.actor)
            except LimitReached as error:
                messages.warning(request, _(str(error.detail)))
                return views_base.back_to(request, reverse("console:outbox_endpoint", args=[endpoint.pk]))
            messages.success(request, _("The test message is on its way. This page shows the result."))
            return views_base.back_to(request, reverse("console:outbox_message", args=[message_id]))
        case "pause":
            done = target_health.pause_endpoint(endpoint.pk, reason, actor=request.actor)
            notice = (
                mark("Endpoint paused. Its messages are kept.")
                if done
                else mark("The endpoint was already paused.")
            )
        case "resume":
            done = target_health.resume_endpoint(endpoint.pk, actor=request.actor)
            notice = (
                mark("Endpoint resumed. Waiting messages are being sent.")
                if done
                else mark("The endpoint wasn't paused.")
            )
        case "disable":
            done = target_health.disable_endpoint(endpoint.pk, reason or "Disabled manually.", actor=request.actor)
            notice = (
                mark("Endpoint disabled. Its messages are kept.")
                if done
                else mark("The endpoint was already disabled.")
            )
        case "enable":
            done = target_health.enable_endpoint(endpoint.pk, actor=request.actor)
            notice = (
                mark("Endpoint enabled. Waiting messages are being sent.")
                if done
                else mark("The endpoint wasn't disabled.")
            )
        case _:
            return HttpResponseBadRequest("Unknown action.")
    messages.success(request, _(notice))
    return views_base.back_to(request, reverse("console:outbox_endpoint", args=[endpoint.pk]))


def _back(request: HttpRequest) -> str:
    """Return the page of the submitted form if it is one of the outbox's pages, else the list of messages."""
    address, home = request.POST.get("back", ""), reverse("console:outbox")
    is_ours = address.startswith(home) and "\\" not in address and address.isprintable()
    return address if is_ours else reverse("console:outbox_messages")


_ONLY = {
    Action.RETRY: mark("only messages in error can be retried, and these are {statuses}"),
    Action.RESOLVE: mark("only messages in error can be resolved, and these are {statuses}"),
    Action.IGNORE: mark("only messages in error can be ignored, and these are {statuses}"),
    Action.CANCEL: mark("only open messages can be canceled, and these are {statuses}"),
    Action.REPLAY: mark("only completed, canceled or expired messages can be replayed, and these are {statuses}"),
}
_UNCHANGED = {
    Action.RETRY: mark("{messages} not retried: {reason}."),
    Action.RESOLVE: mark("{messages} not resolved: {reason}."),
    Action.IGNORE: mark("{messages} not ignored: {reason}."),
    Action.CANCEL: mark("{messages} not canceled: {reason}."),
    Action.REPLAY: mark("{messages} not replayed: {reason}."),
}


def describe_changed(action: Action, number: int) -> str:
    """Say how many messages an action changed: "3 messages retried."."""
    match action:
        case Action.RETRY:
            words = ngettext("{count} message retried.", "{count} messages retried.", number)
        case Action.RESOLVE:
            words = ngettext("{count} message resolved.", "{count} messages resolved.", number)
        case Action.IGNORE:
            words = ngettext("{count} message ignored.", "{count} messages ignored.", number)
        case Action.CANCEL:
            words = ngettext("{count} message canceled.", "{count} messages canceled.", number)
        case Action.REPLAY:
            words = ngettext("{count} message replayed.", "{count} messages replayed.", number)
    return words.format(count=f"{number:,}")


def _describe_count(number: int) -> str:
    return ngettext("{count} message", "{count} messages", number).format(count=f"{number:,}")
