"""`manage.py seed_demo`: load the demo organizations."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.models import Organization
from dispatch.dev.demo import hints, history, receiver, seed


class Command(BaseCommand):
    """Load the demo organizations into the database."""

    help = "Load two demo organizations with users, technicians and phone lines (development only)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--if-empty", action="store_true", help="do nothing if any organization exists")
        parser.add_argument(
            "--history",
            action="store_true",
            help="also fill the first demo organization, if it is empty, with 45 days of history and open jobs",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if not (options["if_empty"] and Organization.objects.exists()):
                seed.seed()
                if options["verbosity"] and not options["if_empty"]:
                    self.stdout.write("\n".join(hints.lines()))
            if options["history"]:
                self._fill()
        except seed.NotInDevelopment as error:
            raise CommandError(str(error)) from None

    def _fill(self) -> None:
        organization = Organization.objects.filter(slug=seed.MAIN_SLUG).first()
        if organization is not None and not history.fill(organization, receiver.receiver_url()):
            history.move_receiver(organization, receiver.receiver_url())
