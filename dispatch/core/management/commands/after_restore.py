"""Make a restored database readable for the event readers."""

from typing import Any

from django.core.management.base import BaseCommand

from dispatch.core.counts import count_noun
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
        reset = count_noun(readers.after_restore(), "event")
        self.stdout.write(f"{reset} reset; every reader continues at its position.")
