"""Check provider accounts at startup: a missing token, or an unknown provider."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError


@register(Tags.database)
def account_tokens(app_configs: Any, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the active provider accounts. Runs with `check --database default` and before migrations."""
    from django.db import connection

    from dispatch.capacity import providers
    from dispatch.capacity.models import ProviderAccount

    try:
        if not databases or ProviderAccount._meta.db_table not in connection.introspection.table_names():
            return []
    except DatabaseError:
        return []  # another check reports an unavailable database
    # Only old columns: `migrate` runs the checks before it adds new ones.
    active = list(ProviderAccount.objects.filter(is_active=True).only("name", "provider", "auth_token"))
    known = dict(providers.choices())
    tokenless = [
        Error(
            f"The active provider account {account.name!r} has no token: every webhook would be rejected.",
            hint="Enter the account's auth token in the admin, or make the account inactive.",
            id="dispatch.E101",
        )
        for account in active
        if not account.auth_token
    ]
    unknown = [
        Error(
            f"The active provider account {account.name!r} uses the unknown provider {account.provider!r}, so it "
            "can't place calls.",
            hint=f"Choose its provider in the admin ({', '.join(known)}), or make the account inactive.",
            id="dispatch.E102",
        )
        for account in active
        if account.provider not in known
    ]
    return [*tokenless, *unknown]
