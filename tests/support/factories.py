"""Create rows for tests, with sensible defaults and real US places.

Each function creates and returns one object.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from django.test import Client

from accounts.auth import api_keys
from accounts.models import ApiKey, Membership, Organization, User
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.jobs.models import ServiceType
from dispatch.technicians.models import Skill, Technician
from notifications.models import PhoneConfirmation

PASSWORD = "rain on a tin roof"

_count = itertools.count(1)


class Place(NamedTuple):
    """A point on the map: WGS 84 degrees, and an address whose ZIP code lies there."""

    lat: float
    lng: float
    address: str


PHOENIX = Place(33.4484, -112.0740, "200 W Washington St, Phoenix, AZ 85003")
SCOTTSDALE = Place(33.4942, -111.9261, "3939 N Drinkwater Blvd, Scottsdale, AZ 85251")
TEMPE = Place(33.4255, -111.9400, "31 E 5th St, Tempe, AZ 85281")
MESA = Place(33.4152, -111.8315, "20 E Main St, Mesa, AZ 85201")
TUCSON = Place(32.2226, -110.9747, "255 W Alameda St, Tucson, AZ 85701")


def phone() -> str:
    """Return a valid number of Phoenix, in E.164, unique in one run."""
    return f"+1602{next(_count) + 2_550_000:07d}"


def organization(name: str = "", **fields: Any) -> Organization:
    n = next(_count)
    fields.setdefault("time_zone", "America/Phoenix")
    fields.setdefault("slug", f"organization-{n}")
    return Organization.objects.create(name=name or f"Organization {n}", **fields)


def user(name: str = "", **fields: Any) -> User:
    """Create a user without memberships who signs in with PASSWORD."""
    n = next(_count)
    fields.setdefault("email", f"user{n}@example.com")
    return User.objects.create_user(password=PASSWORD, name=name or f"User {n}", **fields)


def member(of: Organization, role: str, name: str = "", **membership: Any) -> User:
    person = user(name)
    Membership.objects.create(organization=of, user=person, role=role, **membership)
    return person


def dispatcher(of: Organization, name: str = "", **membership: Any) -> User:
    """Create a Dispatcher of the organization, on duty unless `on_duty=False`."""
    return member(of, Membership.Role.DISPATCHER, name, **{"on_duty": True, **membership})


def admin(of: Organization, name: str = "", **membership: Any) -> User:
    return member(of, Membership.Role.ADMIN, name, **membership)


def confirm_phone(of: Organization, person: User) -> User:
    """Record that the person confirmed their phone, if they have one: alerts of the organization may use it."""
    if person.phone:
        values = {"phone": person.phone, "confirmed_at": clock.now()}
        PhoneConfirmation.objects.update_or_create(organization=of, user=person, defaults=values)
    return person


def browser(person: User) -> Client:
    """Return a client in which the person is signed in."""
    client = Client()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


def api_key(of: Organization, *scopes: str, **fields: Any) -> str:
    """Return the text of a new key, as a client sends it; with all scopes unless some are named."""
    prefix, whole, secret_hash = api_keys.generate_key()
    fields.setdefault("name", f"Key {prefix}")
    ApiKey.objects.create(
        organization=of,
        prefix=prefix,
        secret_hash=secret_hash,
        scopes=list(scopes or ApiKey.Scope.values),
        **fields,
    )
    return whole


def account(of: Organization, **fields: Any) -> ProviderAccount:
    n = next(_count)
    fields = {
        "name": f"Account {n}",
        "account_sid": f"AC{n:032d}",
        "auth_token": f"token-{n}",
        "calls_per_second": 100.0,
        **fields,
    }
    return ProviderAccount.objects.create(organization=of, **fields)


def pool(of: Organization, **fields: Any) -> DispatchPool:
    """Create a call pool; the organization's first one is its default."""
    n = next(_count)
    first = not DispatchPool.objects.of(of).filter(kind="calls", is_default=True).exists()
    fields = {"code": f"pool-{n:05}", "name": f"Pool {n}", "concurrency": 10, "is_default": first, **fields}
    return DispatchPool.objects.create(organization=of, **fields)


def number(of: Organization, **fields: Any) -> OutboundNumber:
    """Create a caller number with 5 lines, in the organization's first account and pool (created if missing)."""
    fields.setdefault("phone", phone())
    fields.setdefault("max_channels", 5)
    if "account" not in fields:
        fields["account"] = ProviderAccount.objects.of(of).order_by("pk").first() or account(of)
    if "pool" not in fields:
        fields["pool"] = DispatchPool.objects.of(of).filter(kind="calls").order_by("pk").first() or pool(of)
    return OutboundNumber.objects.create(organization=of, **fields)


def skill(of: Organization, code: str = "") -> Skill:
    code = code or f"skill-{next(_count)}"
    return Skill.objects.create(organization=of, code=code, name=code.replace("-", " ").capitalize())


def technician(
    of: Organization, name: str = "", at: Place = PHOENIX, skills: tuple[Skill, ...] = (), **fields: Any
) -> Technician:
    """Create a technician on duty, without shifts (so at work at any hour), at `at`."""
    fields.setdefault("phone", phone())
    made = Technician.objects.create(
        organization=of, name=name or f"Technician {next(_count)}", lat=at.lat, lng=at.lng, **fields
    )
    if skills:
        made.skills.set(skills)
        made.refresh_from_db()
    return made


def service_type(
    of: Organization, code: str = "plumbing", skills: tuple[Skill, ...] = (), **fields: Any
) -> ServiceType:
    fields.setdefault("name", code.replace("-", " ").capitalize())
    made = ServiceType.objects.create(organization=of, code=code, **fields)
    made.required_skills.set(skills)
    return made


def form(service: ServiceType | str = "plumbing", at: Place | None = PHOENIX, **fields: Any) -> dict[str, Any]:
    """Return the body of a POST to /api/v1/submissions/; `at=None` leaves the position out."""
    made: dict[str, Any] = {
        "customer_name": "Dana Whitfield",
        "customer_phone": phone(),
        "service_type": service if isinstance(service, str) else service.code,
        "priority": 3,
        "notes": "Water under the kitchen sink.",
    }
    if at is not None:
        made |= {"address": at.address, "lat": at.lat, "lng": at.lng}
    return made | fields
