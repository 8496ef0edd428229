"""Telephone providers by name: the module of that name beside this one, or one that settings.PROVIDER_MODULES adds
in development (a benchmark's)."""

from __future__ import annotations

import threading
from importlib import import_module

from django.conf import settings

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony.providers.base import Provider

NAMES = {"twilio": "Twilio"}  # with what people read

_of_thread = threading.local()


class UnknownProvider(Exception):
    """No module speaks for the provider that an account names."""


def for_account(account: ProviderAccount) -> Provider:
    """This thread's client of the account; a new one when its credentials changed. Raises UnknownProvider."""
    clients: dict[int, tuple[tuple[str, ...], Provider]] = _of_thread.__dict__.setdefault("clients", {})
    credentials = (
        account.provider,
        account.account_sid,
        account.auth_token,
        account.previous_auth_token,
        _where(),
    )
    kept = clients.get(account.pk)
    if kept is None or kept[0] != credentials:
        kept = clients[account.pk] = (credentials, _make(account))
    return kept[1]


def _where() -> str:
    """Part of what a client depends on: the simulator may move (tests)."""
    return settings.SIMULATOR_URL


def _make(account: ProviderAccount) -> Provider:
    added = settings.PROVIDER_MODULES if settings.DEVELOPMENT else {}
    if account.provider in NAMES:
        module = import_module(f"{__name__}.{account.provider}")
    elif account.provider in added:
        module = import_module(added[account.provider])
    else:
        raise UnknownProvider(f"{account.provider!r} is none of {', '.join([*NAMES, *added])}")
    provider: Provider = module.make(account)
    return provider
