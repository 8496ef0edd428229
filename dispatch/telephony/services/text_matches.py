"""Decide which text at the provider belongs to which of our rows.

Several rows may be equal to the recipient: the same body, sender and phone. Their listed texts are matched to them
by time, all rows at once. A webhook or a response names the row, and corrects a wrong match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatch.telephony import rules, sms_rules
from dispatch.telephony.handlers import sent_body
from dispatch.telephony.models import Text
from dispatch.telephony.providers.base import ListedText
from dispatch.telephony.services.sms import Status, append_text_event, lock_text, update_fields


class MatchUncertain(Exception):
    """A request for an equal text is in progress, so that a listed text may be its."""


def find_listed_text(text: Text, listed: Sequence[ListedText]) -> ListedText | None:
    """Return the listed text of a locked, unknown text, or None. Raises MatchUncertain."""
    same_account = Text.objects.filter(account__account_sid=text.account.account_sid)
    known: set[Any] = set(same_account.filter(sid__in=[one.sid for one in listed]).values_list("sid", flat=True))
    body = sms_rules.comparable(sent_body(text))
    free = [one for one in listed if one.sid not in known and sms_rules.comparable(one.body) == body]
    # Organizations may share an account at the provider, which then lists the texts of all of them.
    open_requests = same_account.filter(
        direction=Text.Direction.OUT,
        status__in=(Status.REQUESTING, Status.UNKNOWN),
        sid=None,
        requested_at__isnull=False,
        from_phone=text.from_phone,
        to_phone=text.to_phone,
    ).order_by("requested_at", "pk")
    equal = [one for one in open_requests if sms_rules.comparable(sent_body(one)) == body]
    requested = [one.requested_at for one in equal if one.requested_at is not None]
    matches = dict(zip((one.pk for one in equal), rules.match_requests(free, requested), strict=True))
    ours = matches.get(text.pk)
    in_progress = any(one.pk != text.pk and one.status == Status.REQUESTING for one in equal)
    if ours is not None and in_progress and len(free) < len(equal):
        raise MatchUncertain
    return ours if isinstance(ours, ListedText) else None


def take_sid(text: Text, sid: str) -> bool:
    """Give a locked text the SID that the provider named for it. Return False if it belongs to another text.

    An equal text that had the SID from a listing gets that of `text`, or is looked up again.
    """
    holder_id = Text.objects.filter(account_id=text.account_id, sid=sid).values_list("pk", flat=True).first()
    before = text.sid
    if holder_id is None:
        if before is not None and text.checked_at is None:
            return False
        update_fields(text, sid=sid)
        return True
    holder = lock_text(holder_id)
    if holder.sid != sid or holder.checked_at is None or not _are_equal(holder, text):
        return False
    update_fields(holder, sid=None)
    update_fields(text, sid=sid, submitted_at=text.submitted_at or holder.submitted_at)
    if before is not None:
        update_fields(holder, sid=before)
    else:
        update_fields(
            holder, status=Status.UNKNOWN, submitted_at=None, ended_at=None, empty_listings=0, checked_at=None
        )
    append_text_event(holder, "rematched", sid=before or "", other=text.pk)
    return True


def _are_equal(one: Text, other: Text) -> bool:
    return (
        one.direction == other.direction
        and (one.from_phone, one.to_phone) == (other.from_phone, other.to_phone)
        and sms_rules.comparable(sent_body(one)) == sms_rules.comparable(sent_body(other))
    )
