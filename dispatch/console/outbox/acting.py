"""What people do: retry, ignore, resolve and cancel messages, one, those chosen or all that a filter finds; pause,
resume, disable, enable and try out endpoints."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseForbidden, QueryDict
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_POST

from accounts.models import Membership
from dispatch.console import web
from dispatch.console.outbox import reading
from dispatch.console.web import console_view
from dispatch.core.ids import read_ids
from dispatch.outbox.models import Message
from dispatch.outbox.services import by_hand, endpoints, targets
from dispatch.outbox.services.by_hand import Action

MOST_BY_FILTER = 10_000
LONGEST_NOTE = 500


@dataclass(frozen=True)
class Words:
    """What a person reads before and after an action."""

    button: str
    question: str
    says: str


WORDS = {
    Action.RETRY: Words(
        "Retry",
        "Send again?",
        "With a fresh budget of retries; the history is kept, and the groups go on in order.",
    ),
    Action.IGNORE: Words(
        "Ignore", "Give up on this?", "Cancelled without being sent again; the groups go on without."
    ),
    Action.RESOLVE: Words(
        "Resolve", "Was it settled otherwise?", "Completed without being sent again; the groups go on."
    ),
    Action.CANCEL: Words(
        "Cancel", "Not send this?", "What waits is never sent. A call that is under way may still arrive."
    ),
}


@require_POST
@console_view
def act(request: HttpRequest) -> HttpResponse:
    """`action`, and `ids`, or `all=1` with the list's `filters`. First it is asked whether that is meant."""
    try:
        action = Action.of(request.POST.get("action", ""))
    except KeyError:
        return HttpResponseBadRequest("There is no such action.")
    ids = _chosen(request, action)
    back = _back(request)
    if not ids:
        is_all = request.POST.get("all") == "1"
        wanted = "in error" if action.before == ("ERROR",) else "on its way"
        nothing = f"None of them is {wanted}." if is_all else "Nothing is chosen: tick messages first."
        messages.warning(request, nothing)
        return web.back_to(request, back)
    if request.POST.get("sure") != "1":
        return _ask(request, action, ids, back)
    note = request.POST.get("note", "").strip().replace("\x00", "")[:LONGEST_NOTE]
    done = by_hand.act(action, ids, actor=request.actor, note=note)
    if done.changed or not done.refused:
        messages.success(request, f"{_many(len(done.changed))} {action.verb}.")
    if done.refused:
        wanted = "only an error can be" if action.before == ("ERROR",) else "only what has not ended can be"
        stood = ", ".join(sorted({status.lower() for status in done.refused.values()}))
        messages.warning(
            request, f"{_many(len(done.refused))} not {action.verb}: {wanted}, and these are {stood}."
        )
    return web.back_to(request, back)


def _ask(request: HttpRequest, action: Action, ids: list[int], back: str) -> HttpResponse:
    own = Message.objects.of(request.organization.pk).filter(pk__in=ids)
    fit = own.filter(status__in=action.before)
    return web.page(
        request,
        "console/outbox/sure.html",
        {
            "current": "outbox", "tab": "messages", "counts": reading.counts(request.organization.pk),
            "action": action, "words": WORDS[action], "ids": ids,
            "number": len(ids), "fitting": fit.count(), "groups": fit.values("group").distinct().count(),
            "first": list(fit.select_related("endpoint", "group").order_by("id")[:10]), "back": back,
            "filters": request.POST.get("filters", ""), "everything": request.POST.get("all") == "1",
            "is_cut": len(ids) == MOST_BY_FILTER, "most": MOST_BY_FILTER,
        },
    )  # fmt: skip


def _chosen(request: HttpRequest, action: Action) -> list[int]:
    """Ids of this organization's messages, the oldest first: those that were ticked, or of all that the filters
    find those to which it can be done."""
    if request.POST.get("all") == "1":
        found = reading.messages_in(request.organization.pk, QueryDict(request.POST.get("filters", "")))
        found = found.filter(status__in=action.before)
    else:
        found = Message.objects.of(request.organization.pk).filter(pk__in=read_ids(request.POST.getlist("ids")))
    return list(found.order_by("id").values_list("pk", flat=True)[:MOST_BY_FILTER])


@require_POST
@console_view
def act_on_endpoint(request: HttpRequest, endpoint_id: int) -> HttpResponse:
    """`action` is pause, resume, test, or for an Admin disable or enable; `reason` says why."""
    endpoint = get_object_or_404(reading.endpoints_of(request.organization.pk), pk=endpoint_id)
    reason = request.POST.get("reason", "").strip().replace("\x00", "")[:200]
    action = request.POST.get("action", "")
    if action in ("disable", "enable") and request.role != Membership.Role.ADMIN:
        return HttpResponseForbidden("Only an Admin disables and enables endpoints.")
    match action:
        case "test":
            message_id = endpoints.send_test(endpoint, actor=request.actor)
            messages.success(request, "The test message is on its way; this page follows it.")
            return web.back_to(request, reverse("console:outbox_message", args=[message_id]))
        case "pause":
            done = targets.pause(endpoint.pk, reason, actor=request.actor)
            told = "Paused. Its messages are kept." if done else "It was paused already."
        case "resume":
            done = targets.resume(endpoint.pk, actor=request.actor)
            told = "Resumed: what waited goes on." if done else "It was not paused."
        case "disable":
            done = targets.disable(endpoint.pk, reason or "By hand.", actor=request.actor)
            told = "Disabled. Its messages are kept." if done else "It was disabled already."
        case "enable":
            done = targets.enable(endpoint.pk, actor=request.actor)
            told = "Enabled: what waited goes on." if done else "It was not disabled."
        case _:
            return HttpResponseBadRequest("There is no such action.")
    messages.success(request, told)
    return web.back_to(request, reverse("console:outbox_endpoint", args=[endpoint.pk]))


def _back(request: HttpRequest) -> str:
    """Where the form stood, if that is one of the outbox's pages."""
    address, home = request.POST.get("back", ""), reverse("console:outbox")
    is_ours = address.startswith(home) and "\\" not in address and address.isprintable()
    return address if is_ours else reverse("console:outbox_messages")


def _many(number: int) -> str:
    return "1 message" if number == 1 else f"{number:,} messages"
