"""Define the demo organization's logins.

Development only: the demo loader creates them with `create_demo_logins`, and the sign-in page of a development
machine lists them.
"""

from __future__ import annotations

from typing import NamedTuple

from django.conf import settings

from accounts.models import Membership, Organization, User

PASSWORD = "dispatch-demo"  # noqa: S105  (exists under the development flag only)


SUPERUSER = "superuser"


class Login(NamedTuple):
    """Describe one demo login. `role` is the role in the demo organization, or SUPERUSER."""

    email: str
    name: str
    role: str


LOGINS = (
    Login("admin@demo.example", "Alma Reyes", Membership.Role.ADMIN),
    Login("dispatcher@demo.example", "Dana Brooks", Membership.Role.DISPATCHER),
    Login("night@demo.example", "Noor Haddad", Membership.Role.DISPATCHER),
    Login("operator@demo.example", "Sam Ortiz", SUPERUSER),
)


def is_demo_login(user: User) -> bool:
    """Return whether the user is one of the demo logins of a development machine."""
    return bool(settings.DEVELOPMENT) and user.email in {login.email for login in LOGINS}


def create_demo_logins(organization: Organization) -> None:
    """Create the demo logins as members of `organization`. Idempotent.

    The superuser joins no organization. Raises RuntimeError outside development.
    """
    if not settings.DEVELOPMENT:
        raise RuntimeError("Demo logins can only be created with DISPATCH_DEVELOPMENT set.")
    for login in LOGINS:
        user = User.objects.filter(email=login.email).first() or User.objects.create_user(
            login.email, PASSWORD, name=login.name, is_superuser=login.role == SUPERUSER
        )
        if login.role == SUPERUSER:
            continue
        Membership.objects.get_or_create(
            organization=organization,
            user=user,
            defaults={"role": login.role, "on_duty": login.role == Membership.Role.DISPATCHER},
        )
