"""System checks: an active account without a token."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError


@register(Tags.database)
def account_tokens(app_configs: Any, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Runs with `check --database default` and before migrating; needs the table."""
    from django.db import connection

    from dispatch.capacity.models import ProviderAccount

    try:
        if not databases or ProviderAccount._meta.db_table not in connection.introspection.table_names():
            return []
    except DatabaseError:
        return []  # that it does not answer is another check's finding
    return [
        Error(
            f"The active provider account {account.name!r} has no token: every webhook would be refused.",
            hint="Enter the account's auth token in the admin, or make the account inactive.",
            id="dispatch.E101",
        )
        for account in ProviderAccount.objects.filter(is_active=True)
        if not account.auth_token
    ]
