"""Print a new key for FIELD_ENCRYPTION_KEYS."""

from typing import Any

from cryptography.fernet import Fernet
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Print a new Fernet key."""

    help = "Prints a new key for FIELD_ENCRYPTION_KEYS (docs/operations/keys.md says where to put it)."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(Fernet.generate_key().decode())
