"""Keep the records of consent: add them, also thousands at once, and withdraw them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db import transaction
from django.db.models import QuerySet

from dispatch.core import clock, events
from dispatch.core.db.prepared import fetch_all, integers, texts
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.keyed_hashes import all_hashes, make_hash
from dispatch.core.languages import mark
from dispatch.core.privacy import replay
from dispatch.leads import eligibility_sql as sql
from dispatch.leads.models import Consent
from dispatch.telephony.services import sms

HASH_PURPOSE = "consent"
DEFAULT_PURPOSE = "marketing"
ALREADY_VALID = mark(
    "This phone already has a valid consent for this purpose. Withdraw it first to record another."
)
NOT_RECORDED = mark("The phone is on the do-not-call list, or withdrew a consent after this one was given.")


class NewConsent(NamedTuple):
    """A consent to record. `given_at`: aware. `words`: those agreed to. `proof`: a URL or text."""

    given_at: datetime
    source: str
    purpose: str = DEFAULT_PURPOSE
    words: str = ""
    proof: str = ""


def record_consents(
    organization_id: int, given: Sequence[tuple[str, NewConsent]], *, actor: Actor = SYSTEM
) -> int:
    """Record the consents of phones (E.164), and return how many are new.

    Left out: a phone that already has a valid consent for the purpose, one that withdrew a consent later than this
    one was given, and one on the do-not-call list. Must run in a transaction.
    """
    if not given:
        return 0
    # in one order, so that concurrent requests do not deadlock
    rows = sorted(dict.fromkeys(_without_withdrawn(organization_id, given)))
    consents = [consent for _, consent in rows]
    params = {
        "organization": organization_id,
        "now": clock.now(),
        "phones": texts(phone for phone, _ in rows),
        "dates": [consent.given_at for consent in consents],
        **{name: texts(getattr(consent, name[:-1]) for consent in consents) for name in ("sources", "purposes")},
        "words": texts(consent.words for consent in consents),
        "proofs": texts(consent.proof for consent in consents),
    }
    written = {pk for (pk,) in fetch_all(sql.INSERT_CONSENTS, params)}
    if written:
        written -= {pk for (pk,) in fetch_all(sql.DELETE_WITHDRAWN, {"ids": integers(written)})}
    if written:
        events.append(organization_id, "consent.recorded", min(written), actor=actor, count=len(written))
    return len(written)


def _without_withdrawn(
    organization_id: int, given: Sequence[tuple[str, NewConsent]]
) -> list[tuple[str, NewConsent]]:
    """Leave out consents that were given before a withdrawal by the same phone of which only a hash is left.

    Such a withdrawal was erased, or the restored dump does not have it.
    """
    phones = {phone for phone, _ in given}
    withdrawn = replay.find_withdrawn(organization_id, phones)
    erased = Consent.objects.filter(organization_id=organization_id).exclude(phone_hash="")
    if erased.exists():
        by_hash = {digest: phone for phone in phones for digest in all_hashes(HASH_PURPOSE, phone)}
        for digest, at in erased.filter(phone_hash__in=list(by_hash)).values_list("phone_hash", "withdrawn_at"):
            if at is not None:
                phone = by_hash[digest]
                withdrawn[phone] = max(at, withdrawn.get(phone, at))
    return [(phone, new) for phone, new in given if phone not in withdrawn or new.given_at > withdrawn[phone]]


def withdraw(
    organization_id: int, phone: str, *, by: str, actor: Actor, purpose: str | None = None, but: int = 0
) -> int:
    """Withdraw the phone's consents, or those for one purpose, and return how many.

    Unanswered calls of leads to it are hung up, except the call `but`. No later record of an older consent makes
    them valid again.
    """
    with transaction.atomic():
        sms.lock_phone([organization_id], phone)
        valid = Consent.objects.filter(organization_id=organization_id, phone=phone, withdrawn_at=None)
        if purpose is not None:
            valid = valid.filter(purpose=purpose)
        ids = list(valid.order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True))
        Consent.objects.filter(pk__in=ids).update(withdrawn_at=clock.now(), withdrawn_by=by)
        for pk in ids:
            events.append(organization_id, "consent.withdrawn", pk, actor=actor, by=by)
            replay.record(organization_id, replay.CONSENT_WITHDRAWAL, phone, subject_id=pk)
        if ids:
            sms.hang_up_unanswered([organization_id], phone, actor=actor, but=but)
    return len(ids)


def repeat_withdrawal(organization_id: int, phone: str, consent_id: int, *, at: datetime, actor: Actor) -> bool:
    """Withdraw a consent again, as of `at`, after a restore that brought it back (by "file").

    Return False if the database does not have it: a younger row with the same id is another consent.
    """
    of_phone = Consent.objects.filter(organization_id=organization_id, phone=phone, given_at__lte=at)
    rows = of_phone.filter(pk=consent_id, created_at__lte=at)
    if rows.filter(withdrawn_at=None).update(withdrawn_at=at, withdrawn_by="file"):
        events.append(organization_id, "consent.withdrawn", consent_id, actor=actor, by="file")
    return rows.exists()


def valid_consents(
    wanted: Iterable[tuple[int, str, str]],
) -> set[tuple[int, str, str]]:
    """Return those of the (organization id, phone, purpose) for which there is a valid consent."""
    rows = list(wanted)
    if not rows:
        return set()
    organizations, phones, purposes = zip(*rows, strict=True)
    params = {"organizations": integers(organizations), "phones": texts(phones), "purposes": texts(purposes)}
    return {(organization, phone, purpose) for organization, phone, purpose in fetch_all(sql.CONSENTED, params)}


def consents_of(organization_id: int, phone: str) -> QuerySet[Consent]:
    """Return the phone's records, newest first, also those whose phone was erased."""
    rows = Consent.objects.filter(organization_id=organization_id)
    return (rows.filter(phone=phone) | rows.filter(phone_hash__in=all_hashes(HASH_PURPOSE, phone))).order_by("-id")


def erase(organization_id: int, phone: str) -> int:
    """Replace the phone in its records by its hash, and return how many changed. They are no longer valid.

    What proves that calls were lawful stays: the words, the purpose, and when and how it was given and withdrawn.
    """
    rows = Consent.objects.filter(organization_id=organization_id, phone=phone)
    rows.filter(withdrawn_at=None).update(withdrawn_at=clock.now(), withdrawn_by="erased")
    return rows.update(phone="", phone_hash=make_hash(HASH_PURPOSE, phone), proof="")
