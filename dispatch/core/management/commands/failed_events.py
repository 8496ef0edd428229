"""List, retry or discard events that a durable reader failed to handle."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.core.counts import count_noun
from dispatch.core.events import quarantine
from dispatch.core.models import FailedEvent


class Command(BaseCommand):
    """`manage.py failed_events`: list, retry or discard."""

    help = "List events that a reader of the event log failed to handle, make it retry them now, or discard them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=["list", "retry", "discard"])
        parser.add_argument("ids", nargs="*", type=int, metavar="EVENT_ID", help="Event ids; default: all.")
        parser.add_argument("--reader", default="", help="Only this reader: notifications or outbox.")
        parser.add_argument("--all", action="store_true", help="Confirm to discard without naming events.")

    def handle(self, *args: Any, **options: Any) -> None:
        rows = quarantine.failed_events(options["reader"], options["ids"])
        if options["action"] == "list":
            for row in rows:
                self.stdout.write(_describe(row))
        elif options["action"] == "retry":
            count = quarantine.retry_now(rows)
            self.stdout.write(f"{count_noun(count, 'event')} to be retried within seconds.")
        else:
            if not options["ids"] and not options["all"]:
                raise CommandError("Name the events to discard, or pass --all.")
            self.stdout.write(f"{count_noun(quarantine.discard(rows), 'event')} discarded.")


def _describe(row: FailedEvent) -> str:
    state = "held" if not row.attempts else "quarantined" if row.quarantined_at else "retrying"
    fields = (row.reader, row.event_id, row.kind, f"organization {row.organization_id}", state)
    return "  ".join(map(str, (*fields, f"attempts {row.attempts}", row.error.split(chr(10))[0])))
