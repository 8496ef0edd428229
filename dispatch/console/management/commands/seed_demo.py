"""Loads the demo organizations."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.models import Organization
from dispatch.console.demo import hints, seed


class Command(BaseCommand):
    help = "Loads two demo organizations with people, technicians and lines (development only)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--if-empty", action="store_true", help="do nothing where there is any organization")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["if_empty"] and Organization.objects.exists():
            return
        try:
            seed.seed()
        except seed.NotInDevelopment as error:
            raise CommandError(str(error)) from None
        if options["verbosity"] and not options["if_empty"]:
            self.stdout.write("\n".join(hints.lines()))
