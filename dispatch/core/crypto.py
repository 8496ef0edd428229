"""Encryption at rest for credentials: Fernet under FIELD_ENCRYPTION_KEYS, the newest first."""

from functools import cache
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import models


def _fernet() -> MultiFernet:
    if not settings.FIELD_ENCRYPTION_KEYS:
        raise ImproperlyConfigured("FIELD_ENCRYPTION_KEYS is empty: set it to a key made by `manage.py make_key`.")
    return _fernet_of(tuple(settings.FIELD_ENCRYPTION_KEYS))


@cache
def _fernet_of(keys: tuple[str, ...]) -> MultiFernet:
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except ValueError:
        raise ImproperlyConfigured(
            "FIELD_ENCRYPTION_KEYS holds what is no Fernet key: make keys with `manage.py make_key`."
        ) from None


def unseal(sealed: str) -> str:
    """What a column of an EncryptedTextField holds, in plain; for who reads it without the model.

    Raises ImproperlyConfigured when none of the keys fits."""
    try:
        return _fernet().decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise ImproperlyConfigured(
            "A stored credential does not decrypt with FIELD_ENCRYPTION_KEYS: add the key it was written with."
        ) from error


class EncryptedTextField(models.TextField):
    """Text that is plain in Python and a Fernet token in the table. Not searchable."""

    def get_prep_value(self, value: Any) -> Any:
        value = super().get_prep_value(value)
        return _fernet().encrypt(value.encode()).decode() if value else value

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> str | None:
        return unseal(value) if value else value
