"""Render a report as an email: text, HTML and the table as CSV, in the member's language; and sign its links."""

from __future__ import annotations

import csv
import io
from datetime import date, datetime

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.core.signing import BadSignature, Signer
from django.template.loader import render_to_string
from django.urls import reverse

from accounts.models import Organization, ReportSubscription
from dispatch.console.reports import customers
from dispatch.console.reports.csv_tables import csv_head, file_name
from dispatch.console.reports.kinds import KINDS, ReportKind
from dispatch.console.reports.pages import Filters
from dispatch.console.reports.periods import Period
from dispatch.console.reports.tables import Table
from dispatch.core import languages
from dispatch.core.languages import gettext as _
from dispatch.jobs.signed_links import InvalidLink

# Rows of the table in the email, and of the CSV attached to it.
MAX_SHOWN, MAX_ATTACHED = 24, 20_000


def build_message(row: ReportSubscription, first: date, last: date, due_at: datetime) -> EmailMultiAlternatives:
    """Return the email with the report of the days from `first` to `last`. Raises TooManyRows."""
    with languages.override(language_of(row)):
        return _build_message(row, KINDS[row.report], Period(first, last, row.organization.time_zone), due_at)


def language_of(row: ReportSubscription) -> str:
    """Return the language of the member: their own, else the organization's."""
    return row.membership.user.language or row.organization.language


def _build_message(
    row: ReportSubscription, kind: ReportKind, period: Period, due_at: datetime
) -> EmailMultiAlternatives:
    organization = row.organization
    report = kind.build(organization, period, Filters())
    table = report.tables[0]
    stop = unsubscribe_url(row)
    context = {
        "organization": organization,
        "kind": kind,
        "period": period,
        "report": report,
        "table": table,
        "rows": [] if report.is_empty else table.shown_rows[:MAX_SHOWN],
        "more": max(0, min(len(table.rows), table.most) - MAX_SHOWN) + table.left_out,
        "link": _report_url(organization, kind, period),
        "stop": stop,
    }
    subject = _("{report}: {organization}, {days}").format(
        report=kind.heading, organization=organization.name, days=period.words
    )
    message = EmailMultiAlternatives(
        " ".join(subject.split()),
        render_to_string("console/reports/mail.txt", context),
        to=[row.membership.user.email],
        headers={
            # the same for every attempt, so that mail clients can recognize duplicates
            "Message-ID": f"<report-{row.pk}-{due_at:%Y%m%d%H}@{settings.EMAIL_DOMAIN}>",
            "Auto-Submitted": "auto-generated",
            "List-Unsubscribe": f"<{stop}>",
            "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
        },
    )
    message.attach_alternative(render_to_string("console/reports/mail.html", context), "text/html")
    message.attach(*_attachment(organization, kind, period, table))
    return message


def _attachment(
    organization: Organization, kind: ReportKind, period: Period, table: Table
) -> tuple[str, str, str]:
    rows = table.csv_rows
    head = csv_head(table, period)
    if kind.slug == "customers":
        rows = []
        for page in customers.export_pages(organization, period, Filters()):
            rows += page
            if len(rows) >= MAX_ATTACHED:
                break
    text = io.StringIO()
    csv.writer(text).writerows([head, *rows[:MAX_ATTACHED]])
    return file_name(organization.slug, table.slug, period), "\ufeff" + text.getvalue(), "text/csv"


def _report_url(organization: Organization, kind: ReportKind, period: Period) -> str:
    path = reverse("console:reports") if kind.is_overview else reverse("console:report", args=[kind.slug])
    return f"{settings.PUBLIC_BASE_URL}{path}?{period.query}&in={organization.slug}"


def unsubscribe_url(row: ReportSubscription) -> str:
    """Return the address that ends the subscription without signing in."""
    token = _signer().sign(f"{row.pk}-{row.membership_id}")
    return f"{settings.PUBLIC_BASE_URL}{reverse('console:report_unsubscribe', args=[token])}"


def subscription_of_link(token: str) -> ReportSubscription:
    """Return the subscription of a link. Raises InvalidLink; `expired` if the subscription has ended."""
    try:
        pk, membership_id = [int(part) for part in _signer().unsign(token).split("-")]
    except (BadSignature, ValueError):
        raise InvalidLink from None
    rows = ReportSubscription.objects.select_related("membership__user", "organization")
    row = rows.filter(pk=pk, membership=membership_id).first()
    if row is None:
        raise InvalidLink(expired=True)
    return row


def _signer() -> Signer:
    return Signer(salt="dispatch.console.reports.unsubscribe", sep=".")
