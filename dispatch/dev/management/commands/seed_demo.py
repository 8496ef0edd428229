"""`manage.py seed_demo`: load the demo organizations."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.models import Organization
from dispatch.dev.demo import hints, seed


class Command(BaseCommand):
    """Load the demo organizations into the database."""

    help = "Load two demo organizations with users, technicians and phone lines (development only)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--if-empty", action="store_true", help="do nothing if any organization exists")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["if_empty"] and Organization.objects.exists():
            return
        try:
            seed.seed()
        except seed.NotInDevelopment as error:
            raise CommandError(str(error)) from None
        if options["verbosity"] and not options["if_empty"]:
            self.stdout.write("\n".join(hints.lines()))
