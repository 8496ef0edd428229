from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "accounts"

    def ready(self) -> None:
        from accounts import schema  # noqa: F401
        from accounts.personal import PART
        from dispatch.core.personal import register

        register("accounts", PART)
