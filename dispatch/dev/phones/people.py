"""List the phones on the page: technicians, and members whom alerts may call."""

from __future__ import annotations

from dataclasses import dataclass

from accounts.models import Membership
from dispatch.capacity.models import OutboundNumber
from dispatch.technicians.models import Technician


@dataclass(frozen=True)
class Handset:
    """Describe a person's phone. `lines`: the organization's numbers (E.164) that they may call or text."""

    number: str
    shown: str
    name: str
    role: str
    organization: str
    on_duty: bool
    lines: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return the number without its plus, for URLs and ids."""
        return self.number.removeprefix("+")


def handsets() -> list[Handset]:
    """Return the handsets by organization and name. If several people share a number, only the first is listed."""
    lines: dict[int, list[str]] = {}
    for owner, phone in OutboundNumber.objects.order_by("pk").values_list("organization_id", "phone"):
        lines.setdefault(owner, []).append(phone.as_e164)
    by_number: dict[str, Handset] = {}
    technicians = Technician.objects.filter(is_active=True, organization__is_active=True)
    for technician in technicians.select_related("organization").order_by("organization__pk", "name"):
        by_number.setdefault(
            technician.phone.as_e164,
            Handset(
                technician.phone.as_e164,
                technician.phone.as_national,
                technician.name,
                "Technician",
                technician.organization.name,
                technician.on_duty and technician.auto_paused_at is None,
                tuple(lines.get(technician.organization_id, ())),
            ),
        )
    members = Membership.objects.filter(is_active=True, user__is_active=True).exclude(user__phone="")
    for member in members.select_related("user", "organization").order_by("organization__pk", "user__name"):
        phone = member.user.phone
        by_number.setdefault(
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
    return sorted(by_number.values(), key=lambda handset: handset.organization)
