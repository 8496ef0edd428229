"""Pages and fragments of the board."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from accounts import demo_logins
from accounts.models import Membership
from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.board import handover, job_panel, map_data, saved_views
from dispatch.console.board import map as board_map
from dispatch.console.board.attention import MAX_ALL, MAX_SHOWN, find_attention
from dispatch.console.board.cards import (
    COLUMNS,
    Card,
    Column,
    cards_of,
    count_columns,
    load_column,
    load_columns,
    with_action_data,
    with_card_data,
)
from dispatch.console.board.display import DEFAULT_DISPLAY, Display
from dispatch.console.board.filters import Filters
from dispatch.console.board.map_data import tile_origin
from dispatch.console.board.response_cache import cached_response
from dispatch.console.board.technician_strip import load_strip
from dispatch.console.setup_checklist import load_checklist
from dispatch.console.views_base import console_view
from dispatch.core.api.problems import Conflict
from dispatch.core.ids import read_id, read_ids
from dispatch.core.languages import gettext as _
from dispatch.core.web import content_policy
from dispatch.jobs.models import Job, Priority, ServiceType
from dispatch.technicians import map_outline
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from notifications.models import Notification
from notifications.services import ownership

MAX_CHANGES = 100


@require_GET
@console_view
def board(request: HttpRequest) -> HttpResponse:
    """Render the board; for htmx (after a change of filters), render only the lists."""
    person = user_of(request)
    if not request.GET and "HX-Request" not in request.headers and (address := saved_views.open_with(request)):
        return HttpResponseRedirect(address)
    filters = Filters.of(request.GET)
    unread_jobs, unread = _unread(request)
    context: dict[str, Any] = {
        "current": "board",
        "columns": load_columns(request.organization, filters),
        "attention": find_attention(request.organization, filters, _most(request)),
        "shows_all": _most(request) == MAX_ALL,
        "unread_jobs": unread_jobs,
        "unread": unread,
        "me": person.pk,
        **_address(filters, Display.of(request.GET)),
    }
    if views_base.is_fragment(request):
        return views_base.render_fragment(request, "console/board/_lists.html", context)
    context |= {
        **saved_views.build_menu(request, request.GET),
        "crew": load_strip(request.organization),
        **handover.load_notes(request),
        "has_tour": demo_logins.is_demo_login(person) and person.tour_dismissed_at is None,
        "services": ServiceType.objects.of(request.organization).filter(is_active=True),
        "priorities": [(choice.name.lower(), choice.label) for choice in Priority],
    }
    if request.role == Membership.Role.ADMIN and (steps := load_checklist(request.organization)):
        context |= {"setup": steps, "setup_done": sum(step.is_done for step in steps)}
    if filters.technician:
        context["technician"] = Technician.objects.of(request.organization).filter(pk=filters.technician).first()
    wanted = request.GET.get("job", "")
    if (job_id := read_id(wanted)) is not None:
        job = with_action_data(request.organization).filter(pk=job_id).first()
        context |= job_panel.build_panel(request, job) if job else {"no_such_job": wanted}
    map_outline.load_towns()
    if request.GET.get("map"):
        context["drawing"] = board_map.build_map(request.organization, context.get("job"), filters)
    context["tiles"] = {
        "url": settings.MAP_TILES_URL,
        "max_zoom": settings.MAP_TILES_MAX_ZOOM,
        "credit": settings.MAP_TILES_ATTRIBUTION,
        "credit_link": settings.MAP_TILES_ATTRIBUTION_URL,
    }
    page = views_base.render_page(request, "console/board/board.html", context)
    if settings.MAP_TILES_URL:
        page[content_policy.HEADER] = content_policy.content_policy(images=[tile_origin(settings.MAP_TILES_URL)])
    return page


@require_GET
@console_view
def changes(request: HttpRequest) -> HttpResponse:
    """Return the current state of the jobs `ids` as JSON.

    The response has `cards`: {id, column, sort, html}, where an empty column means that the job is in no shown
    column; the `counts` of the columns; the list `attention`; and the number `unread`. Parameters: `event` is the
    newest event that the page knows; `all` reloads the first cards of all columns, as many of each as the
    parameter with its name says.
    """
    filters = Filters.of(request.GET)
    ids = sorted(set(read_ids(request.GET.get("ids", "").split(","))))
    event = read_id(request.GET.get("event")) or 0
    organization = request.organization
    most = _most(request)

    def read() -> dict[str, Any]:
        attention = find_attention(organization, filters, most)
        return {
            **(_all(request, filters) if request.GET.get("all") else _some(request, filters, ids[:MAX_CHANGES])),
            "attention": [
                {
                    "id": f"{item.kind}-{item.key}",
                    "sort": item.sort,
                    "html": _item_html(item, filters, organization.time_zone),
                }
                for item in attention.items
            ],
            "attention_count": attention.count,
            "attention_more": attention.more,
            "attention_hidden": attention.hidden,
        }

    if request.GET.get("all"):
        answer = read()
    else:
        answer = cached_response((organization.pk, request.language, filters, most, tuple(ids)), event, read)
    unread, count = _unread(request)
    return JsonResponse({**answer, "unread_jobs": unread, "unread": count})


@require_GET
@console_view
def column(request: HttpRequest, name: str) -> HttpResponse:
    """Render the cards of one column that follow the sort key `after`, and the link to the next ones."""
    filters = Filters.of(request.GET)
    try:
        if "page" in request.GET:  # a page of an earlier release: it would get the first cards again
            raise ValueError
        loaded = load_column(request.organization, filters, name, request.GET.get("after", ""))
    except (KeyError, ValueError):
        raise Http404 from None
    return views_base.render_fragment(
        request, "console/board/_cards.html", {"column": loaded, **_address(filters, Display.of(request.GET))}
    )


@require_POST
@console_view
def claim_item(request: HttpRequest) -> HttpResponse:
    """Claim (`do` is claim or take_over) or release an entry of the attention list."""
    kind, key, do = (request.POST.get(name, "") for name in ("kind", "key", "do"))
    subject = read_id(key)
    if kind not in (ownership.JOB, ownership.CALL_ERROR) or subject is None:
        raise Http404
    if kind == ownership.JOB:
        get_object_or_404(Job.objects.of(request.organization), pk=subject)
    refused = ""
    try:
        if do == "release":
            ownership.release(request.organization, kind, subject, actor=request.actor)
        else:
            ownership.claim(
                request.organization,
                kind,
                subject,
                user=user_of(request),
                actor=request.actor,
                take_over=do == "take_over",
            )
    except Conflict as conflict:
        refused = str(conflict.detail)
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(views_base.return_url(request))
    answer = HttpResponse(status=204)
    return (
        views_base.with_note(answer, refused, "late")
        if refused
        else views_base.with_dom_events(answer, {"claimed": key})
    )


@require_POST
@console_view
def resume_technician(request: HttpRequest, technician_id: int) -> HttpResponse:
    """Resume an auto-paused technician."""
    technician = get_object_or_404(Technician.objects.of(request.organization), pk=technician_id)
    technicians.end_auto_pause(technician.pk, actor=request.actor)
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(views_base.return_url(request))
    answer = technician_strip_view(request)
    return views_base.with_note(
        answer, _("{name} was resumed and gets offers again.").format(name=technician.name)
    )


@console_view
def technician_strip_view(request: HttpRequest) -> HttpResponse:
    """Render the strip of technicians."""
    return views_base.render_fragment(
        request, "console/board/_crew.html", {"crew": load_strip(request.organization)}
    )


@require_GET
@console_view
def map_view(request: HttpRequest) -> HttpResponse:
    """Render the outline map, of one job (`?job=`) or of the open jobs that match the filters."""
    drawing = board_map.build_map(request.organization, _job_of_map(request), Filters.of(request.GET))
    return views_base.render_fragment(request, "console/board/_map.html", {"drawing": drawing})


@require_GET
@console_view
def map_points(request: HttpRequest) -> HttpResponse:
    """Return as JSON what the map with tiles shows: as `map_view`, with more jobs (`map_data.build_points`)."""
    data = map_data.load_map_data(
        request.organization, Filters.of(request.GET), _job_of_map(request), map_data.MAX_GROUPED
    )
    return JsonResponse(map_data.build_points(data))


def _job_of_map(request: HttpRequest) -> Job | None:
    wanted = read_id(request.GET.get("job"))
    return None if wanted is None else with_card_data(request.organization).filter(pk=wanted).first()


def _most(request: HttpRequest) -> int:
    """Return the maximum number of jobs in the attention list."""
    return MAX_ALL if request.GET.get("show") == "all" else MAX_SHOWN


def _address(filters: Filters, display: Display = DEFAULT_DISPLAY) -> dict[str, Any]:
    query = urlencode({**filters.as_query(), **display.as_query()})
    return {
        "filters": filters,
        "display": display,
        "query": f"{query}&" if query else "",
        "board": reverse("console:board"),
    }


def _unread(request: HttpRequest) -> tuple[list[int], int]:
    """Return jobs with unread notifications whose cause is still open, and the number of those notifications."""
    rows = Notification.objects.of(request.organization).filter(
        user=user_of(request), read_at=None, settled_at=None
    )
    jobs = rows.filter(subject_type="job").order_by("-id").values_list("subject_id", flat=True)[:200]
    return sorted(set(jobs)), rows.count()


def _some(request: HttpRequest, filters: Filters, ids: list[int]) -> dict[str, Any]:
    jobs = list(filters.apply(with_card_data(request.organization)).filter(pk__in=ids))
    cards = {card.job.pk: card for card in cards_of(jobs)}
    return {
        "cards": [_card_json(cards[pk], filters) if pk in cards else {"id": pk, "column": ""} for pk in ids],
        "counts": count_columns(request.organization, filters),
    }


def _all(request: HttpRequest, filters: Filters) -> dict[str, Any]:
    shown = {name: read_id(request.GET.get(name)) or 0 for name in COLUMNS}
    columns: list[Column] = load_columns(request.organization, filters, shown)
    return {
        "all": True,
        "cards": [_card_json(card, filters) for column in columns for card in column.cards],
        "counts": {column.name: column.count for column in columns},
    }


def _card_json(card: Card, filters: Filters) -> dict[str, Any]:
    if not card.column:
        return {"id": card.job.pk, "column": ""}
    context = {"card": card, "zone": card.job.organization.time_zone, **_address(filters)}
    html = render_to_string("console/board/_card.html", context)
    return {"id": card.job.pk, "column": card.column, "sort": card.sort, "html": html}


def _item_html(item: Any, filters: Filters, zone: str) -> str:
    return render_to_string("console/board/_item.html", {"item": item, "zone": zone, **_address(filters)})
