"""Compares a dry run with what another dialer called."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.models import Organization
from dispatch.leads import comparing


class Command(BaseCommand):
    help = "Says what the dry run of an organization would have called, beside what another dialer did call."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--organization", required=True, help="its short name")
        parser.add_argument("--since", required=True, help="the first day, as 2026-11-20")
        parser.add_argument("--until", default="", help="the last day (default: the first)")
        parser.add_argument(
            "--file", default="", help="the other's calls: CSV with the columns phone and called_at"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        organization = Organization.objects.filter(slug=options["organization"]).first()
        if organization is None:
            raise CommandError(f"There is no organization {options['organization']!r}.")
        zone = ZoneInfo(organization.time_zone)
        since = _day(options["since"], zone)
        until = _day(options["until"] or options["since"], zone) + timedelta(days=1)
        theirs: list[tuple[str, datetime]] = []
        if options["file"]:
            try:
                with open(options["file"], encoding="utf-8-sig", newline="") as file:
                    theirs = comparing.read(file, organization.default_region, zone)
            except (OSError, UnicodeDecodeError, comparing.BadFile) as error:
                raise CommandError(str(error)) from None
        for line in comparing.compare(organization, theirs, since, until).lines(zone):
            self.stdout.write(line)


def _day(text: str, zone: ZoneInfo) -> datetime:
    try:
        return datetime.combine(date.fromisoformat(text), time(), zone)
    except ValueError:
        raise CommandError(f"{text!r} is no day: write it as 2026-11-20.") from None
