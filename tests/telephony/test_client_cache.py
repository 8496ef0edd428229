"""A thread keeps the clients of few accounts, and closes those that it no longer uses."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony import providers
from tests.benchmarks import noop_provider


class Client(noop_provider.Noop):
    """A client that counts how many are open."""

    open = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).open += 1

    def close(self) -> None:
        type(self).open -= 1


def make(account: ProviderAccount) -> Client:
    return Client()


@pytest.fixture(autouse=True)
def _fresh(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PROVIDER_MODULES = {"counted": __name__}
    monkeypatch.setattr(providers, "_thread_clients", threading.local())
    Client.open = 0


def account(pk: int, **fields: Any) -> ProviderAccount:
    return ProviderAccount(pk=pk, provider="counted", account_sid=f"AC{pk}", **fields)


def test_a_thread_keeps_the_clients_of_a_few_accounts() -> None:
    for pk in range(1, 41):
        providers.for_account(account(pk))
    assert Client.open == providers.MAX_CLIENTS


def test_the_client_of_an_account_is_reused() -> None:
    first = providers.for_account(account(1))
    for pk in range(2, 2 + providers.MAX_CLIENTS - 1):
        providers.for_account(account(pk))
    assert providers.for_account(account(1)) is first


def test_idle_clients_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    for pk in range(1, 6):
        providers.for_account(account(pk))
    monkeypatch.setattr(providers, "IDLE_S", 0.0)
    providers.for_account(account(6))
    assert Client.open == 1


def test_a_client_with_former_credentials_is_closed() -> None:
    same = account(1)
    first = providers.for_account(same)
    assert providers.for_account(same) is first
    same.auth_token = "new"
    assert providers.for_account(same) is not first
    assert Client.open == 1
