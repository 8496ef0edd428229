"""Check the event log for illegal transitions, tokens that go back, and two owners of one thing."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.core.counts import count_noun
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
        events, subjects = count_noun(result.events, "event"), count_noun(result.subjects, "subject")
        checked = f"Checked {events} of {subjects}"
        if result.violations:
            raise CommandError(f"{checked}: {count_noun(result.violations, 'violation')}.")
        self.stdout.write(f"{checked}: no violations.")
