"""Signed links: an offer for its technician, a technician's own page, a request's status for its customer.

A link carries an id and the moment until which it opens its page, both signed under a salt of its kind, so that
one kind never passes for another. It is all that its holder needs: nobody signs in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeVar

from django.conf import settings
from django.core.signing import BadSignature, Signer
from django.urls import reverse

from dispatch.core import clock
from dispatch.jobs.models import Offer, Submission
from dispatch.technicians.models import Technician

T = TypeVar("T")

# An offer's page says for a day what became of it; it can be answered only as long as the offer lives.
OFFER_LINK = timedelta(days=1)


class BadLink(Exception):
    """Not one of our links, or not any more; `expired` when it was one."""

    def __init__(self, *, expired: bool = False) -> None:
        self.expired = expired
        super().__init__("expired" if expired else "not a link")


def offer_url(offer: Offer) -> str:
    return _url("offer", _sign("offer", [offer.pk, offer.technician_id], OFFER_LINK))


def offer_of(token: str) -> Offer:
    """Raises BadLink."""
    offer_id, technician_id = _read("offer", token, 2)
    offers = Offer.objects.select_related("technician", "job__service_type", "job__organization")
    theirs = offers.filter(pk=offer_id, technician_id=technician_id, technician__is_active=True)
    return _there(theirs.filter(organization__is_active=True).first())


def technician_url(technician: Technician) -> str:
    lasts = timedelta(days=settings.TECHNICIAN_LINK_DAYS)
    return _url("technician", _sign("technician", [technician.pk, technician.link_version], lasts))


def technician_of(token: str) -> Technician:
    """Raises BadLink, also for a link from before the latest that voided others, and for one who has left."""
    pk, version = _read("technician", token, 2)
    found = Technician.objects.select_related("organization").filter(pk=pk, is_active=True, link_version=version)
    return _there(found.filter(organization__is_active=True).first())


def status_url(submission: Submission) -> str:
    return f"{settings.PUBLIC_BASE_URL}{status_path(submission.pk)}"


def status_path(submission_id: int) -> str:
    """The address of the status page, without the host."""
    lasts = timedelta(days=settings.CUSTOMER_LINK_DAYS)
    return reverse("pages:status", args=[_sign("status", [submission_id], lasts)])


def submission_of(token: str) -> Submission:
    """Raises BadLink."""
    (pk,) = _read("status", token, 1)
    found = Submission.objects.select_related("organization", "service_type", "job__technician").filter(pk=pk)
    return _there(found.first())


def sign(kind: str, numbers: list[int], lasts: timedelta) -> str:
    """A token of another kind: who reads it with `read` gets the numbers back."""
    return _sign(kind, numbers, lasts)


def read(kind: str, token: str, count: int) -> list[int]:
    """Raises BadLink."""
    return _read(kind, token, count)


def _url(name: str, token: str) -> str:
    return f"{settings.PUBLIC_BASE_URL}{reverse(f'pages:{name}', args=[token])}"


def _sign(kind: str, numbers: list[int], lasts: timedelta) -> str:
    until = int((clock.now() + lasts).timestamp())
    return _signer(kind).sign("-".join(map(str, [*numbers, until])))


def _read(kind: str, token: str, count: int) -> list[int]:
    try:
        *numbers, until = [int(part) for part in _signer(kind).unsign(token).split("-")]
    except (BadSignature, ValueError):
        raise BadLink from None
    if len(numbers) != count:
        raise BadLink
    if datetime.fromtimestamp(until, UTC) < clock.now():
        raise BadLink(expired=True)
    return numbers


def _signer(kind: str) -> Signer:
    return Signer(salt=f"dispatch.jobs.{kind}", sep=".")


def _there(row: T | None) -> T:
    if row is None:
        raise BadLink
    return row
