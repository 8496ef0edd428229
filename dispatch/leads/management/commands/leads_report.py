"""Compare a dry run with the calls of another dialer."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.models import Organization
from dispatch.leads import dry_run_report


class Command(BaseCommand):
    """Print how a dry run compares with another dialer's calls."""

    help = "Compares the leads that a dry run would have called with the calls of another dialer."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--organization", required=True, help="the organization's short name")
        parser.add_argument("--since", required=True, help="first day, for example 2026-11-20")
        parser.add_argument("--until", default="", help="last day (default: the first day)")
        parser.add_argument(
            "--file", default="", help="the other dialer's calls: CSV with the columns phone and called_at"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        organization = Organization.objects.filter(slug=options["organization"]).first()
        if organization is None:
            raise CommandError(f"No organization has the short name {options['organization']!r}.")
        zone = ZoneInfo(organization.time_zone)
        since = _day(options["since"], zone)
        until = _day(options["until"] or options["since"], zone) + timedelta(days=1)
        theirs: list[tuple[str, datetime]] = []
        if options["file"]:
            try:
                with open(options["file"], encoding="utf-8-sig", newline="") as file:
                    theirs = dry_run_report.read_csv(file, organization.default_region, zone)
            except (OSError, UnicodeDecodeError, dry_run_report.BadFile) as error:
                raise CommandError(str(error)) from None
        for line in dry_run_report.compare_calls(organization, theirs, since, until).lines(zone):
            self.stdout.write(line)


def _day(text: str, zone: ZoneInfo) -> datetime:
    try:
        return datetime.combine(date.fromisoformat(text), time(), zone)
    except ValueError:
        raise CommandError(f"{text!r} is not a valid date. Write it as 2026-11-20.") from None
