"""Repeat erasures, opt-outs, withdrawals and do-not-call entries that were made after the restored dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.console.privacy import restore
from dispatch.core.counts import count_noun
from dispatch.core.privacy import replay


class Command(BaseCommand):
    """`manage.py replay_after_restore FILE`."""

    help = (
        "Run after restoring a dump and after `after_restore`, before web, workers and dispatchers start. Repeats "
        "the erasures, opt-outs, withdrawn consents and do-not-call entries of the replay list that the dump "
        "lacks. Can be repeated."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="The replay list (`manage.py replay_list`).")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            entries = replay.read_list(options["file"])
        except (OSError, ValueError) as error:
            raise CommandError(str(error)) from None
        report = restore.replay_entries(entries)
        for problem in report.problems:
            self.stdout.write(problem)
        repeated = count_noun(report.applied, "entry", "entries")
        self.stdout.write(
            f"{repeated} repeated, {report.pending} of numbers that this database does not know. "
            "The latter apply when the numbers appear."
        )
        if report.problems:
            raise CommandError(f"Entries not repeated: {len(report.problems)}. Resolve them and run this again.")
