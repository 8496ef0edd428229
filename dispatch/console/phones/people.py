"""Whose phones there are: technicians, and members whom alerts may call."""

from __future__ import annotations

from dataclasses import dataclass

from accounts.models import Membership
from dispatch.capacity.models import OutboundNumber
from dispatch.technicians.models import Technician


@dataclass(frozen=True)
class Handset:
    """A person's phone. `lines` are the numbers of ours (E.164) that they may call or text."""

    number: str
    shown: str
    name: str
    role: str
    organization: str
    on_duty: bool
    lines: tuple[str, ...]

    @property
    def key(self) -> str:
        """The number without its plus, for addresses and ids."""
        return self.number.removeprefix("+")


def handsets() -> list[Handset]:
    """By organization and name; of people who share a number the first."""
    lines: dict[int, list[str]] = {}
    for owner, phone in OutboundNumber.objects.order_by("pk").values_list("organization_id", "phone"):
        lines.setdefault(owner, []).append(phone.as_e164)
    found: dict[str, Handset] = {}
    technicians = Technician.objects.filter(is_active=True, organization__is_active=True)
    for one in technicians.select_related("organization").order_by("organization__pk", "name"):
        found.setdefault(
            one.phone.as_e164,
            Handset(
                one.phone.as_e164,
                one.phone.as_national,
                one.name,
                "Technician",
                one.organization.name,
                one.on_duty and one.auto_paused_at is None,
                tuple(lines.get(one.organization_id, ())),
            ),
        )
    members = Membership.objects.filter(is_active=True, user__is_active=True).exclude(user__phone="")
    for member in members.select_related("user", "organization").order_by("organization__pk", "user__name"):
        phone = member.user.phone
        found.setdefault(
            phone.as_e164,
            Handset(
                phone.as_e164,
                phone.as_national,
                member.user.name,
                member.get_role_display(),
                member.organization.name,
                member.on_duty,
                tuple(lines.get(member.organization_id, ())),
            ),
        )
    return sorted(found.values(), key=lambda one: one.organization)
