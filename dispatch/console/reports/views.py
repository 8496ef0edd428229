"""The pages of reports, their CSV files, and subscriptions."""

from __future__ import annotations

import itertools
from typing import Any, cast

from django.conf import settings
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from accounts.models import ReportSubscription
from accounts.tenancy import actor_of
from dispatch.console import views_base
from dispatch.console.reports import customers, report_mail, subscriptions
from dispatch.console.reports.csv_tables import choose_table, csv_head, file_name
from dispatch.console.reports.kinds import KINDS, OVERVIEW, ReportKind, read_filters
from dispatch.console.reports.pages import Filters, Report
from dispatch.console.reports.periods import SPANS, Period, read_period
from dispatch.console.reports.queries import TooManyRows
from dispatch.console.reports.subscriptions import subscription_of
from dispatch.console.views_base import console_view
from dispatch.core import csv_files
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.jobs.public.common import with_signed_link

CSV_PAGE = 500


@require_GET
@console_view
def show_report(request: HttpRequest, slug: str = OVERVIEW) -> HttpResponse:
    """Render a report: totals, charts and tables of a period, compared with the one before."""
    kind, period, filters = _requested(request, slug)
    context: dict[str, Any] = {
        "current": "reports",
        "kind": kind,
        "kinds": KINDS.values(),
        "period": period,
        "spans": SPANS,
        "is_last_days": period.last == read_period(request.organization, {}).last,
        "has_mail": settings.EMAIL_IS_SET_UP,
        "membership": request.membership,
        "subscription": subscription_of(request.membership, kind.slug),
        "frequencies": ReportSubscription.Frequency.choices,
        "hours": range(24),
    }
    try:
        context["report"] = kind.build(request.organization, period, filters)
    except TooManyRows:
        context["report"] = Report(is_empty=True)
        context["is_too_long"] = True
    return views_base.render_page(request, "console/reports/reports.html", context)


@require_GET
@console_view
def as_csv(request: HttpRequest, slug: str = OVERVIEW) -> HttpResponse:
    """Return a table as CSV, sent in pages: `?by=` is one of the report's tables, by default the first.

    Of the overview, the default is the table by day. Times are in seconds, shares from 0 to 1.
    """
    kind, period, filters = _requested(request, slug)
    try:
        return cast(HttpResponse, _csv(request, kind, period, filters))
    except TooManyRows:
        return views_base.render_page(
            request, "console/reports/too_long.html", {"current": "reports", "kind": kind}, status=422
        )


def _csv(request: HttpRequest, kind: ReportKind, period: Period, filters: Filters) -> StreamingHttpResponse:
    if kind.slug == "customers":
        head = [kind.slug[:-1], *(column.key for column in customers.COLUMNS)]
        pages = customers.export_pages(request.organization, period, filters)
        # A file that has begun can't be refused, so the first page is read before.
        pages = itertools.chain(list(itertools.islice(pages, 1)), pages)
        return csv_files.csv_stream(_file_name(request, kind.slug, period), head, pages)
    table = choose_table(kind.build(request.organization, period, filters), request.GET.get("by", ""))
    rows = table.csv_rows
    pages = (rows[start : start + CSV_PAGE] for start in range(0, len(rows), CSV_PAGE))
    return csv_files.csv_stream(_file_name(request, table.slug, period), csv_head(table, period), pages)


def _file_name(request: HttpRequest, by: str, period: Period) -> str:
    return file_name(request.organization.slug, by, period)


@require_POST
@console_view
def subscribe(request: HttpRequest, slug: str) -> HttpResponse:
    """Subscribe the user to a report by email, change the subscription, or end it (`stop`)."""
    kind, membership = _kind_of(slug), request.membership
    if membership is None:
        raise PermissionDenied(_("You are not a member of this organization."))
    actor, row = actor_of(membership.user), subscription_of(membership, kind.slug)
    hour, frequency = read_id(request.POST.get("hour")), request.POST.get("frequency", "")
    if "stop" in request.POST:
        if row is not None:
            subscriptions.unsubscribe(row, "asked", actor=actor)
    elif hour is None or hour > 23 or frequency not in ReportSubscription.Frequency.values:
        raise BadRequest(_("Choose how often and at which hour the report is sent."))
    elif settings.EMAIL_IS_SET_UP:
        subscriptions.subscribe(membership, kind.slug, frequency, hour, actor=actor)
    address = reverse("console:reports") if kind.is_overview else reverse("console:report", args=[kind.slug])
    return views_base.back_to(request, f"{address}#by-email")


@with_signed_link(report_mail.subscription_of_link, report_mail.language_of)
def unsubscribe(request: HttpRequest, row: ReportSubscription) -> HttpResponse:
    """Show the page of an unsubscribe link, and end the subscription on POST. Mail programs post directly."""
    is_done = request.method == "POST"
    if is_done:
        subscriptions.unsubscribe(row, "link", actor=actor_of(row.membership.user))
    context = {"organization": row.organization, "kind": KINDS.get(row.report), "is_done": is_done}
    return render(request, "console/reports/unsubscribe.html", context)


def _kind_of(slug: str) -> ReportKind:
    if (kind := KINDS.get(slug)) is None:
        raise Http404
    return kind


def _requested(request: HttpRequest, slug: str) -> tuple[ReportKind, Period, Filters]:
    kind = _kind_of(slug)
    period = read_period(request.organization, request.GET)
    return kind, period, read_filters(request.organization, request.GET)
