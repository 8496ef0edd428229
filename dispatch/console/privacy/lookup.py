"""Find a person by a customer's phone or email, a technician's id, or a user's email."""

from __future__ import annotations

from accounts.models import Membership, Organization
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.phone_numbers import InvalidPhone, parse_phone
from dispatch.core.privacy.personal_data import DataSubject
from dispatch.technicians.models import Technician


class AmbiguousPerson(ValueError):
    """Raised if no single person matches. The message says what to do."""


def find_person(
    organization: Organization, *, phone: str = "", email: str = "", technician: str = "", user: str = ""
) -> DataSubject:
    """Return the person. Exactly one argument must be set; raise AmbiguousPerson otherwise.

    `technician` is an id, `user` the email of a member or an invited person.
    """
    values = [value for value in (phone, email, technician, user) if value]
    if len(values) != 1:
        raise AmbiguousPerson(_("Enter exactly one: phone, email, technician or member."))
    if phone:
        try:
            number = parse_phone(phone, organization.default_region)
        except InvalidPhone as error:
            raise AmbiguousPerson(str(error)) from None
        return DataSubject(organization.pk, phone=number.as_e164)
    if email:
        return DataSubject(organization.pk, email=email.strip().lower())
    if technician:
        row = Technician.objects.of(organization).filter(pk=read_id(technician) or 0).first()
        if row is None:
            raise AmbiguousPerson(
                _("{organization} has no technician {number}.").format(
                    organization=organization, number=technician
                )
            )
        return DataSubject(organization.pk, phone=str(row.phone), technician_id=row.pk)
    members = Membership.objects.of(organization).select_related("user")
    member = members.filter(user__email=user.strip().lower()).first()
    if member is None:
        words = _("{organization} has no member with the email {email}.")
        raise AmbiguousPerson(words.format(organization=organization, email=user))
    return subject_of(member)


def subject_of(member: Membership) -> DataSubject:
    """Return the member, or the invitation if the person has not joined: the account is not the organization's.

    The phone of an invitation identifies nobody: the inviter typed it, and it may be a customer's.
    """
    account, of = member.user, member.organization_id
    if member.joined_at is None:
        return DataSubject(of, email=account.email, invitation_id=member.pk)
    return DataSubject(of, phone=str(account.phone), email=account.email, user_id=account.pk)
