"""Share the connections to phone providers among the accounts of a process: one client per event loop."""

from __future__ import annotations

import asyncio
import os
import ssl
import weakref
from functools import cache

import certifi
import requests
from django.conf import settings

from dispatch.core.http.service_client import ServiceClient
from dispatch.core.runtime import request_loop

# A connection that had less time than this to be made is no proof that the server cannot be reached (seconds).
FAIR_CONNECT_S = 1.0

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ServiceClient] = weakref.WeakKeyDictionary()


def shared_client() -> ServiceClient:
    """Return the client of the running event loop. `close_client` closes it before the loop ends."""
    loop = asyncio.get_running_loop()
    client = _clients.get(loop)
    if client is None:
        client = _clients[loop] = ServiceClient(
            requests=settings.PROVIDER_REQUESTS,
            per_key=settings.PROVIDER_ACCOUNT_REQUESTS,
            abandon_after_s=settings.PROVIDER_TIMEOUT_S,
            tls=_verification(),
        )
    return client


@request_loop.closes_with_loop
async def close_client() -> None:
    """Close the running loop's client, if it has one."""
    client = _clients.pop(asyncio.get_running_loop(), None)
    if client is not None:
        await client.close()


async def close_idle_client() -> None:
    """Close the running loop's client, unless it has requests in progress."""
    client = _clients.get(asyncio.get_running_loop())
    if client is not None and not client.in_progress:
        await close_client()


def proxy_of(server: str) -> str:
    """Return the proxy that the environment names for this server, as for the provider's SDK; empty if none."""
    return requests.utils.select_proxy(server, requests.utils.get_environ_proxies(server)) or ""


@cache
def _verification() -> ssl.SSLContext:
    """Return what verifies certificates: the authorities that the provider's SDK uses as well."""
    found = requests.Session().merge_environment_settings("https://", {}, None, None, None)["verify"]
    bundle = found if isinstance(found, str) else certifi.where()
    is_folder = os.path.isdir(bundle)
    return ssl.create_default_context(cafile=None if is_folder else bundle, capath=bundle if is_folder else None)
