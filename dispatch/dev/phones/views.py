"""Serve /phones/: the page, its updates, and actions on a phone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from dispatch.core.ids import read_id
from dispatch.dev.phones import simulator
from dispatch.dev.phones.people import Handset, handsets

WAIT_S = 8.0
KEYS = "123456789*0#"
NOTHING: dict[str, Any] = {"taken": False, "does": "", "calls": [], "texts": []}


def development_only(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Respond with 404 outside development."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not settings.DEVELOPMENT:
            raise Http404
        return view(request, *args, **kwargs)

    return never_cache(guarded)


@development_only
@require_GET
def page(request: HttpRequest) -> HttpResponse:
    """Show the phones of all organizations."""
    problem, version = "", 0
    states: dict[str, dict[str, Any]] = {}
    try:
        version, states = simulator.phones()
    except simulator.NotThere:
        problem = "The phone simulator isn't responding. Start it with `make up`."
    groups: dict[str, list[dict[str, Any]]] = {}
    for handset in handsets():
        groups.setdefault(handset.organization, []).append(_shown(handset, states.get(handset.number)))
    context = {
        "groups": groups.items(),
        "version": version,
        "problem": problem or request.GET.get("problem", "")[:200],
        "keys": KEYS,
    }
    return render(request, "phones/page.html", context)


@development_only
@require_GET
def news(request: HttpRequest) -> HttpResponse:
    """Return the live part of each phone that changed since `after`; waits a few seconds for a change."""
    after = read_id(request.GET.get("after")) or 0
    if not connection.in_atomic_block:
        connection.close()  # frees the connection for others while this request waits
    try:
        version, changed = simulator.changed_since(after, WAIT_S)
        if not changed:
            return JsonResponse({"version": version, "phones": {}})
        _, states = simulator.phones()  # may be newer than `version`; then the next request returns them once more
    except (simulator.NotThere, simulator.Refused):
        return JsonResponse({"problem": "The phone simulator isn't responding."}, status=503)
    is_full = "*" in changed
    phones = {}
    for handset in handsets():
        if is_full or handset.number in changed:
            shown = _shown(handset, states.get(handset.number))
            html = render_to_string("phones/_live.html", {**shown, "keys": KEYS}, request)
            phones[handset.key] = {"html": html, "state": shown["state"], "heard": shown["heard"]}
    return JsonResponse({"version": version, "phones": phones})


@development_only
@require_POST
def act(request: HttpRequest, key: str, action: str) -> HttpResponse:
    """Answer, press a key, send a text and so on; on failure, return a sentence that says why."""
    problem = ""
    handset = next((each for each in handsets() if each.key == key), None)
    try:
        if handset is None or action not in _ACTIONS:
            raise Http404
        _ACTIONS[action](handset, request.POST)
    except simulator.NotThere:
        problem = "The phone simulator isn't responding."
    except simulator.Refused as refused:
        problem = f"That didn't work: {refused}."
    if "application/json" in request.headers.get("Accept", ""):
        return JsonResponse({"problem": problem}, status=409 if problem else 200)
    query = f"?{urlencode({'problem': problem})}" if problem else ""
    return HttpResponseRedirect(f"{reverse('phones:page')}{query}#phone-{key}", status=303)


# --- Actions -----------------------------------------------------------------------------------------------------


def _call_action(action: str) -> Callable[[Handset, Any], None]:
    def act_on_it(handset: Handset, form: Any) -> None:
        simulator.act_on_phone(handset.number, "take")  # from now on a person controls this phone
        data = {"keys": form.get("key", "")[:1]} if action == "press" else {}
        simulator.act_on_call(form.get("sid", "")[:64], action, **data)

    return act_on_it


def _phone_action(action: str) -> Callable[[Handset, Any], None]:
    return lambda handset, form: simulator.act_on_phone(handset.number, action)


def _text(handset: Handset, form: Any) -> None:
    simulator.act_on_phone(handset.number, "text", to=_line(handset, form), body=form.get("body", "")[:1600])


def _call(handset: Handset, form: Any) -> None:
    simulator.act_on_phone(handset.number, "take")
    simulator.act_on_phone(handset.number, "call", to=_line(handset, form))


def _line(handset: Handset, form: Any) -> str:
    line = str(form.get("line") or form.get("to", ""))  # the number that called, or the chosen one
    return line if line in handset.lines else (handset.lines[0] if handset.lines else "")


_ACTIONS: dict[str, Callable[[Handset, Any], None]] = {
    "answer": _call_action("answer"),
    "decline": _call_action("reject"),
    "hang_up": _call_action("hang_up"),
    "press": _call_action("press"),
    "take": _phone_action("take"),
    "release": _phone_action("release"),
    "text": _text,
    "call": _call,
}


def _shown(handset: Handset, state: dict[str, Any] | None) -> dict[str, Any]:
    state = state or NOTHING
    call = next((call for call in state["calls"] if not call["over"]), None)
    last = None if call else next(iter(state["calls"]), None)
    latest = call or last
    return {
        "handset": handset,
        "taken": state["taken"],
        "call": call,
        "last": last,
        "ended": datetime.fromtimestamp(last["ended_at"], UTC) if last and last["ended_at"] else None,
        "texts": state["texts"][::-1],
        # For the script: whether it rings, and the text spoken
        "state": call["status"] if call else "idle",
        "heard": _spoken_text(latest) if latest and state["taken"] else None,
    }


def _spoken_text(call: dict[str, Any]) -> dict[str, Any]:
    """Return the text that the script reads aloud. `cut`: the person hung up, so reading stops."""
    return {
        "sid": call["sid"],
        "said": call["said"],
        "language": call["language"],
        "cut": call["ended_by"] == "control",
    }
