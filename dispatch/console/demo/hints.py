"""What `make up` tells a newcomer: who can sign in, and what to try."""

from __future__ import annotations

from typing import NamedTuple

from django.conf import settings

from accounts import demo
from accounts.models import Organization, User
from dispatch.console.demo import seed
from dispatch.core import site


class DemoLogin(NamedTuple):
    """`place` is the organization and the role there."""

    email: str
    password: str
    place: str


def demo_logins() -> list[DemoLogin]:
    """The demo's logins that exist in this database; none outside development."""
    if not settings.DEVELOPMENT:
        return []
    emails = [login.email for login in demo.LOGINS] + [seed.OTHER_ADMIN[0]]
    found = []
    for user in User.objects.filter(email__in=emails, is_active=True).order_by("pk"):
        places = [
            f"{member.get_role_display()}, {member.organization.name}" + ("" if member.on_duty else " (off duty)")
            for member in user.memberships.select_related("organization").order_by("pk")
        ]
        if user.is_superuser:
            places.insert(0, "superuser, every organization")
        found.append(DemoLogin(user.email, demo.PASSWORD, "; ".join(places)))
    return found


@site.tells_newcomers
def lines() -> list[str]:
    logins = demo_logins()
    if not logins:
        return []
    width = max(len(login.email) for login in logins)
    told = ["", f"Demo logins (password: {demo.PASSWORD})"]
    told += [f"  {login.email:<{width}}  {login.place}" for login in logins]
    main = Organization.objects.filter(slug=seed.MAIN_SLUG).first()
    if main is None or not seed.key_file().exists():
        return [*told, ""]
    key = seed.key_file().read_text()
    return [
        *told,
        "",
        f"The customers' form of {main.name}: {settings.PUBLIC_BASE_URL}/f/{main.slug}/",
        f"Submit a form to {main.name}, and watch its job in the admin:",
        f"  curl -X POST {settings.PUBLIC_BASE_URL}/api/v1/submissions/ \\",
        f'    -H "Authorization: Bearer {key}" -H "Content-Type: application/json" \\',
        '    -d \'{"customer_name": "Dana Whitfield", "customer_phone": "602-555-0177",',
        '         "service_type": "plumbing", "address": "200 W Washington St, Phoenix, AZ 85003"}\'',
        "",
    ]
