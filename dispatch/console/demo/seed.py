"""Loads the demo organizations; run twice, it changes nothing. Development only."""

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

from accounts import demo, services
from accounts.models import ApiKey, Membership, Organization, User
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.console.demo import data
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.zips import zip_position
from dispatch.jobs.models import DispatchPolicy, PublicForm, ServiceType
from dispatch.technicians.editing import create_technician, set_shifts
from dispatch.technicians.models import Skill, Technician

MAIN_SLUG, OTHER_SLUG = "desert-air", "silver-state"
OTHER_ADMIN = ("admin@silver-state.example", "Imani Clarke")
# Quick enough to watch, slow enough to follow.
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
    """Both demo organizations with their people, and the demo's API key. Raises NotInDevelopment."""
    if not settings.DEVELOPMENT:
        raise NotInDevelopment("Demo data exists only where DISPATCH_DEVELOPMENT=1 is set.")
    with transaction.atomic():
        main = Organization.objects.filter(slug=MAIN_SLUG).first()
        if main is None:
            main = main_organization("Desert Air & Plumbing", MAIN_SLUG, POLICY)
            _main_people(main)
            _remember_key(main)
        if not Organization.objects.filter(slug=OTHER_SLUG).exists():
            _other_organization()
    return main


def main_organization(
    name: str, slug: str, policy: Mapping[str, Any], lines: Sequence[str] = data.LINES
) -> Organization:
    """An organization of Phoenix with the demo's technicians, service types, policy, account and these lines."""
    made = Organization.objects.create(name=name, slug=slug, time_zone="America/Phoenix")
    _fill(made, data.SKILLS, data.SERVICES, data.TECHNICIANS, lines)
    DispatchPolicy.objects.create(organization=made, **policy)
    PublicForm.objects.create(organization=made)
    heat = ServiceType.objects.of(made).get(code="ac-repair")
    DispatchPolicy.objects.create(organization=made, service_type=heat, weight_distance=1.5)
    return made


def run_organization(slug: str, policy: Mapping[str, Any]) -> Organization:
    """A fresh organization for one run of the demo, with two dispatchers; its shifts are set around the present
    moment, so that the time of day makes no difference. Raises NotInDevelopment."""
    if not settings.DEVELOPMENT:
        raise NotInDevelopment("The demo runs only where DISPATCH_DEVELOPMENT=1 is set.")
    with transaction.atomic():
        made = main_organization(f"Demo run {slug.removeprefix('demo-run-')}", slug, policy, data.RUN_LINES)
        for n in (1, 2):
            user = User.objects.create_user(f"dispatcher{n}@{slug}.example", name=f"Dispatcher {n}")
            Membership.objects.create(
                organization=made, user=user, role=Membership.Role.DISPATCHER, on_duty=n == 1
            )
        for technician in Technician.objects.of(made).exclude(hours=None).select_related("organization"):
            person = next(one for one in data.TECHNICIANS if one.phone == technician.phone.as_e164)
            zone = ZoneInfo(technician.time_zone or made.time_zone)
            begins, ends = (-2, 3) if person.hours and person.hours[1] == data.DAY else (5, 8)
            local = clock.now().astimezone(zone)
            starts, stops = (local + timedelta(hours=begins)).time(), (local + timedelta(hours=ends)).time()
            times = (starts.replace(microsecond=0), stops.replace(microsecond=0))
            set_shifts(technician, [(day, *times) for day in data.EVERY_DAY])
    return made


def key_file() -> Path:
    """Where the demo's API key is kept for who runs this machine: a key is shown once, a demo restarts often."""
    return Path(settings.DATA_DIR) / "secrets" / "demo_api_key"


def new_api_key(organization: Organization, name: str, scopes: Sequence[str]) -> str:
    """The text of a new API key."""
    return services.create_api_key(organization, name, scopes, actor=SYSTEM)[1]


def _remember_key(organization: Organization) -> None:
    whole = new_api_key(organization, "Website form (demo)", list(ApiKey.Scope.values))
    path = key_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(whole)


def _main_people(organization: Organization) -> None:
    demo.load_people(organization)
    dispatchers = Membership.objects.of(organization).filter(role=Membership.Role.DISPATCHER).order_by("pk")
    for resting in dispatchers[1:]:
        services.set_duty(resting.pk, False, actor=SYSTEM)


def _other_organization() -> None:
    made = Organization.objects.create(
        name="Silver State Lock & Glass", slug=OTHER_SLUG, time_zone="America/Los_Angeles", distance_unit="km"
    )
    _fill(made, data.OTHER_SKILLS, data.OTHER_SERVICES, data.OTHER_TECHNICIANS, data.OTHER_LINES)
    DispatchPolicy.objects.create(organization=made, **POLICY)
    PublicForm.objects.create(organization=made, heading="Locked out? Broken glass?")
    email, name = OTHER_ADMIN
    admin = User.objects.filter(email=email).first() or User.objects.create_user(email, demo.PASSWORD, name=name)
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
            # A few hundred metres off the middle of their ZIP code's area, so that no two stand on one spot.
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
    """An account at the simulator, whose id and token follow from the organization's name."""
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
