"""Configure the accounts app."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """Register personal data and encrypted values, and connect the receivers of sign-in signals."""

    name = "accounts"

    def ready(self) -> None:
        from allauth.account.signals import user_logged_in
        from allauth.usersessions.signals import on_user_logged_in

        from accounts import loops
        from accounts.auth import second_factor, sessions  # noqa: F401  (they connect receivers)
        from accounts.handover_notes import retention
        from accounts.personal import PART
        from dispatch.core import crypto
        from dispatch.core.privacy.personal_data import register

        # `sessions` has another one: while SECRET_KEY is replaced, this one would end the user's other sessions.
        user_logged_in.disconnect(on_user_logged_in)
        loops.register()
        retention.register()
        register("accounts", PART)
        for name in ("secret", "seed"):  # of TOTP and of recovery codes
            crypto.register_json_value("mfa.Authenticator", "data", name)
