"""The board's pages and fragments."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from accounts.current import person_of
from dispatch.console import web
from dispatch.console.board import drawer, drawing
from dispatch.console.board.attention import attention
from dispatch.console.board.cards import COLUMNS, Card, Column, cards_of, columns, counts, one_column, shown
from dispatch.console.board.crew import strip
from dispatch.console.board.filters import Filters
from dispatch.console.board.sharing import shared
from dispatch.console.web import console_view
from dispatch.core.ids import read_id, read_ids
from dispatch.core.problems import Conflict
from dispatch.jobs.models import Job, Priority, ServiceType
from dispatch.technicians import base_map
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from notifications import claims
from notifications.models import Notification

MOST_CHANGES = 100
MOST_PAGES = 500


@require_GET
@console_view
def board(request: HttpRequest) -> HttpResponse:
    """The whole screen; for htmx, when a filter changes, the lists alone."""
    filters = Filters.of(request.GET)
    person = person_of(request)
    unread_jobs, unread = _unread(request)
    context: dict[str, Any] = {
        "current": "board",
        "columns": columns(request.organization, filters),
        "attention": attention(request.organization, filters),
        "unread_jobs": unread_jobs,
        "unread": unread,
        "me": person.pk,
        **_address(filters),
    }
    if web.is_fragment(request):
        return web.fragment(request, "console/board/_lists.html", context)
    context |= {
        "crew": strip(request.organization),
        "services": ServiceType.objects.of(request.organization).filter(is_active=True),
        "priorities": [(one.name.lower(), one.label) for one in Priority],
    }
    if filters.technician:
        context["technician"] = Technician.objects.of(request.organization).filter(pk=filters.technician).first()
    wanted = request.GET.get("job", "")
    if (job_id := read_id(wanted)) is not None:
        job = shown(request.organization).select_related("organization").filter(pk=job_id).first()
        context |= drawer.drawer_of(request, job) if job else {"no_such_job": wanted}
    base_map.warm()
    if request.GET.get("map"):
        context["drawing"] = drawing.drawing_of(request.organization, context.get("job"))
    return web.page(request, "console/board/board.html", context)


@require_GET
@console_view
def changes(request: HttpRequest) -> HttpResponse:
    """What became of the jobs `ids`, as JSON: `cards` ({id, column, sort, html}; no column: it stands in none that
    is shown), the `counts` of the columns, the list `attention` and this person's `unread`. `event` is the newest
    event that the page has heard of; `all`: all first pages anew."""
    filters = Filters.of(request.GET)
    ids = sorted(set(read_ids(request.GET.get("ids", "").split(","))))
    event = read_id(request.GET.get("event")) or 0
    organization = request.organization

    def read() -> dict[str, Any]:
        wanted = attention(organization, filters)
        return {
            **(_all(request, filters) if request.GET.get("all") else _some(request, filters, ids[:MOST_CHANGES])),
            "attention": [
                {
                    "id": f"{one.kind}-{one.key}",
                    "sort": one.sort,
                    "html": _item_html(one, filters, organization.time_zone),
                }
                for one in wanted.items
            ],
            "attention_count": wanted.count,
            "attention_more": wanted.more,
            "attention_hidden": wanted.hidden,
        }

    key = (organization.pk, filters, tuple(ids), bool(request.GET.get("all")))
    told = shared(key, event, read)
    unread, count = _unread(request)
    return JsonResponse({**told, "unread_jobs": unread, "unread": count})


@require_GET
@console_view
def column(request: HttpRequest, name: str) -> HttpResponse:
    """Another page of one column: its cards, and what leads to the next."""
    page = read_id(request.GET.get("page", "1"))
    if name not in COLUMNS or page is None or not 1 <= page <= MOST_PAGES:
        raise Http404
    filters = Filters.of(request.GET)
    found = one_column(request.organization, filters, name, page)
    return web.fragment(request, "console/board/_cards.html", {"column": found, **_address(filters)})


@require_POST
@console_view
def claim(request: HttpRequest) -> HttpResponse:
    """Claims (`do` is claim or take_over) or releases what needs attention."""
    kind, key, do = (request.POST.get(name, "") for name in ("kind", "key", "do"))
    subject = read_id(key)
    if kind not in (claims.JOB, claims.CALL_ERROR) or subject is None:
        raise Http404
    if kind == claims.JOB:
        get_object_or_404(Job.objects.of(request.organization), pk=subject)
    refused = ""
    try:
        if do == "release":
            claims.release(request.organization, kind, subject, actor=request.actor)
        else:
            claims.claim(
                request.organization,
                kind,
                subject,
                user=person_of(request),
                actor=request.actor,
                take_over=do == "take_over",
            )
    except Conflict as conflict:
        refused = str(conflict.detail)
    if not web.is_fragment(request):
        return HttpResponseRedirect(web.here(request))
    answer = HttpResponse(status=204)
    return web.noted(answer, refused, "late") if refused else web.told(answer, {"claimed": key})


@require_POST
@console_view
def call_back(request: HttpRequest, technician_id: int) -> HttpResponse:
    """Ends a technician's auto-pause."""
    technician = get_object_or_404(Technician.objects.of(request.organization), pk=technician_id)
    technicians.back(technician.pk, actor=request.actor)
    if not web.is_fragment(request):
        return HttpResponseRedirect(web.here(request))
    answer = crew(request)
    return web.noted(answer, f"{technician.name} is offered jobs again.")


@console_view
def crew(request: HttpRequest) -> HttpResponse:
    """The strip of technicians."""
    return web.fragment(request, "console/board/_crew.html", {"crew": strip(request.organization)})


@require_GET
@console_view
def map_view(request: HttpRequest) -> HttpResponse:
    """The map, of one job (`?job=`) or of all that are open."""
    wanted = read_id(request.GET.get("job"))
    job = None if wanted is None else shown(request.organization).filter(pk=wanted).first()
    return web.fragment(
        request, "console/board/_map.html", {"drawing": drawing.drawing_of(request.organization, job)}
    )


def _address(filters: Filters) -> dict[str, Any]:
    query = urlencode(filters.as_query())
    return {"filters": filters, "query": f"{query}&" if query else "", "board": reverse("console:board")}


def _unread(request: HttpRequest) -> tuple[list[int], int]:
    """Jobs that this person has unread notes about whose cause still stands, and how many such notes there are."""
    rows = Notification.objects.of(request.organization).filter(
        user=person_of(request), read_at=None, settled_at=None
    )
    jobs = rows.filter(subject_type="job").order_by("-id").values_list("subject_id", flat=True)[:200]
    return sorted(set(jobs)), rows.count()


def _some(request: HttpRequest, filters: Filters, ids: list[int]) -> dict[str, Any]:
    jobs = list(filters.apply(shown(request.organization)).filter(pk__in=ids))
    cards = {card.job.pk: card for card in cards_of(jobs)}
    return {
        "cards": [_card_json(cards[pk], filters) if pk in cards else {"id": pk, "column": ""} for pk in ids],
        "counts": counts(request.organization, filters),
    }


def _all(request: HttpRequest, filters: Filters) -> dict[str, Any]:
    found: list[Column] = columns(request.organization, filters)
    return {
        "all": True,
        "cards": [_card_json(card, filters) for column in found for card in column.cards],
        "counts": {column.name: column.count for column in found},
    }


def _card_json(card: Card, filters: Filters) -> dict[str, Any]:
    if not card.column:
        return {"id": card.job.pk, "column": ""}
    context = {"card": card, "zone": card.job.organization.time_zone, **_address(filters)}
    html = render_to_string("console/board/_card.html", context)
    return {"id": card.job.pk, "column": card.column, "sort": card.sort, "html": html}


def _item_html(item: Any, filters: Filters, zone: str) -> str:
    return render_to_string("console/board/_item.html", {"item": item, "zone": zone, **_address(filters)})
