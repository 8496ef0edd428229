"""System checks: an active account without a token, or of a provider that nothing speaks for."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError


@register(Tags.database)
def account_tokens(app_configs: Any, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Runs with `check --database default` and before migrating; needs the table."""
    from django.db import connection

    from dispatch.capacity import providers
    from dispatch.capacity.models import ProviderAccount

    try:
        if not databases or ProviderAccount._meta.db_table not in connection.introspection.table_names():
            return []
    except DatabaseError:
        return []  # that it does not answer is another check's finding
    active = list(ProviderAccount.objects.filter(is_active=True))
    known = dict(providers.choices())
    tokenless = [
        Error(
            f"The active provider account {account.name!r} has no token: every webhook would be refused.",
            hint="Enter the account's auth token in the admin, or make the account inactive.",
            id="dispatch.E101",
        )
        for account in active
        if not account.auth_token
    ]
    unknown = [
        Error(
            f"The active provider account {account.name!r} is one of {account.provider!r}, which is not "
            "known here: it can make no call.",
            hint=f"Choose its provider in the admin ({', '.join(known)}), or make the account inactive.",
            id="dispatch.E102",
        )
        for account in active
        if account.provider not in known
    ]
    return [*tokenless, *unknown]
