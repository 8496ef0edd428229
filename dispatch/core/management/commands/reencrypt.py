"""Encrypt stored credentials again under the first key of FIELD_ENCRYPTION_KEYS."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.core import reencryption
from dispatch.core.counts import count_noun


class Command(BaseCommand):
    """`manage.py reencrypt`: encrypt credentials under the first key, or count those under former keys."""

    help = (
        "Encrypt stored credentials again under the first key of FIELD_ENCRYPTION_KEYS. Afterwards the other keys "
        "can be removed. Can be repeated, and runs beside everything else."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="Only count what former keys encrypted.")

    def handle(self, *args: Any, **options: Any) -> None:
        reports = []
        for report in reencryption.check_columns() if options["check"] else reencryption.reencrypt_columns():
            reports.append(report)
            self.stdout.write(_describe(report, is_check=options["check"]))
        if unreadable := sum(len(report.unreadable) for report in reports):
            raise CommandError(
                f"Values that cannot be decrypted with FIELD_ENCRYPTION_KEYS: {unreadable}. "
                "Add the key that encrypted them, or enter these credentials again."
            )
        if left := sum(report.left for report in reports):
            raise CommandError(
                f"Values under former keys: {left}. "
                + ("Run `manage.py reencrypt`." if options["check"] else "They were in use: run this again.")
            )
        self.stdout.write("Every value is under the first key. The other keys can be removed.")


def _describe(report: reencryption.ColumnReport, *, is_check: bool) -> str:
    parts = [f"{report.name}: {count_noun(report.values, 'value')}", f"{report.under_old_keys} under former keys"]
    if not is_check:
        parts.append(f"{report.reencrypted} encrypted again")
    if report.unreadable:
        shown = ", ".join(map(str, report.unreadable[:20]))
        parts.append(f"{len(report.unreadable)} unreadable (ids {shown}{', …' * (len(report.unreadable) > 20)})")
    return ", ".join(parts)
