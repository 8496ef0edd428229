"""Configure the accounts app."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """Register the OpenAPI names of the authentication schemes, and the personal data of accounts."""

    name = "accounts"

    def ready(self) -> None:
        from accounts import loops
        from accounts.api import openapi  # noqa: F401
        from accounts.personal import PART
        from dispatch.core.privacy.personal_data import register

        loops.register()
        register("accounts", PART)
