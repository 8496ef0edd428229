"""Write the list of erasures, opt-outs and do-not-call entries that a restore must repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dispatch.core.counts import count_noun
from dispatch.core.privacy import replay


class Command(BaseCommand):
    """`manage.py replay_list FILE [--days DAYS]`."""

    help = "Replace FILE by the list for `replay_after_restore`. It has keyed hashes, no numbers or addresses."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="The file to write, outside the database's machine.")
        parser.add_argument(
            "--days", type=int, default=replay.KEPT_DAYS, help="Age of the oldest dump that is kept, in days."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        count = replay.write_list(options["file"], days=options["days"])
        self.stdout.write(f"{count_noun(count, 'entry', 'entries')}.")
