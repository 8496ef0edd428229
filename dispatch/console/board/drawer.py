"""One job with all that is known of it, and what may be done to it now."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from accounts.current import person_of
from dispatch.console import web
from dispatch.console.board import picker
from dispatch.console.board.cards import cards_of, shown
from dispatch.console.web import console_view
from dispatch.core.ids import read_id
from dispatch.core.problems import Conflict
from dispatch.jobs import policies, rules
from dispatch.jobs.decisions import BUTTONS, PRIMARY, ActionForm, consequence, perform
from dispatch.jobs.models import Candidate, Job, Offer
from dispatch.jobs.rules import Action
from dispatch.jobs.timeline import timeline
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import rest_words
from notifications import services as notifications
from notifications.models import Claim, Notification

DONE = {
    Action.ASSIGN: "assigned",
    Action.DISPATCH_AGAIN: "dispatched again",
    Action.CALL_NEXT: "the next technician is being called",
    Action.EXTEND: "more time given",
    Action.PAUSE: "paused",
    Action.RESUME: "resumed",
    Action.CANNOT_MAKE_IT: "given back, the next technician is being called",
    Action.CANCEL: "cancelled",
    Action.COMPLETE: "completed",
}
# The keys of the board, shown on the buttons.
KEYS = {Action.ASSIGN: "a", Action.CALL_NEXT: "c", Action.PAUSE: "p", Action.RESUME: "p"}
_OFFER_TONES = {"pending": "calling", "accepted": "good", "rescinded": "off"}
_VERDICTS = {"in": ("good", "In"), "deferred": ("waiting", "On another offer"), "out": ("plain", "Out")}


@console_view
def show(request: HttpRequest, job_id: int) -> HttpResponse:
    """The drawer (`?part=body`: what changes in it); for a browser that asks for a page, the board with it."""
    job = job_of(request, job_id)
    if not web.is_fragment(request):
        return HttpResponseRedirect(f"{reverse('console:board')}?job={job.pk}")
    part = "_drawer_body" if request.GET.get("part") == "body" else "_drawer"
    return web.fragment(request, f"console/board/{part}.html", drawer_of(request, job))


@require_http_methods(["GET", "POST"])
@console_view
def act(request: HttpRequest, job_id: int, action: str) -> HttpResponse:
    """Asks before an action, says what it will do, and does it on the version that was decided on."""
    job = job_of(request, job_id)
    try:
        chosen = Action(action.replace("-", "_"))
        BUTTONS[chosen]
    except (ValueError, KeyError):
        raise Http404 from None
    sent = request.POST if request.method == "POST" and "search" not in request.POST else None
    kept = request.POST if request.method == "POST" else request.GET
    form = ActionForm(
        sent, action=chosen, job=job, initial={"version": job.version, **_kept(kept, form_of=chosen)}
    )
    refused: list[str] = []
    if sent is not None and form.is_valid():
        try:
            warnings = perform(chosen, job, form.cleaned_data, request.actor)
        except Conflict as conflict:
            refused = [str(conflict.detail), "Nothing was changed. If your decision still fits, confirm it again."]
        except ValidationError as error:
            refused = error.messages
        else:
            if not warnings:
                return _done(request, job.pk, chosen)
            refused = [*warnings, "Tick “Assign even if unfit” if they should have it all the same."]
        job = job_of(request, job_id)
        form.data = {**request.POST.dict(), "version": str(job.version)}
    status = 409 if refused else 422 if sent is not None else 200
    context = {**drawer_of(request, job), "ask": _ask(request, chosen, job, form, refused)}
    if web.is_fragment(request):
        return web.fragment(request, "console/board/_drawer.html", context, status=status)
    return web.page(request, "console/board/act.html", {**context, "current": "board"}, status=status)


def job_of(request: HttpRequest, job_id: int) -> Job:
    """The organization's job. Raises Http404 for another's."""
    job: Job = get_object_or_404(shown(request.organization).select_related("organization"), pk=job_id)
    return job


def drawer_of(request: HttpRequest, job: Job) -> dict[str, Any]:
    """All that the drawer of a job shows. Looking at it marks this person's notes about it read."""
    person = person_of(request)
    about = Notification.objects.of(job.organization_id).filter(
        subject_type="job", subject_id=job.pk, read_at=None
    )
    if ids := list(about.filter(user=person).values_list("pk", flat=True)):
        notifications.read(person, job.organization_id, ids)
    card = cards_of([job])[0]
    ringing = card.live is not None and card.live.counts_down
    primary = PRIMARY.get(job.status)
    legal = rules.actions_in(job.status, paused=job.paused_at is not None, ringing=ringing)
    policy = policies.frozen(job)
    return {
        "card": card,
        "job": job,
        "claim": Claim.objects.of(job.organization_id).filter(subject_type="job", subject_id=job.pk).first(),
        "buttons": [
            _button(job, action, action is primary) for action in sorted(legal, key=lambda a: a is not primary)
        ],
        "candidates": _candidates(job),
        "rest": rest_words(job.out_of_reach),
        "entries": list(reversed(timeline(job))),
        "policy": policy,
        "extra": sorted(job.extra.items()) if isinstance(job.extra, dict) else [],
        "me": person.pk,
    }


def _button(job: Job, action: Action, is_primary: bool) -> dict[str, Any]:
    named = str(action).replace("_", "-")
    return {
        "name": named,
        "address": reverse("console:act", args=[job.pk, named]),
        "words": BUTTONS[action][0].rstrip("…"),
        "kind": "primary" if is_primary else "danger" if BUTTONS[action][2] else "",
        "key": KEYS.get(action, ""),
    }


def _candidates(job: Job) -> list[dict[str, Any]]:
    """The ranking, with what came of each offer."""
    offers: dict[int, list[Offer]] = {}
    for offer in job.offers.order_by("attempt"):
        offers.setdefault(offer.technician_id, []).append(offer)
    rows = list(Candidate.objects.filter(job=job).select_related("technician").order_by("rank"))
    known = {row.technician_id for row in rows}
    found = [
        {
            "name": row.technician.name,
            "phone": row.technician.phone,
            "rank": row.rank,
            "distance_m": row.distance_m,
            "reason": row.reason,
            "verdict": _VERDICTS[row.verdict],
            "offers": [_offer(offer) for offer in offers.get(row.technician_id, [])],
        }
        for row in rows
    ]
    missing = [pk for pk in offers if pk not in known]  # ranked in an earlier dispatch
    for technician in Technician.objects.filter(pk__in=missing):
        some = offers[technician.pk]
        found.append(
            {
                "name": technician.name,
                "phone": technician.phone,
                "rank": "",
                "distance_m": some[-1].distance_m,
                "reason": "in an earlier dispatch",
                "verdict": _VERDICTS["out"],
                "offers": [_offer(offer) for offer in some],
            }
        )
    return found


def _offer(offer: Offer) -> dict[str, Any]:
    words = "Calling" if offer.status == Offer.Status.PENDING else offer.get_status_display()
    return {"row": offer, "tone": _OFFER_TONES.get(offer.status, "late"), "words": words}


def _kept(given: Any, *, form_of: Action) -> dict[str, Any]:
    """What was filled in before a search for another technician."""
    if form_of is not Action.ASSIGN:
        return {}
    kept = {name: given[name] for name in ("note", "version") if given.get(name)}
    if technician := read_id(given.get("technician")):
        kept["technician"] = technician
    return kept


def _ask(request: HttpRequest, action: Action, job: Job, form: ActionForm, refused: list[str]) -> dict[str, Any]:
    words, title, dangerous = BUTTONS[action]
    asked: dict[str, Any] = {
        "action": str(action).replace("_", "-"),
        "address": reverse("console:act", args=[job.pk, str(action).replace("_", "-")]),
        "title": title,
        "words": words.rstrip("…"),
        "dangerous": dangerous,
        "consequence": consequence(action, job),
        "form": form,
        "refused": refused,
    }
    if action is Action.ASSIGN:
        given = request.POST if request.method == "POST" else request.GET
        chosen = str(given.get("technician") or "")
        text = str(given.get("who") or "")[:80]
        found, more = picker.choices(job, text, read_id(chosen) or 0)
        asked |= {"choices": found, "more": more, "who": text, "chosen": chosen}
    return asked


def _done(request: HttpRequest, job_id: int, action: Action) -> HttpResponse:
    """The job as it is then, and a note of what was done."""
    address = f"{reverse('console:board')}?job={job_id}"
    if not web.is_fragment(request):
        return HttpResponseRedirect(address)
    answer = web.fragment(request, "console/board/_drawer.html", drawer_of(request, job_of(request, job_id)))
    return web.noted(answer, f"Job #{job_id}: {DONE[action]}.")
