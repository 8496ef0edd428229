"""Getting-started tips that `make up` prints: demo logins, and what to try."""

from __future__ import annotations

from typing import NamedTuple

from django.conf import settings

from accounts import demo_logins as accounts_demo_logins
from accounts.models import Organization, User
from dispatch.capacity.models import ProviderAccount
from dispatch.dev import stack
from dispatch.dev.demo import seed


class DemoLogin(NamedTuple):
    """Describe a demo login. `place`: organization and role."""

    email: str
    password: str
    place: str


def demo_logins() -> list[DemoLogin]:
    """Return the demo logins that exist in this database; none outside development."""
    if not settings.DEVELOPMENT:
        return []
    emails = [login.email for login in accounts_demo_logins.LOGINS] + [seed.OTHER_ADMIN[0]]
    logins = []
    for user in User.objects.filter(email__in=emails, is_active=True).order_by("pk"):
        places = [
            f"{member.get_role_display()}, {member.organization.name}" + ("" if member.on_duty else " (off duty)")
            for member in user.memberships.select_related("organization").order_by("pk")
        ]
        if user.is_superuser:
            places.insert(0, "superuser, all organizations")
        logins.append(DemoLogin(user.email, accounts_demo_logins.PASSWORD, "; ".join(places)))
    return logins


@stack.register_tips
def lines() -> list[str]:
    """Return the demo logins, the public form, a request to try, and what a voice agent needs."""
    logins = demo_logins()
    if not logins:
        return []
    width = max(len(login.email) for login in logins)
    shown = ["", f"Demo logins (password: {accounts_demo_logins.PASSWORD})"]
    shown += [f"  {login.email:<{width}}  {login.place}" for login in logins]
    main = Organization.objects.filter(slug=seed.MAIN_SLUG).first()
    if main is None or not seed.key_file().exists():
        return [*shown, ""]
    key = seed.key_file().read_text()
    account = ProviderAccount.objects.of(main).order_by("pk").first()
    return [
        *shown,
        "",
        f"Public form of {main.name}: {settings.PUBLIC_BASE_URL}/f/{main.slug}/",
        f"Submit a request to {main.name} with the API, then watch its job on the board:",
        f"  export DISPATCH_KEY={key}",
        f"  curl -X POST {settings.PUBLIC_BASE_URL}/api/v1/submissions/ \\",
        '    -H "Authorization: Bearer $DISPATCH_KEY" -H "Content-Type: application/json" \\',
        '    -d \'{"customer_name": "Dana Whitfield", "customer_phone": "602-555-0177",',
        '         "service_type": "plumbing", "address": "200 W Washington St, Phoenix, AZ 85003"}\'',
        "",
        *([f"For a voice agent: TWILIO_AUTH_TOKEN={account.auth_token}", ""] if account else []),
    ]
