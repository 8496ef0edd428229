"""The job panel: all facts of one job, and the actions available now."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from accounts.admin.stored_values import list_pairs
from accounts.models import Organization
from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.board import technician_picker
from dispatch.console.board.cards import cards_of, with_action_data
from dispatch.console.board.notes import build_notes
from dispatch.console.board.thread import build_thread
from dispatch.console.views_base import console_view
from dispatch.core.api.problems import Conflict
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.jobs import policies, rules
from dispatch.jobs.action_forms import (
    BUTTONS,
    PRIMARY,
    ActionForm,
    allowed_actions,
    button_of,
    describe_consequence,
    describe_obstacle,
    describe_refusal,
    perform_action,
)
from dispatch.jobs.models import Candidate, Job, Offer
from dispatch.jobs.reasons import translate_reason
from dispatch.jobs.rules import Action
from dispatch.jobs.services.notices import describe_deferred
from dispatch.jobs.timeline import MAX_ENTRIES, load_timeline
from dispatch.jobs.window_fields import NAMES as WINDOW_FIELDS
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import rest_words
from notifications import services as notifications
from notifications.models import Claim, Notification

DONE = {
    Action.ASSIGN: mark("assigned"),
    Action.DISPATCH_AGAIN: mark("dispatched again"),
    Action.CALL_NEXT: mark("calling the next technician"),
    Action.EXTEND: mark("more time added"),
    Action.PAUSE: mark("paused"),
    Action.RESUME: mark("resumed"),
    Action.CORRECT: mark("corrected"),
    Action.CANNOT_MAKE_IT: mark("given back, calling the next technician"),
    Action.CANCEL: mark("canceled"),
    Action.ON_THE_WAY: mark("on the way"),
    Action.REPORT_LATE: mark("running late"),
    Action.MARK_STARTED: mark("started"),
    Action.COMPLETE: mark("completed"),
    Action.REOPEN: mark("reopened"),
    Action.MERGE_DUPLICATE: mark("merged into the other job"),
    Action.NOT_A_DUPLICATE: mark("not a duplicate"),
    Action.TECHNICIAN_TOLD: mark("the technician was informed of the change"),
}
# The board's keyboard shortcuts, shown on the buttons.
KEYS = {
    Action.ASSIGN: "a",
    Action.CALL_NEXT: "c",
    Action.PAUSE: "p",
    Action.RESUME: "p",
    Action.REPORT_LATE: "l",
}
MAX_EARLIER = 5
MAX_FLAGGED = 10
_ABOUT_DUPLICATES = (Action.MERGE_DUPLICATE, Action.NOT_A_DUPLICATE)
_OFFER_TONES = {"pending": "calling", "accepted": "good", "rescinded": "off"}
_VERDICTS = {
    "in": ("good", mark("Eligible")),
    "deferred": ("waiting", mark("Has another offer")),
    "out": ("plain", mark("Not eligible")),
}


@console_view
def show_panel(request: HttpRequest, job_id: int) -> HttpResponse:
    """Render the panel; `?part=body` renders the part that changes. A full page load redirects to the board."""
    job = job_of(request, job_id)
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(f"{reverse('console:board')}?job={job.pk}")
    part = "_drawer_body" if request.GET.get("part") == "body" else "_drawer"
    return views_base.render_fragment(request, f"console/board/{part}.html", build_panel(request, job))


@require_http_methods(["GET", "POST"])
@console_view
def handle_action(request: HttpRequest, job_id: int, action: str) -> HttpResponse:
    """Ask to confirm an action and show its consequence; on POST, perform it on the version that was seen.

    `?part=state` renders whether the action of an open form is still possible, if that differs from `shown`.
    """
    job = job_of(request, job_id)
    try:
        chosen = Action(action.replace("-", "_"))
        BUTTONS[chosen]
    except (ValueError, KeyError):
        raise Http404 from None
    if request.GET.get("part") == "state" and views_base.is_fragment(request):
        return _render_state(request, chosen, job)
    sent = request.POST if request.method == "POST" and "search" not in request.POST else None
    entered = request.POST if request.method == "POST" else request.GET
    form = ActionForm(
        sent, action=chosen, job=job, initial={"version": job.version, **_entered_values(entered, form_of=chosen)}
    )
    refused: list[str] = []
    conflict = None
    if sent is not None and form.is_valid():
        try:
            result = perform_action(chosen, job, form.cleaned_data, request.actor)
        except Conflict as raised:
            conflict = raised
        except ValidationError as error:
            refused = error.messages
        else:
            if result.is_done:
                return _render_result(request, job.pk, chosen, result.warnings)
            refused = [*result.warnings, _("To assign the job anyway, check “Assign anyway”.")]
        job = job_of(request, job_id)
        form.show_current(job)
    if conflict is not None:
        refused = describe_refusal(conflict, describe_obstacle(chosen, job))
    status = 409 if refused else 422 if sent is not None else 200
    context = {**build_panel(request, job), "ask": _render_confirmation(request, chosen, job, form, refused)}
    if views_base.is_fragment(request):
        return views_base.render_fragment(request, "console/board/_drawer.html", context, status=status)
    return views_base.render_page(
        request, "console/board/act.html", {**context, "current": "board"}, status=status
    )


def job_of(request: HttpRequest, job_id: int) -> Job:
    """Return the organization's job. Raise Http404 for a job of another organization."""
    job: Job = get_object_or_404(with_action_data(request.organization), pk=job_id)
    return job


def build_panel(request: HttpRequest, job: Job) -> dict[str, Any]:
    """Build the panel's context. Marks the user's notifications about the job read."""
    person = user_of(request)
    about = Notification.objects.of(job.organization_id).filter(
        subject_type="job", subject_id=job.pk, read_at=None
    )
    if ids := list(about.filter(user=person).values_list("pk", flat=True)):
        notifications.read(person, job.organization_id, ids)
    card = cards_of([job])[0]
    ringing = any(live.counts_down for live in card.live)
    primary = PRIMARY.get(job.status)
    legal = allowed_actions(job, ringing=ringing)
    policy = policies.frozen_policy(job)
    return {
        "card": card,
        "job": job,
        "claim": Claim.objects.of(job.organization_id).filter(subject_type="job", subject_id=job.pk).first(),
        "buttons": [
            _button(job, action, action is primary)
            for action in sorted(legal, key=lambda action: (action is not primary, BUTTONS[action][2]))
            if action not in _ABOUT_DUPLICATES
        ],
        "duplicate": _duplicate(job, [action for action in legal if action in _ABOUT_DUPLICATES]),
        **_flagged(job),
        "deferred": describe_deferred(job) if job.has_uninformed_technician else [],
        "candidates": _candidates(job),
        "rest": rest_words(job.out_of_reach),
        "entries": list(reversed(load_timeline(job))),
        "max_entries": MAX_ENTRIES,
        "policy": policy,
        "at_once": rules.offers_wanted(policy, job.priority),
        "radius_m": policies.search_radius(job),
        "widest_m": policies.widest_radius(job),
        "extra": list_pairs(job.extra),
        "me": person.pk,
        "thread": build_thread(job),
        "notes": build_notes(request, job),
        "earlier": find_earlier_jobs(job.organization, str(job.customer_phone), other_than=job.pk),
    }


def find_earlier_jobs(organization: Organization, phone: str, *, other_than: int = 0) -> list[Job]:
    """Return the customer's latest jobs, newest first, without the job `other_than`. `phone`: E.164."""
    if not phone:
        return []
    rows = Job.objects.of(organization).filter(customer_phone=phone).select_related("service_type", "technician")
    return [job for job in rows.order_by("-id")[: MAX_EARLIER + 1] if job.pk != other_than][:MAX_EARLIER]


def _flagged(job: Job) -> dict[str, Any]:
    """Return the first open jobs that may duplicate this one, and the number of all."""
    jobs = job.duplicates.filter(duplicate_state=Job.DuplicateState.POSSIBLE, ended_at=None).order_by("pk")
    shown = list(jobs[:MAX_FLAGGED])
    count = jobs.count() if len(shown) == MAX_FLAGGED else len(shown)
    return {"flagged": shown, "flagged_count": count, "more_flagged": count - len(shown)}


def _duplicate(job: Job, legal: list[Action]) -> dict[str, Any] | None:
    """Return the job that this one may duplicate, what they share, and the buttons; None if it isn't flagged."""
    if not job.is_possible_duplicate or job.duplicate_of is None:
        return None
    other = job.duplicate_of
    same = [
        words
        for words, is_same in (
            (_("same phone number"), other.customer_phone == job.customer_phone),
            (_("same address"), bool(job.address_key) and other.address_key == job.address_key),
        )
        if is_same
    ]
    buttons = [_button(job, action, False) | {"kind": ""} for action in legal]
    return {"job": other, "same": ", ".join(same), "buttons": buttons}


def _button(job: Job, action: Action, is_primary: bool) -> dict[str, Any]:
    slug = str(action).replace("_", "-")
    return {
        "name": slug,
        "address": reverse("console:act", args=[job.pk, slug]),
        "words": button_of(action, job)[0].rstrip("…"),
        "kind": "primary" if is_primary else "danger" if BUTTONS[action][2] else "",
        "key": KEYS.get(action, ""),
    }


def _candidates(job: Job) -> list[dict[str, Any]]:
    """Return the ranking, with the result of each offer."""
    offers: dict[int, list[Offer]] = {}
    for offer in job.offers.order_by("attempt"):
        offers.setdefault(offer.technician_id, []).append(offer)
    rows = list(Candidate.objects.filter(job=job).select_related("technician").order_by("rank"))
    known = {row.technician_id for row in rows}
    candidates = [
        {
            "name": row.technician.name,
            "phone": row.technician.phone,
            "rank": row.rank,
            "distance_m": row.distance_m,
            "travel_s": row.travel_s,
            "reason": translate_reason(row.reason),
            "verdict": _translated(_VERDICTS[row.verdict]),
            "offers": [_offer(offer) for offer in offers.get(row.technician_id, [])],
        }
        for row in rows
    ]
    missing = [pk for pk in offers if pk not in known]  # ranked in an earlier dispatch
    for technician in Technician.objects.filter(pk__in=missing):
        group = offers[technician.pk]
        candidates.append(
            {
                "name": technician.name,
                "phone": technician.phone,
                "rank": "",
                "distance_m": group[-1].distance_m,
                "travel_s": None,
                "reason": _("called in an earlier dispatch"),
                "verdict": _translated(_VERDICTS["out"]),
                "offers": [_offer(offer) for offer in group],
            }
        )
    return candidates


def _translated(verdict: tuple[str, str]) -> tuple[str, str]:
    tone, words = verdict
    return tone, _(words)


def _offer(offer: Offer) -> dict[str, Any]:
    words = _("Calling") if offer.status == Offer.Status.PENDING else _(str(offer.get_status_display()))
    return {"row": offer, "tone": _OFFER_TONES.get(offer.status, "late"), "words": words}


def _entered_values(entered: Any, *, form_of: Action) -> dict[str, Any]:
    """Return the values that were entered before a search for another technician, or chosen on the timeline."""
    if form_of is Action.CORRECT:
        names = (*WINDOW_FIELDS, "expected_minutes")
        return {name: entered[name][:10] for name in names if entered.get(name)}
    if form_of is not Action.ASSIGN:
        return {}
    values = {name: entered[name] for name in ("note", "version") if entered.get(name)}
    values |= {name: entered[name][:10] for name in WINDOW_FIELDS if entered.get(name)}
    if technician := read_id(entered.get("technician")):
        values["technician"] = technician
    return values


def _render_confirmation(
    request: HttpRequest, action: Action, job: Job, form: ActionForm, refused: list[str]
) -> dict[str, Any]:
    words, title, dangerous = button_of(action, job)
    entered = request.POST if request.method == "POST" else request.GET
    context: dict[str, Any] = {
        **_state_context(action, job),
        "action": str(action).replace("_", "-"),
        "title": title,
        "words": words.rstrip("…"),
        "dangerous": dangerous,
        "consequence": describe_consequence(action, job),
        "form": form,
        "refused": refused,
    }
    context["has_fields"] = bool(entered) or not context["obstacle"]
    if action is Action.ASSIGN and context["has_fields"]:
        chosen = str(entered.get("technician") or "")
        text = str(entered.get("who") or "")[:80]
        choices, more = technician_picker.find_choices(job, text, read_id(chosen) or 0)
        context |= {"choices": choices, "more": more, "who": text, "chosen": chosen}
    return context


def _state_context(action: Action, job: Job) -> dict[str, Any]:
    obstacle = describe_obstacle(action, job)
    return {
        "address": reverse("console:act", args=[job.pk, str(action).replace("_", "-")]),
        "obstacle": obstacle,
        "shown": job.version if obstacle else 0,
    }


def _render_state(request: HttpRequest, action: Action, job: Job) -> HttpResponse:
    """Render whether the action of an open form is possible; 204 if the form shows that already."""
    ask = _state_context(action, job)
    if request.GET.get("shown") == str(ask["shown"]):
        return HttpResponse(status=204)
    return views_base.render_fragment(
        request, "console/board/_ask_state.html", {"ask": ask | {"has_fields": True}}
    )


def _render_result(request: HttpRequest, job_id: int, action: Action, warnings: tuple[str, ...]) -> HttpResponse:
    """Render the updated job, with a note about what was done and what to watch out for."""
    address = f"{reverse('console:board')}?job={job_id}"
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(address)
    answer = views_base.render_fragment(
        request, "console/board/_drawer.html", build_panel(request, job_of(request, job_id))
    )
    said = " ".join((_("Job #{job}: {done}.").format(job=job_id, done=_(DONE[action])), *warnings))
    return views_base.with_note(answer, said, *(["late"] if warnings else []))
