"""Make a restored database readable for the event readers."""

from typing import Any

from django.core.management.base import BaseCommand

from dispatch.core.events import readers


class Command(BaseCommand):
    """Reset events and readers after a restore, and print how many events changed."""

    help = (
        "Run once after restoring a dump into another PostgreSQL cluster, before web, workers and dispatcher "
        "start. Event readers depend on transaction ids, and those of the old cluster are meaningless in the new "
        "one."
    )
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"{readers.after_restore()} events reset; every reader continues at its position.")
