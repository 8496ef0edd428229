"""Accept an unsigned erasure that `verify_audit_log` reported after an upgrade."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.console.privacy.chains import find_organization
from dispatch.core.audit import erasures


class Command(BaseCommand):
    """`manage.py accept_erasure --organization SLUG --event ID --operator NAME`."""

    help = (
        "Sign an erasure of personal data that a process of a former version made during an upgrade. Do it only "
        "if you know of this erasure: verify_audit_log reports it because nothing else proves that it was one."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--organization", required=True, help="The organization's slug.")
        parser.add_argument("--event", type=int, required=True, help="The event that verify_audit_log names.")
        parser.add_argument("--operator", required=True, help="Your name, for the audit log.")

    def handle(self, *args: Any, **options: Any) -> None:
        organization = find_organization(options["organization"])
        try:
            count = erasures.accept_erasure(organization.pk, options["event"], operator=options["operator"][:120])
        except erasures.NotAcceptable as error:
            raise CommandError(f"{error} Nothing was changed.") from None
        self.stdout.write(f"{count} erased events of {organization.slug} signed.")
