"""Load the demo organizations. Idempotent. Development only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction

from accounts import demo_logins, services
from accounts.models import ApiKey, Membership, Organization, User
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.zips import zip_position
from dispatch.dev.demo import data
from dispatch.jobs.models import DispatchPolicy, PublicForm, ServiceType
from dispatch.technicians.models import Skill, Technician
from dispatch.technicians.services import create_technician, set_shifts
from notifications.models import PhoneConfirmation

MAIN_SLUG, OTHER_SLUG = "desert-air", "silver-state"
OTHER_ADMIN = ("admin@silver-state.example", "Imani Clarke")
# Fast enough to watch, slow enough to follow.
POLICY = {
    "offer_by_text": True,
    "missed_call_grace_s": 15,
    "answer_timeout_s": 45,
    "ring_timeout_s": 20,
    "answered_extension_s": 30,
    "radius_m": 60_000,
}


class NotInDevelopment(RuntimeError):
    """Demo data exists under the development flag only."""


def seed() -> Organization:
    """Load both demo organizations with their users, and the demo's API key. Raise NotInDevelopment."""
    if not settings.DEVELOPMENT:
        raise NotInDevelopment("Demo data requires DISPATCH_DEVELOPMENT=1.")
    with transaction.atomic():
        main = Organization.objects.filter(slug=MAIN_SLUG).first()
        if main is None:
            main = main_organization("Desert Air & Plumbing", MAIN_SLUG, POLICY)
            _main_people(main)
            _store_key(main)
        if not Organization.objects.filter(slug=OTHER_SLUG).exists():
            _other_organization()
    return main


def main_organization(
    name: str, slug: str, policy: Mapping[str, Any], lines: Sequence[str] = data.LINES
) -> Organization:
    """Create an organization in Phoenix with the demo's data, and `lines` as its caller numbers."""
    made = Organization.objects.create(name=name, slug=slug, time_zone="America/Phoenix")
    _fill(made, data.SKILLS, data.SERVICES, data.TECHNICIANS, lines)
    DispatchPolicy.objects.create(organization=made, **policy)
    PublicForm.objects.create(organization=made)
    heat = ServiceType.objects.of(made).get(code="ac-repair")
    DispatchPolicy.objects.create(organization=made, service_type=heat, weight_distance=1.5)
    return made


def run_organization(slug: str, policy: Mapping[str, Any]) -> Organization:
    """Create an organization for one run of the demo, with two dispatchers. Raise NotInDevelopment.

    Its shifts are set around the current time, so that the time of day makes no difference.
    """
    if not settings.DEVELOPMENT:
        raise NotInDevelopment("The demo requires DISPATCH_DEVELOPMENT=1.")
    with transaction.atomic():
        made = main_organization(f"Demo run {slug.removeprefix('demo-run-')}", slug, policy, data.RUN_LINES)
        wells = ServiceType.objects.of(made).get(code="well-pump")
        # By text, too, so that a technician can answer a text; and with a short grace, so that the answer is late.
        DispatchPolicy.objects.create(
            organization=made, service_type=wells, offer_by_text=True, missed_call_grace_s=1
        )
        for n in (1, 2):
            user = User.objects.create_user(f"dispatcher{n}@{slug}.example", name=f"Dispatcher {n}")
            Membership.objects.create(
                organization=made, user=user, role=Membership.Role.DISPATCHER, on_duty=n == 1
            )
        for technician in Technician.objects.of(made).exclude(hours=None).select_related("organization"):
            person = next(each for each in data.TECHNICIANS if each.phone == technician.phone.as_e164)
            zone = ZoneInfo(technician.time_zone or made.time_zone)
            begins, ends = (-2, 3) if person.hours and person.hours[1] == data.DAY else (5, 8)
            local = clock.now().astimezone(zone)
            starts, stops = (local + timedelta(hours=begins)).time(), (local + timedelta(hours=ends)).time()
            times = (starts.replace(microsecond=0), stops.replace(microsecond=0))
            set_shifts(technician, [(day, *times) for day in data.EVERY_DAY])
    return made


def key_file() -> Path:
    """Return the file with the demo's API key: a key is shown only once, and the demo is restarted often."""
    return Path(settings.DATA_DIR) / "secrets" / "demo_api_key"


def new_api_key(organization: Organization, name: str, scopes: Sequence[str]) -> str:
    """Create an API key and return its text."""
    return services.create_api_key(organization, name, scopes, actor=SYSTEM)[1]


def _store_key(organization: Organization) -> None:
    whole = new_api_key(organization, "Website form (demo)", list(ApiKey.Scope.values))
    path = key_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(whole)


def _main_people(organization: Organization) -> None:
    demo_logins.create_demo_logins(organization)
    members = Membership.objects.of(organization).select_related("user", "organization")
    dispatchers = list(members.filter(role=Membership.Role.DISPATCHER).order_by("pk"))
    for resting in dispatchers[1:]:
        services.set_duty(resting.pk, False, actor=SYSTEM)
    _confirm_phone(dispatchers[-1], data.DISPATCHER_PHONE)


def _confirm_phone(member: Membership, phone: str) -> None:
    """Let alerts of the organization reach the member by text and call."""
    member.user.phone = phone
    member.user.save(update_fields=["phone"])
    PhoneConfirmation.objects.create(
        organization=member.organization, user=member.user, phone=phone, confirmed_at=clock.now()
    )


def _other_organization() -> None:
    made = Organization.objects.create(
        name="Silver State Lock & Glass", slug=OTHER_SLUG, time_zone="America/Los_Angeles", distance_unit="km"
    )
    _fill(made, data.OTHER_SKILLS, data.OTHER_SERVICES, data.OTHER_TECHNICIANS, data.OTHER_LINES)
    DispatchPolicy.objects.create(organization=made, **POLICY)
    PublicForm.objects.create(organization=made, heading="Locked out? Broken glass?")
    email, name = OTHER_ADMIN
    admin = User.objects.filter(email=email).first() or User.objects.create_user(
        email, demo_logins.PASSWORD, name=name
    )
    Membership.objects.create(organization=made, user=admin, role=Membership.Role.ADMIN, on_duty=True)


def _fill(
    made: Organization,
    skills: Mapping[str, str],
    offered: Sequence[data.Service],
    people: Sequence[data.Person],
    lines: Sequence[str],
) -> None:
    known = {code: Skill.objects.create(organization=made, code=code, name=name) for code, name in skills.items()}
    for service in offered:
        row = ServiceType.objects.create(
            organization=made, code=service.code, name=service.name, spoken_name=service.spoken
        )
        row.required_skills.set([known[code] for code in service.required])
    for n, person in enumerate(people):
        _technician(made, person, known, n)
    _lines(made, lines)


def _technician(made: Organization, person: data.Person, known: Mapping[str, Skill], n: int) -> Technician:
    position = zip_position(person.zip_code)
    assert position is not None, person
    days, (starts, ends) = person.hours or (range(0), data.DAY)
    return create_technician(
        made,
        {
            "name": person.name,
            "phone": person.phone,
            # Within a few hundred meters of the center of their ZIP code, so that no two share a position.
            "lat": position[0] + (n % 5 - 2) * 0.004,
            "lng": position[1] + (n % 7 - 3) * 0.004,
            "radius_m": person.radius_m,
            "max_open_jobs": person.max_open_jobs,
            "on_duty": person.on_duty,
            "time_zone": person.time_zone,
        },
        skills=[known[code] for code in person.skills.split()],
        shifts=[(day, starts, ends) for day in days],
    )


def _lines(made: Organization, phones: Sequence[str]) -> None:
    """Create an account at the simulator, with an id and token derived from the organization's name."""
    secret = hashlib.sha256(f"simulated account of {made.slug}".encode()).hexdigest()
    account = ProviderAccount.objects.create(
        organization=made,
        name="Simulator",
        account_sid=f"AC{secret[:32]}",
        auth_token=secret[32:],
        calls_per_second=10.0,
    )
    pool = DispatchPool.objects.create(
        organization=made, code="main", name="Main lines", concurrency=10 * len(phones), is_default=True
    )
    for n, phone in enumerate(phones, 1):
        OutboundNumber.objects.create(
            organization=made,
            account=account,
            pool=pool,
            phone=phone,
            name=f"Line {n}",
            max_channels=10,
            reserved_for_alerts=1,
            sends_texts=True,
            texts_per_second=10.0,
        )
