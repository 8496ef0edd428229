"""Confirm that a user owns the phone to which alerts go: send a code to it, and check the code that they enter.

Alerts by text and call use only confirmed phones. A confirmation holds for one organization, because the code
travels through the organization's account at a provider, whose owner could read it.
A superuser's holds everywhere.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Value, When

from accounts.alert_phones import AlertPhone
from accounts.auth import throttling
from accounts.models import Membership, Organization, User
from dispatch.core import clock, events, keyed_hashes
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import ngettext
from dispatch.core.stored_texts import translate_stored
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call, Text
from notifications.models import PhoneConfirmation
from notifications.services.preferences import call_pool

PURPOSE = "confirm"
DIGITS = 6
VALID = timedelta(minutes=10)
MAX_WRONG_CODES = 5
RING_S, TIME_LIMIT_S = 30, 90
# Stored as the body of the text. Members of the organization can read it.
STORED_BODY = "A code to confirm this phone. The code is not stored."


class CodeNotSent(Exception):
    """No code was sent. The text says why, as a sentence for the user."""


class CodeRefused(Exception):
    """The entered code does not confirm the phone. The text says why, as a sentence for the user."""


@dataclass(frozen=True)
class PhoneState:
    """What the settings page shows: `is_confirmed`, and otherwise until when a code can be entered.

    `accepted_until`: until then, alerts use the phone unconfirmed. `failure`: why the latest code did not arrive.
    """

    is_confirmed: bool
    code_expires_at: datetime | None = None
    accepted_until: datetime | None = None
    failure: str = ""


# --- Reading -----------------------------------------------------------------------------------------------------
def usable_phones(organization_id: int, users: Iterable[User]) -> set[int]:
    """Return the ids of those users to whose phones alerts of the organization may go."""
    phones = {user.pk: str(user.phone) for user in users if user.phone}
    ids = [user.pk for user in users if user.pk in phones]
    rows = PhoneConfirmation.objects.filter(_counts(organization_id), user_id__in=ids).values_list(
        "user_id", "phone"
    )
    return {user_id for user_id, phone in rows if str(phone) == phones[user_id]} if ids else set()


def is_usable(organization_id: int, user: User) -> bool:
    """Return whether alerts of the organization may go to the user's phone."""
    return bool(usable_phones(organization_id, [user]))


def _counts(organization_id: int) -> Q:
    accepted = Q(confirmed_at__isnull=False) | Q(accepted_until__gt=clock.now())
    return accepted & (Q(organization_id=organization_id) | Q(user__is_superuser=True))


def alert_phone() -> Case:
    """Return the expression of a membership's AlertPhone."""
    rows = PhoneConfirmation.objects.filter(
        Q(organization_id=OuterRef("organization_id")) | Q(user__is_superuser=True),
        user_id=OuterRef("user_id"),
        phone=OuterRef("user__phone"),
    )
    return Case(
        When(Q(joined_at=None) | Q(user__phone=""), then=Value(AlertPhone.NONE)),
        When(Exists(rows.filter(confirmed_at__isnull=False)), then=Value(AlertPhone.CONFIRMED)),
        When(Exists(rows.filter(accepted_until__gt=clock.now())), then=Value(AlertPhone.ACCEPTED)),
        default=Value(AlertPhone.UNCONFIRMED),
    )


def needs_confirmation(organization_id: int, user: User) -> bool:
    """Return whether the user has a phone without confirmation, also if alerts still use it."""
    if not user.phone:
        return False
    rows = PhoneConfirmation.objects.filter(_counts(organization_id), user=user, phone=user.phone)
    return not rows.filter(confirmed_at__isnull=False).exists()


def state_of(organization_id: int, user: User) -> PhoneState:
    """Return the state of the user's phone in the organization."""
    if not needs_confirmation(organization_id, user):
        return PhoneState(is_confirmed=bool(user.phone))
    row = PhoneConfirmation.objects.of(organization_id).filter(user=user, phone=user.phone).first()
    if row is None:
        return PhoneState(is_confirmed=False)
    is_open = row.expires_at is not None and row.expires_at > clock.now() and row.wrong_codes < MAX_WRONG_CODES
    accepted = row.accepted_until if row.accepted_until and row.accepted_until > clock.now() else None
    return PhoneState(False, row.expires_at if is_open else None, accepted, _failure(row) if is_open else "")


def _failure(row: PhoneConfirmation) -> str:
    text = telephony.text_of(PURPOSE, row.pk, row.codes_sent)
    failed = (Text.Status.UNDELIVERED, Text.Status.FAILED, Text.Status.REJECTED, Text.Status.NOT_SENT)
    if text is not None:
        return _("The text with the code was not delivered.") if text.status in failed else ""
    call = telephony.calls_of(PURPOSE, row.pk).filter(attempt=row.codes_sent).first()
    is_over = call is not None and call.ended_at is not None and call.answered_at is None
    return _("The call with the code was not answered.") if is_over else ""


# --- Sending -----------------------------------------------------------------------------------------------------
def send_code(user: User, organization: Organization, *, by_call: bool, address: str, actor: Actor) -> None:
    """Send a code to the user's phone by text, or by call. It replaces the previous code. Raise CodeNotSent.

    `address`: the client's, for the rate limits. The text or call is subject to all limits of telephony.
    """
    user = User.objects.get(pk=user.pk)
    if not user.phone:
        raise CodeNotSent(_("Enter your phone number first."))
    if not needs_confirmation(organization.pk, user):
        raise CodeNotSent(_("This number is already confirmed."))
    _take_tokens(user, organization.pk, address)
    try:
        with transaction.atomic():
            row = _start_code(organization.pk, user)
            if by_call:
                _create_call(organization, row, actor)  # telephony's placer requests it, not this web request
            else:
                _create_text(organization, row, actor)
            _append_event(row, "phone_code_sent", actor, by="call" if by_call else "text")
    except telephony.OptedOut as error:
        raise CodeNotSent(_("This number opted out of texts (STOP). Get the code by call.")) from error
    except (telephony.TextNotAllowed, telephony.CallNotAllowed) as error:
        why = translate_stored(str(error))
        words = _("{organization} can't reach this number: {why}").format(organization=organization, why=why)
        raise CodeNotSent(words) from error
    except telephony.NoTextNumber as error:
        words = _("None of {organization}'s numbers can send texts. Get the code by call.")
        raise CodeNotSent(words.format(organization=organization)) from error
    except (telephony.NoLine, telephony.PhoneBusy) as error:
        raise CodeNotSent(_("No line is free for the call. Try again in a minute.")) from error


def _take_tokens(user: User, organization_id: int, address: str) -> None:
    """Count the code per member, phone, organization and address. Raise CodeNotSent beyond a limit."""
    per_person = throttling.parse_rate(settings.PHONE_CODE_RATE)
    phone = keyed_hashes.make_hash("phone code limit", str(user.phone))[:32]
    taken = throttling.take_tokens(
        (f"phone-code:user:{user.pk}", per_person),
        (f"phone-code:phone:{phone}", per_person),
        (f"phone-code:address:{address}", throttling.parse_rate(settings.PHONE_CODE_ADDRESS_RATE)),
        (
            f"phone-code:organization:{organization_id}",
            throttling.parse_rate(settings.PHONE_CODE_ORGANIZATION_RATE),
        ),
    )
    if wait_ms := max(one.wait_ms for one in taken):
        minutes = math.ceil(wait_ms / 60_000)
        raise CodeNotSent(_("Too many codes were sent. Try again in {minutes} min.").format(minutes=minutes))


def _start_code(organization_id: int, user: User) -> PhoneConfirmation:
    """Return the user's locked row, prepared for a new code to their current phone."""
    PhoneConfirmation.objects.get_or_create(
        organization_id=organization_id, user=user, defaults={"phone": user.phone, "nonce": secrets.token_hex(16)}
    )
    row = _locked(organization_id, user).get()
    if row.phone != user.phone:
        row.confirmed_at = row.accepted_until = None
    row.phone, row.nonce = user.phone, row.nonce or secrets.token_hex(16)
    row.codes_sent, row.wrong_codes, row.expires_at = row.codes_sent + 1, 0, clock.now() + VALID
    row.save()
    return row


def _locked(organization_id: int, user: User) -> QuerySet[PhoneConfirmation]:
    rows: QuerySet[PhoneConfirmation] = PhoneConfirmation.objects.of(organization_id).filter(user=user)
    return rows.select_for_update(no_key=True, of=("self",)).select_related("user")


def _create_text(organization: Organization, row: PhoneConfirmation, actor: Actor) -> Text:
    return telephony.create_text(
        organization=organization,
        purpose=PURPOSE,
        subject_id=row.pk,
        attempt=row.codes_sent,
        to_phone=row.phone,
        body=STORED_BODY,
        pool=call_pool(organization.pk),
        not_after=row.expires_at,
        actor=actor,
    )


def _create_call(organization: Organization, row: PhoneConfirmation, actor: Actor) -> Call:
    pool = call_pool(organization.pk)
    if pool is None or row.expires_at is None:
        raise CodeNotSent(_("{organization} has no number that places calls.").format(organization=organization))
    return telephony.create_call(
        organization=organization,
        purpose=PURPOSE,
        subject_id=row.pk,
        attempt=row.codes_sent,
        to_phone=row.phone,
        pool=pool,
        ring_timeout_s=RING_S,
        time_limit_s=TIME_LIMIT_S,
        place_by=row.expires_at,
    )


# --- Checking ----------------------------------------------------------------------------------------------------
def code_of(row: PhoneConfirmation, attempt: int) -> str:
    """Return the code of this attempt, which goes to the phone and nowhere else."""
    return _codes(row, attempt)[0]


def _codes(row: PhoneConfirmation, attempt: int) -> list[str]:
    """Return the code under every key, the first key first: a key may be added between sending and entering."""
    hashes = keyed_hashes.all_hashes("phone code", f"{row.pk}:{row.nonce}:{attempt}:{row.phone}")
    return [f"{int(digest, 16) % 10**DIGITS:0{DIGITS}d}" for digest in hashes]


def is_current(row: PhoneConfirmation, attempt: int) -> bool:
    """Return whether this attempt's code can still be entered."""
    is_open = row.expires_at is not None and row.expires_at > clock.now()
    return attempt == row.codes_sent and is_open and row.phone == row.user.phone


def confirm_phone(user: User, organization_id: int, code: str, *, actor: Actor) -> None:
    """Confirm the user's phone by the code that was sent to it. Raise CodeRefused, which is counted."""
    entered = "".join(code.split())
    with transaction.atomic():
        row = _locked(organization_id, user).first()
        refusal = _refusal(row, entered)
        if row is not None and not refusal:
            row.confirmed_at, row.expires_at, row.accepted_until = clock.now(), None, None
            row.save(update_fields=["confirmed_at", "expires_at", "accepted_until"])
            _append_event(row, "phone_confirmed", actor)
        elif row is not None and is_current(row, row.codes_sent) and row.wrong_codes < MAX_WRONG_CODES:
            PhoneConfirmation.objects.filter(pk=row.pk).update(wrong_codes=F("wrong_codes") + 1)
            if row.wrong_codes + 1 == MAX_WRONG_CODES:
                _append_event(row, "phone_code_locked", actor, wrong_codes=MAX_WRONG_CODES)
    if refusal:
        raise CodeRefused(refusal)


def _refusal(row: PhoneConfirmation | None, entered: str) -> str:
    if row is None or not is_current(row, row.codes_sent):
        return _("The code has expired. Send a new one.")
    if row.wrong_codes >= MAX_WRONG_CODES:
        return _("Too many wrong codes. Send a new one.")
    # every comparison takes the same time, whatever was entered
    matches = [hmac.compare_digest(entered.encode(), known.encode()) for known in _codes(row, row.codes_sent)]
    if any(matches):
        return ""
    left = MAX_WRONG_CODES - row.wrong_codes - 1
    if not left:
        return _("Wrong code. Send a new one.")
    words = ngettext("Wrong code. {left} try left.", "Wrong code. {left} tries left.", left)
    return words.format(left=left)


def _append_event(row: PhoneConfirmation, verb: str, actor: Actor, **data: Any) -> None:
    """Append the event to the organization's audit log. A superuser may have no membership."""
    membership = Membership.objects.of(row.organization_id).filter(user_id=row.user_id).first()
    subject, subject_id = ("membership", membership.pk) if membership else ("user", row.user_id)
    events.append(row.organization_id, f"{subject}.{verb}", subject_id, actor=actor, user_id=row.user_id, **data)
