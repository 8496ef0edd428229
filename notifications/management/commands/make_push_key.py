"""Print a new key for VAPID_PRIVATE_KEY."""

from typing import Any

from django.core.management.base import BaseCommand

from notifications.services.push_keys import generate_key


class Command(BaseCommand):
    """Print a new private key."""

    help = "Prints a new key for VAPID_PRIVATE_KEY. Browsers then have to subscribe again."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(generate_key())
