"""Check the event log for illegal transitions, tokens that go back, and two owners of one thing."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.core.events import history


class Command(BaseCommand):
    """Print one line per violation. Exit with status 1 if there is any."""

    help = (
        "Checks that every call, offer, job, lead, message and run in the event log moved only along legal "
        "transitions. Only reads, from one snapshot; may run while everything else runs."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--days", type=float, help="check only what happened in the last DAYS days")

    def handle(self, *args: Any, **options: Any) -> None:
        result = history.Result()
        for line in history.violations(result, days=options["days"]):
            self.stdout.write(line)
        checked = f"{result.events} events of {result.subjects} subjects were checked"
        if result.violations:
            raise CommandError(f"{checked}: {result.violations} violations.")
        self.stdout.write(f"{checked}: no violations.")
