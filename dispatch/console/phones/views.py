"""/phones/: the page, its news, and what is done on a phone."""

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

from dispatch.console.phones import simulator
from dispatch.console.phones.people import Handset, handsets
from dispatch.core.ids import read_id

WAIT_S = 8.0
KEYS = "123456789*0#"
NOTHING: dict[str, Any] = {"taken": False, "does": "", "calls": [], "texts": []}


def development_only(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """There is no such page anywhere else."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not settings.DEVELOPMENT:
            raise Http404
        return view(request, *args, **kwargs)

    return never_cache(guarded)


@development_only
@require_GET
def page(request: HttpRequest) -> HttpResponse:
    problem, version = "", 0
    states: dict[str, dict[str, Any]] = {}
    try:
        version, states = simulator.phones()
    except simulator.NotThere:
        problem = "The telephone simulator does not answer. `make up` starts it."
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in handsets():
        groups.setdefault(one.organization, []).append(_shown(one, states.get(one.number)))
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
    """The live part of each phone that changed since `after`; waits a few seconds for one."""
    after = read_id(request.GET.get("after")) or 0
    if not connection.in_atomic_block:
        connection.close()  # others may have it while this one waits
    try:
        version, changed = simulator.changed_since(after, WAIT_S)
        if not changed:
            return JsonResponse({"version": version, "phones": {}})
        _, states = simulator.phones()  # perhaps newer than `version`: then the next question brings it once more
    except (simulator.NotThere, simulator.Refused):
        return JsonResponse({"problem": "The telephone simulator does not answer."}, status=503)
    everybody = "*" in changed
    found = {}
    for one in handsets():
        if everybody or one.number in changed:
            shown = _shown(one, states.get(one.number))
            html = render_to_string("phones/_live.html", {**shown, "keys": KEYS}, request)
            found[one.key] = {"html": html, "state": shown["state"], "heard": shown["heard"]}
    return JsonResponse({"version": version, "phones": found})


@development_only
@require_POST
def act(request: HttpRequest, key: str, action: str) -> HttpResponse:
    """Answers, presses, texts …, and says what went wrong in a sentence."""
    problem = ""
    one = next((one for one in handsets() if one.key == key), None)
    try:
        if one is None or action not in _ACTIONS:
            raise Http404
        _ACTIONS[action](one, request.POST)
    except simulator.NotThere:
        problem = "The telephone simulator does not answer."
    except simulator.Refused as refused:
        problem = f"That did not work: {refused}."
    if "application/json" in request.headers.get("Accept", ""):
        return JsonResponse({"problem": problem}, status=409 if problem else 200)
    query = f"?{urlencode({'problem': problem})}" if problem else ""
    return HttpResponseRedirect(f"{reverse('phones:page')}{query}#phone-{key}", status=303)


# --- what is done -----------------------------------------------------------------------------------------------


def _on_the_call(action: str) -> Callable[[Handset, Any], None]:
    def on_it(one: Handset, form: Any) -> None:
        simulator.act_on_phone(one.number, "take")  # who picks up is a person from now on
        data = {"keys": form.get("key", "")[:1]} if action == "press" else {}
        simulator.act_on_call(form.get("sid", "")[:64], action, **data)

    return on_it


def _hold(action: str) -> Callable[[Handset, Any], None]:
    return lambda one, form: simulator.act_on_phone(one.number, action)


def _text(one: Handset, form: Any) -> None:
    simulator.act_on_phone(one.number, "text", to=_line(one, form), body=form.get("body", "")[:1600])


def _call(one: Handset, form: Any) -> None:
    simulator.act_on_phone(one.number, "take")
    simulator.act_on_phone(one.number, "call", to=_line(one, form))


def _line(one: Handset, form: Any) -> str:
    line = str(form.get("line") or form.get("to", ""))  # the line that rang, or the one that was chosen
    return line if line in one.lines else (one.lines[0] if one.lines else "")


_ACTIONS: dict[str, Callable[[Handset, Any], None]] = {
    "answer": _on_the_call("answer"),
    "decline": _on_the_call("reject"),
    "hang_up": _on_the_call("hang_up"),
    "press": _on_the_call("press"),
    "take": _hold("take"),
    "release": _hold("release"),
    "text": _text,
    "call": _call,
}


def _shown(one: Handset, state: dict[str, Any] | None) -> dict[str, Any]:
    state = state or NOTHING
    call = next((call for call in state["calls"] if not call["over"]), None)
    last = None if call else next(iter(state["calls"]), None)
    latest = call or last
    return {
        "one": one,
        "taken": state["taken"],
        "call": call,
        "last": last,
        "ended": datetime.fromtimestamp(last["ended_at"], UTC) if last and last["ended_at"] else None,
        "texts": state["texts"][::-1],
        # what the script needs: does it ring, and what was said
        "state": call["status"] if call else "idle",
        "heard": _heard(latest) if latest and state["taken"] else None,
    }


def _heard(call: dict[str, Any]) -> dict[str, Any]:
    """What the script reads aloud; `cut` when the person hung up, who wants to hear no more."""
    return {"sid": call["sid"], "said": call["said"], "cut": call["ended_by"] == "control"}
