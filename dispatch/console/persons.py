"""Who is meant by what somebody typed: a customer's phone or e-mail, a technician, a user."""

from __future__ import annotations

from phonenumber_field.phonenumber import PhoneNumber

from accounts.models import Membership, Organization
from dispatch.core.ids import read_id
from dispatch.core.personal import Person
from dispatch.technicians.models import Technician


class Unclear(ValueError):
    """Nobody is meant, or it cannot be read; its text says what to do."""


def find(
    organization: Organization, *, phone: str = "", email: str = "", technician: str = "", user: str = ""
) -> Person:
    """The person; `technician` is an id, `user` the e-mail of a member; one of the four. Raises Unclear."""
    given = [value for value in (phone, email, technician, user) if value]
    if len(given) != 1:
        raise Unclear("Name exactly one: a phone, an e-mail, a technician or a user.")
    if phone:
        number = PhoneNumber.from_string(phone, region=organization.default_region)
        if not number.is_valid():
            raise Unclear(f"{phone} is not a phone number. Write it as +16025550123.")
        return Person(organization.pk, phone=number.as_e164)
    if email:
        return Person(organization.pk, email=email.strip().lower())
    if technician:
        row = Technician.objects.of(organization).filter(pk=read_id(technician) or 0).first()
        if row is None:
            raise Unclear(f"There is no technician {technician} in {organization}.")
        return Person(organization.pk, phone=str(row.phone), technician_id=row.pk)
    members = Membership.objects.of(organization).select_related("user")
    member = members.filter(user__email=user.strip().lower()).first()
    if member is None:
        raise Unclear(f"Nobody with the e-mail {user} is a member of {organization}.")
    found = member.user
    return Person(organization.pk, phone=str(found.phone), email=found.email, user_id=found.pk)
