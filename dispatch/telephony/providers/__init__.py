"""Look up phone providers by name.

A provider is a module of this package. In development, settings.PROVIDER_MODULES adds others, for benchmarks.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from functools import cache
from importlib import import_module
from typing import NamedTuple

from django.conf import settings

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.providers.base import Provider

NAMES = {"twilio": "Twilio"}  # name → label
OUT_OF_ORDER = ("Sorry, we have a technical problem right now.", "Please try again in a few minutes. Goodbye.")

# A process keeps one client per account, for this many accounts, and closes the connections of those that were
# idle for longer (seconds).
MAX_CLIENTS, IDLE_S = 1000, 10.0

_clients: OrderedDict[int, _CachedClient] = OrderedDict()  # account → its client; the last is the latest used
_lock = threading.Lock()


class _CachedClient(NamedTuple):
    credentials: tuple[str, ...]
    client: Provider
    used_at: float


class UnknownProvider(Exception):
    """The account names a provider without a module."""


def for_account(account: ProviderAccount) -> Provider:
    """Return the account's client, which threads share, rebuilt after its credentials change.

    Raises UnknownProvider.
    """
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
    now = time.monotonic()
    with _lock:
        cached = _clients.pop(account.pk, None)
        unused = []
        if cached is not None and cached.credentials != credentials:
            unused.append(cached.client)
            cached = None
        client = _make(account) if cached is None else cached.client
        _clients[account.pk] = _CachedClient(credentials, client, now)
        while len(_clients) > MAX_CLIENTS or now - next(iter(_clients.values())).used_at > IDLE_S:
            unused.append(_clients.popitem(last=False)[1].client)
    for former in unused:
        former.close()
    return client


def probe_server(server: str) -> None:
    """Connect to a server of a provider, for `core.runtime.reachability`. Raises an exception if that fails."""
    from dispatch.telephony.providers.twilio_http import probe_server  # slow to import

    probe_server(server)


def reset_clients() -> None:
    """Close all clients."""
    with _lock:
        former = [cached.client for cached in _clients.values()]
        _clients.clear()
    for client in former:
        client.close()


def _environment() -> str:
    """Return the part of the cache key that depends on the settings: tests may move the simulator."""
    return settings.SIMULATOR_URL


@cache
def without_account(name: str) -> Provider:
    """Return a client that knows no account. It parses and renders, but can't verify. Raises UnknownProvider."""
    return _make(ProviderAccount(provider=name))


@cache
def fallback_document(name: str) -> tuple[bytes, str]:
    """Return what a caller hears while Dispatch fails, and its content type.

    Needs no database. Raises UnknownProvider.
    """
    return without_account(name).render(VoicePrompt(say=OUT_OF_ORDER), "")


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
