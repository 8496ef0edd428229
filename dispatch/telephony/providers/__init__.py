"""Look up phone providers by name.

A provider is a module of this package. In development, settings.PROVIDER_MODULES adds others, for benchmarks.
"""

from __future__ import annotations

import threading
from functools import cache
from importlib import import_module

from django.conf import settings

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.providers.base import Provider

NAMES = {"twilio": "Twilio"}  # name → label
OUT_OF_ORDER = ("Sorry, we have a technical problem right now.", "Please try again in a few minutes. Goodbye.")

_thread_clients = threading.local()
# The most recent clients of a thread are kept, each with its connections.
MAX_CLIENTS = 64


class UnknownProvider(Exception):
    """The account names a provider without a module."""


def for_account(account: ProviderAccount) -> Provider:
    """Return this thread's client of the account, rebuilt after its credentials change. Raises UnknownProvider."""
    clients: dict[int, tuple[tuple[str, ...], Provider]] = _thread_clients.__dict__.setdefault("clients", {})
    credentials = (
        account.provider,
        account.account_sid,
        account.auth_token,
        account.previous_auth_token,
        account.api_key_sid,
        account.api_key_secret,
        account.region,
        account.edge,
        _environment(),
    )
    cached = clients.pop(account.pk, None)
    if cached is None or cached[0] != credentials:
        cached = (credentials, _make(account))
    clients[account.pk] = cached  # at the end: the first one is the least recently used
    if len(clients) > MAX_CLIENTS:
        del clients[next(iter(clients))]
    return cached[1]


def _environment() -> str:
    """Return the part of the cache key that depends on the settings: tests may move the simulator."""
    return settings.SIMULATOR_URL


@cache
def fallback_document(name: str) -> tuple[bytes, str]:
    """Return what a caller hears while Dispatch fails, and its content type.

    Needs no database. Raises UnknownProvider.
    """
    return _make(ProviderAccount(provider=name)).render(VoicePrompt(say=OUT_OF_ORDER), "")


def _make(account: ProviderAccount) -> Provider:
    extra_modules = settings.PROVIDER_MODULES if settings.DEVELOPMENT else {}
    if account.provider in NAMES:
        module = import_module(f"{__name__}.{account.provider}")
    elif account.provider in extra_modules:
        module = import_module(extra_modules[account.provider])
    else:
        raise UnknownProvider(f"{account.provider!r} is not one of {', '.join([*NAMES, *extra_modules])}")
    provider: Provider = module.make(account)
    return provider
