"""Export the audit log of an organization, or of the installation, as JSON Lines."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from dispatch.console.privacy.chains import add_chain_arguments, read_chain
from dispatch.core.audit import export


class Command(BaseCommand):
    """`manage.py export_audit_log (--organization SLUG | --installation) [--since DAY] [--output FILE]`."""

    help = "Export an audit log as JSON Lines: one event a line, with its place in the hash chain."

    def add_arguments(self, parser: CommandParser) -> None:
        add_chain_arguments(parser, required=True)
        parser.add_argument("--since", type=_day, help="First day, such as 2026-11-01, in UTC.")
        parser.add_argument("--until", type=_day, help="Day before which the export ends.")
        parser.add_argument("--output", default="-", help="The file to write, or - for standard output.")

    def handle(self, *args: Any, **options: Any) -> None:
        chain_id = read_chain(options)
        assert chain_id is not None
        rows = export.export_events(chain_id, options["since"], options["until"])
        if options["output"] == "-":
            for row in rows:
                self.stdout.write(row, ending="")
        else:
            with Path(options["output"]).open("w") as file:
                file.writelines(rows)


def _day(text: str) -> datetime:
    return datetime.combine(date.fromisoformat(text), time.min, UTC)
