"""What a dry run would have called, beside what another dialer did call."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from zoneinfo import ZoneInfo

import phonenumbers

from accounts.models import Organization
from dispatch.leads.models import Lead
from dispatch.leads.rules import telling
from dispatch.leads.rules.words import Outcome


class BadFile(ValueError):
    """What is wrong with the other dialer's file, in one line."""


@dataclass
class Comparison:
    """`ours`: leads that would have been called. `both`: phones that both had, with the seconds by which the other
    was later (or earlier, below 0). `only_theirs`: phones that only the other called, with why not here."""

    ours: list[tuple[str, datetime]]
    both: dict[str, float] = field(default_factory=dict)
    only_theirs: dict[str, str] = field(default_factory=dict)
    only_ours: list[str] = field(default_factory=list)

    def lines(self, zone: ZoneInfo) -> Iterator[str]:
        """The report, line by line."""
        yield f"Would have been called here: {len(self.ours):,}"
        hours = Counter(at.astimezone(zone).replace(minute=0, second=0, microsecond=0) for _, at in self.ours)
        for hour, count in sorted(hours.items()):
            yield f"  {hour:%Y-%m-%d %H}:00  {count:,}"
        if not (self.both or self.only_theirs or self.only_ours):
            return
        yield f"By both: {len(self.both):,}"
        if self.both:
            apart = sorted(abs(seconds) for seconds in self.both.values())
            yield f"  apart in time: median {median(apart):,.0f} s, most {apart[-1]:,.0f} s"
        yield f"Only by the other: {len(self.only_theirs):,}"
        for why, count in Counter(self.only_theirs.values()).most_common():
            yield f"  {count:,}  {why}"
        yield f"Only here: {len(self.only_ours):,}"


def dry_run(organization: Organization, since: datetime, until: datetime) -> list[tuple[str, datetime]]:
    """(phone, when) of the leads that a dry run would have called in that time."""
    ended = Lead.objects.of(organization).filter(
        status="finished", outcome=Outcome.DRY_RUN, finished_at__gte=since, finished_at__lt=until
    )
    return [
        (str(phone), at) for phone, at in ended.order_by("finished_at").values_list("phone", "finished_at") if at
    ]


def compare(
    organization: Organization, theirs: Iterable[tuple[str, datetime]], since: datetime, until: datetime
) -> Comparison:
    """The dry run of that time beside another dialer's calls, by phone; its first call in that time counts."""
    ours = dry_run(organization, since, until)
    first_here: dict[str, datetime] = {}
    for phone, at in ours:
        first_here.setdefault(phone, at)
    first_there: dict[str, datetime] = {}
    for phone, at in theirs:
        if since <= at < until:
            first_there[phone] = min(at, first_there.get(phone, at))
    found = Comparison(ours)
    found.only_ours = [phone for phone in first_here if phone not in first_there]
    missing = [phone for phone in first_there if phone not in first_here]
    why = _why_not(organization, missing)
    for phone, at in first_there.items():
        if phone in first_here:
            found.both[phone] = (at - first_here[phone]).total_seconds()
        else:
            found.only_theirs[phone] = why.get(phone, "No such lead")
    return found


def read(lines: Iterable[str], region: str, zone: ZoneInfo) -> list[tuple[str, datetime]]:
    """The other dialer's calls: CSV with the columns phone and called_at. Raises BadFile."""
    rows = csv.DictReader(lines)
    if not {"phone", "called_at"} <= set(rows.fieldnames or ()):
        raise BadFile("The first line of the file must name the columns phone and called_at.")
    found = []
    for row in rows:
        try:
            number = phonenumbers.parse(row["phone"], region)
            at = datetime.fromisoformat(row["called_at"])
        except (phonenumbers.NumberParseException, ValueError, TypeError) as error:
            raise BadFile(f"Line {rows.line_num} of the file: {error}") from None
        phone = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
        found.append((phone, at if at.tzinfo else at.replace(tzinfo=zone)))
    return found


def _why_not(organization: Organization, phones: list[str]) -> dict[str, str]:
    """Why the newest lead of each phone was not called."""
    leads = Lead.objects.of(organization).filter(phone__in=phones).order_by("id")
    return {
        str(lead.phone): (
            telling.how_it_ended(lead.outcome) if lead.outcome else telling.waits(lead.reason)
        ).rstrip(".")
        for lead in leads
    }
