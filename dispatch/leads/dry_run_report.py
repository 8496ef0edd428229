"""Compare the leads that a dry run would have called with the calls of another dialer."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from zoneinfo import ZoneInfo

from django.db.models import Q
from django.db.models.functions import Coalesce

from accounts.models import Organization
from dispatch.core.phone_numbers import parse_possible_phone
from dispatch.leads.models import Lead
from dispatch.leads.rules import descriptions
from dispatch.leads.rules.states import WOULD_CALL, Outcome, Reason


class BadFile(ValueError):
    """The other dialer's file is invalid. The message is one line."""


@dataclass
class Comparison:
    """The result of a comparison.

    `ours`: leads that would have been called. `both`: phones called by both, with the seconds by which the other
    dialer was later (negative: earlier). `only_theirs`: phones that only the other dialer called, with the reason
    why the dry run did not.
    """

    ours: list[tuple[str, datetime]]
    both: dict[str, float] = field(default_factory=dict)
    only_theirs: dict[str, str] = field(default_factory=dict)
    only_ours: list[str] = field(default_factory=list)

    def lines(self, zone: ZoneInfo) -> Iterator[str]:
        """Yield the report, line by line."""
        yield f"Would have been called here: {len(self.ours):,}"
        hours = Counter(at.astimezone(zone).replace(minute=0, second=0, microsecond=0) for _, at in self.ours)
        for hour, count in sorted(hours.items()):
            yield f"  {hour:%Y-%m-%d %H}:00  {count:,}"
        if not (self.both or self.only_theirs or self.only_ours):
            return
        yield f"Called by both: {len(self.both):,}"
        if self.both:
            apart = sorted(abs(seconds) for seconds in self.both.values())
            yield f"  time difference: median {median(apart):,.0f} s, at most {apart[-1]:,.0f} s"
        yield f"Called only by the other dialer: {len(self.only_theirs):,}"
        for why, count in Counter(self.only_theirs.values()).most_common():
            yield f"  {count:,}  {why}"
        yield f"Would have been called only here: {len(self.only_ours):,}"


def dry_run(organization: Organization, since: datetime, until: datetime) -> list[tuple[str, datetime]]:
    """Return (phone, time) of the leads that a dry run would have called in that period."""
    simulated = Q(simulated_outcome=WOULD_CALL, simulated_at__gte=since, simulated_at__lt=until)
    ended = Q(status="finished", outcome=Outcome.DRY_RUN, finished_at__gte=since, finished_at__lt=until)
    leads = (
        Lead.objects.of(organization)
        .filter(simulated | ended)
        .annotate(at=Coalesce("simulated_at", "finished_at"))
    )
    return [(str(phone), at) for phone, at in leads.order_by("at").values_list("phone", "at")]


def compare_calls(
    organization: Organization, theirs: Iterable[tuple[str, datetime]], since: datetime, until: datetime
) -> Comparison:
    """Compare the dry run of a period with another dialer's calls, by phone.

    Of several calls of the other dialer to a phone, the first in the period counts.
    """
    ours = dry_run(organization, since, until)
    first_here: dict[str, datetime] = {}
    for phone, at in ours:
        first_here.setdefault(phone, at)
    first_there: dict[str, datetime] = {}
    for phone, at in theirs:
        if since <= at < until:
            first_there[phone] = min(at, first_there.get(phone, at))
    comparison = Comparison(ours)
    comparison.only_ours = [phone for phone in first_here if phone not in first_there]
    missing = [phone for phone in first_there if phone not in first_here]
    reasons = _reasons_not_called(organization, missing)
    for phone, at in first_there.items():
        if phone in first_here:
            comparison.both[phone] = (at - first_here[phone]).total_seconds()
        else:
            comparison.only_theirs[phone] = reasons.get(phone, "No such lead")
    return comparison


def read_csv(lines: Iterable[str], region: str, zone: ZoneInfo) -> list[tuple[str, datetime]]:
    """Read the other dialer's calls: CSV with the columns phone and called_at. Raises BadFile."""
    rows = csv.DictReader(lines)
    if not {"phone", "called_at"} <= set(rows.fieldnames or ()):
        raise BadFile("The first row of the file must name the columns phone and called_at.")
    calls = []
    for row in rows:
        try:
            phone = parse_possible_phone(row["phone"] or "", region).as_e164
            at = datetime.fromisoformat(row["called_at"])
        except (ValueError, TypeError) as error:
            raise BadFile(f"Row {rows.line_num} of the file: {error}") from None
        calls.append((phone, at if at.tzinfo else at.replace(tzinfo=zone)))
    return calls


def _reasons_not_called(organization: Organization, phones: list[str]) -> dict[str, str]:
    """Return why the newest lead of each phone was not called."""
    leads = Lead.objects.of(organization).filter(phone__in=phones).order_by("id")
    return {
        str(lead.phone): (
            descriptions.describe_outcome(outcome, lead.reason)
            if (outcome := _end_of(lead))
            else descriptions.describe_waiting(lead.reason)
        ).rstrip(".")
        for lead in leads
    }


def _end_of(lead: Lead) -> str:
    """Describe the outcome with which a lead ended, or would have ended in the dry run."""
    simulated = lead.simulated_outcome if lead.reason == Reason.DRY_RUN else ""
    return lead.outcome or (simulated if simulated != WOULD_CALL else "")
