"""Makes a restored database readable again for the event readers."""

from typing import Any

from django.core.management.base import BaseCommand

from dispatch.core import readers


class Command(BaseCommand):
    help = (
        "Run once after a dump was restored into another PostgreSQL cluster, before web, workers and dispatcher "
        "start: event readers go by transaction ids, and those of the old cluster mean nothing in the new one."
    )
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"{readers.after_restore()} events made readable; every reader goes on where it was.")
