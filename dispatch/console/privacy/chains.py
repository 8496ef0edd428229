"""Name an organization, or a hash chain of the audit log, on a command line."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from accounts.models import Organization
from dispatch.core.audit import chain


def add_chain_arguments(parser: CommandParser, *, required: bool) -> None:
    """Add the options --organization SLUG and --installation, which exclude each other."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument(
        "--organization", default="", help=f"The organization's slug.{'' if required else ' Default: all.'}"
    )
    group.add_argument(
        "--installation", action="store_true", help="What superusers changed outside of any organization."
    )


def read_chain(options: dict[str, Any]) -> int | None:
    """Return the id of the chain that the options name, or None for all. Raises CommandError."""
    if options["installation"]:
        return chain.INSTALLATION
    if not options["organization"]:
        return None
    return find_organization(options["organization"]).pk


def find_organization(slug: str) -> Organization:
    """Return the organization that a command names by its slug. Raises CommandError."""
    organization = Organization.objects.filter(slug=slug).first()
    if organization is None:
        raise CommandError(f"Unknown organization: {slug!r}.")
    return organization
