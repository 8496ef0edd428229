"""Repeat erasures, opt-outs, withdrawals and do-not-call entries after a restore (`core.privacy.replay`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from django.db import transaction
from django.db.models import TextField
from django.db.models.functions import Cast
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import Membership, Organization
from dispatch.console.privacy import lookup
from dispatch.core import keyed_hashes
from dispatch.core.events import Actor
from dispatch.core.privacy import personal_data, replay, scrubbing
from dispatch.core.privacy.personal_data import DataSubject, StillNeeded
from dispatch.core.privacy.replay import Entry
from dispatch.jobs.models import Submission
from dispatch.leads.models import DoNotCall, DoNotCallEverywhere, Lead
from dispatch.leads.services import consents, do_not_call
from dispatch.schedules.models import Schedule
from dispatch.technicians.models import Technician
from dispatch.telephony.models import OptOut
from dispatch.telephony.services import sms

OPERATOR = Actor(label="An operator")
# Columns, besides those of type phone number, that hold one; and JSON columns that may hold email addresses.
_PHONE_COLUMNS = {"from_phone", "to_phone"}
_WITH_EMAILS = ((Submission, "form"), (Submission, "extra"), (Lead, "data"), (Schedule, "payload"))
_EMAIL = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+@[\w-]+(?:\.[\w-]+)+")


@dataclass
class ReplayReport:
    """What a replay did. `problems` are entries that must be replayed again, with the reason."""

    applied: int = 0
    pending: int = 0
    problems: list[str] = field(default_factory=list)


def replay_entries(entries: Iterable[Entry]) -> ReplayReport:
    """Repeat the entries that the restored database does not have. Run it before any other process.

    Each entry is repeated in its own transaction, and stored, so that a second replay skips it. An erasure that an
    open item prevents is reported, and not stored.
    """
    report = ReplayReport()
    new = list(replay.new_entries(entries))
    known_keys = set(keyed_hashes.key_ids())
    organizations = set(Organization.objects.values_list("pk", flat=True))
    values: dict[int | None, dict[str, str]] = {}
    for entry in new:
        of = entry.organization_id
        if of is not None and of not in organizations:
            continue  # created after the dump, so nothing of it was restored
        if entry.keyed_hash and entry.key_id not in known_keys:
            report.problems.append(
                f"{entry.kind} {entry.uid}: add the key {entry.key_id} to FIELD_ENCRYPTION_KEYS."
            )
            continue
        if of not in values:
            values[of] = replay.match_values(_values_of(of))
        try:
            with transaction.atomic():
                is_applied = _apply(entry, values[of].get(entry.keyed_hash, ""))
                is_pending = not is_applied and entry.kind in replay.MAY_BE_PENDING
                entry.row(is_pending=is_pending).save()
        except StillNeeded as error:
            report.problems.append(f"{entry.kind} {entry.uid}: {error}")
            continue
        report.applied += is_applied
        report.pending += is_pending
    replay.reset()
    return report


def _apply(entry: Entry, value: str) -> bool:
    """Repeat one entry. `value` is the phone or email that it concerns; empty if the database does not have it.

    Return False if it concerned nothing.
    """
    if entry.kind in (replay.TECHNICIAN_ERASURE, replay.USER_ERASURE, replay.INVITATION_ERASURE):
        return _erase_by_id(entry)
    if not value:
        return False
    if entry.kind == replay.ERASURE:
        assert entry.organization_id is not None
        is_email = "@" in value
        person = DataSubject(
            entry.organization_id, phone="" if is_email else value, email=value if is_email else ""
        )
        personal_data.erase_person(person, actor=OPERATOR, is_replay=True)
    elif entry.kind == replay.OPT_OUT and entry.organization_id is not None:
        sms.opt_out(entry.organization_id, value, source=OptOut.Source.HAND, actor=OPERATOR)
    elif entry.kind == replay.DO_NOT_CALL and entry.organization_id is not None:
        do_not_call.add_to_list(
            entry.organization_id, value, source=DoNotCall.Source.PERSON, actor=OPERATOR, note="After a restore"
        )
    elif entry.kind == replay.DO_NOT_CALL:
        DoNotCallEverywhere.objects.get_or_create(phone=value, defaults={"note": "After a restore"})
    elif entry.kind == replay.CONSENT_WITHDRAWAL and entry.organization_id is not None:
        return consents.repeat_withdrawal(
            entry.organization_id, value, entry.subject_id or 0, at=entry.at, actor=OPERATOR
        )
    else:
        return False
    return True


def _erase_by_id(entry: Entry) -> bool:
    """Erase the technician, member or invitation.

    A technician or user that is younger than the entry only has the same id. A member whom the backup has as
    invited has an invitation only.
    """
    assert entry.organization_id is not None
    assert entry.subject_id is not None
    if entry.kind == replay.TECHNICIAN_ERASURE:
        technician = (
            Technician.objects.of(entry.organization_id)
            .filter(pk=entry.subject_id, created_at__lt=entry.at)
            .first()
        )
        if technician is None:
            return False
        person = DataSubject(entry.organization_id, phone=str(technician.phone), technician_id=technician.pk)
    else:
        members = Membership.objects.of(entry.organization_id).filter(user__created_at__lt=entry.at)
        if entry.kind == replay.USER_ERASURE:
            member = members.filter(user=entry.subject_id).first()
        else:
            member = members.filter(pk=entry.subject_id, joined_at=None).first()
        if member is None:
            return False
        person = lookup.subject_of(member)
    personal_data.erase_person(person, actor=OPERATOR, is_replay=True)
    return True


def _values_of(organization_id: int | None) -> set[str]:
    """Return every phone number and email address in the rows of the organization, or of all for None."""
    values: set[str] = set()
    for model, columns in scrubbing.owned_columns():
        rows = model._default_manager.order_by()
        if organization_id is not None:
            rows = rows.filter(organization_id=organization_id)
        for column in columns:
            if isinstance(column, PhoneNumberField) or column.name in _PHONE_COLUMNS:
                values |= {str(phone) for phone in rows.values_list(column.name, flat=True).distinct() if phone}
    if organization_id is not None:
        values |= set(_emails_of(organization_id))
    return values


def _emails_of(organization_id: int) -> Iterator[str]:
    for model, name in _WITH_EMAILS:
        rows = model._default_manager.filter(organization_id=organization_id, **{f"{name}__icontains": "@"})
        for text in rows.values_list(Cast(name, TextField()), flat=True).iterator():
            yield from (email.lower() for email in _EMAIL.findall(text))
