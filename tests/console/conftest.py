"""A browser without JavaScript, signed in as a given user."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from accounts.models import User
from tests.support.tenants import ours, world

__all__ = ["ours", "world"]

BACKEND = "django.contrib.auth.backends.ModelBackend"


@pytest.fixture
def browser() -> Callable[[User | None], Client]:
    def of(user: User | None = None) -> Client:
        client = Client()
        if user is not None:
            client.force_login(user, backend=BACKEND)
        return client

    return of
