"""Sign and verify links: the offer page, the technician's page, the customer's page.

A link carries ids, an expiry time, the version of the technician's links, or the customer's phone as a digest.
Each kind is signed with a separate salt, so that a link of one kind is never valid as another. The link is
the only credential: nobody signs in.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeVar

from django.conf import settings
from django.core.signing import BadSignature, Signer
from django.urls import reverse
from django.utils.crypto import salted_hmac

from dispatch.core import clock
from dispatch.jobs.models import Offer, Submission
from dispatch.technicians.models import Technician

T = TypeVar("T")

# An offer page shows the result for a day. It accepts answers only while the offer is live.
OFFER_LINK = timedelta(days=1)
# The `link_version` of a technician whose links were never revoked.
FIRST_VERSION = 1


class InvalidLink(Exception):
    """Raised for a link that is not valid. `expired`: it was valid once."""

    def __init__(self, *, expired: bool = False) -> None:
        self.expired = expired
        super().__init__("expired" if expired else "not a link")


def offer_url(offer: Offer) -> str:
    """Return the URL of the offer page. A new `link_version` of its technician revokes it."""
    numbers = [offer.pk, offer.technician_id, offer.technician.link_version]
    return _url("offer", _sign("offer", numbers, OFFER_LINK))


def offer_of(token: str) -> Offer:
    """Return the offer of a link. Raises InvalidLink, also for revoked links and inactive technicians."""
    offer_id, technician_id, version = _read_offer_token(token)
    offers = Offer.objects.select_related("technician", "job__service_type", "job__organization")
    matches = offers.filter(pk=offer_id, technician_id=technician_id, technician__is_active=True)
    return _require_row(matches.filter(technician__link_version=version, organization__is_active=True).first())


def _read_offer_token(token: str) -> list[int]:
    """Return the ids of the offer and the technician, and the version of the technician's links.

    Links of releases that didn't name the version are valid while the technician's links were never revoked.
    """
    try:
        return _read("offer", token, 3)
    except InvalidLink as error:
        if error.expired:
            raise
    return [*_read("offer", token, 2), FIRST_VERSION]


def technician_url(technician: Technician) -> str:
    """Return the URL of the technician's page. A new `link_version` revokes it."""
    lasts = timedelta(days=settings.TECHNICIAN_LINK_DAYS)
    return _url("technician", _sign("technician", [technician.pk, technician.link_version], lasts))


def technician_of(token: str) -> Technician:
    """Return the technician of a link. Raises InvalidLink, also for revoked links and inactive technicians."""
    pk, version = _read("technician", token, 2)
    technicians = Technician.objects.select_related("organization").filter(
        pk=pk, is_active=True, link_version=version
    )
    return _require_row(technicians.filter(organization__is_active=True).first())


def status_url(submission: Submission) -> str:
    """Return the URL of the customer's page."""
    return request_url(submission.pk)


def request_url(submission_id: int) -> str:
    """Return the URL of the customer's page by the id of the submission."""
    return f"{settings.PUBLIC_BASE_URL}{status_path(submission_id)}"


def status_path(submission_id: int) -> str:
    """Return the path of the customer's page, without the host. It is valid for the current phone."""
    entered, corrected = Submission.objects.values_list("customer_phone", "job__customer_phone").get(
        pk=submission_id
    )
    digest = _phone_digests(entered if corrected is None else corrected)[0]
    return _path("status", _signer("request").sign(f"{submission_id}-{digest}"))


def submission_of(token: str) -> Submission:
    """Return the submission of a link. Raises InvalidLink.

    The link is valid while the request is open, and CUSTOMER_LINK_DAYS after its end. It ends when the customer's
    phone is corrected, so that the wrong phone can't open the page, and when the customer's data is erased.
    """
    pk, digest = _read_status_token(token)
    related = ("organization", "service_type", "job__technician", "job__service_type")
    submissions = Submission.objects.select_related(*related).filter(organization__is_active=True)
    submission = _require_row(submissions.filter(pk=pk).first())
    job = getattr(submission, "job", None)
    phone = submission.customer_phone if job is None else job.customer_phone
    is_for_phone = phone == submission.customer_phone if digest is None else digest in _phone_digests(phone)
    ended_at = job.ended_at if job is not None else None
    lasts = timedelta(days=settings.CUSTOMER_LINK_DAYS)
    is_over = ended_at is not None and ended_at + lasts < clock.now()
    if not submission.customer_phone or not is_for_phone or is_over:
        raise InvalidLink(expired=True)
    return submission


def _read_status_token(token: str) -> tuple[int, int | None]:
    """Return the submission's id and the digest of the phone; None in links of releases that didn't name it."""
    try:
        pk, digest = [int(part) for part in _signer("request").unsign(token).split("-")]
    except (BadSignature, ValueError):
        (pk,), _ = _unsign("status", token, 1)
        return pk, None
    return pk, digest


def _phone_digests(phone: object) -> list[int]:
    """Return the short keyed digests of a phone: the current one, and those of earlier secret keys."""
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    salt = "dispatch.jobs.request.phone"
    return [int(salted_hmac(salt, str(phone), secret=key).hexdigest()[:8], 16) for key in keys]


def sign_token(kind: str, numbers: list[int], lasts: timedelta) -> str:
    """Return a signed token of any kind that carries `numbers`. `read_token` returns them."""
    return _sign(kind, numbers, lasts)


def read_token(kind: str, token: str, count: int) -> list[int]:
    """Return the `count` numbers of a token made by `sign_token`. Raises InvalidLink."""
    return _read(kind, token, count)


def _url(name: str, token: str) -> str:
    return f"{settings.PUBLIC_BASE_URL}{_path(name, token)}"


def _path(name: str, token: str) -> str:
    """Return the path of a page from the routes of these pages alone: all others take half a second to load."""
    return reverse(name, urlconf="dispatch.jobs.public.urls", args=[token])


def _sign(kind: str, numbers: list[int], lasts: timedelta) -> str:
    until = int((clock.now() + lasts).timestamp())
    return _signer(kind).sign("-".join(map(str, [*numbers, until])))


def _read(kind: str, token: str, count: int) -> list[int]:
    numbers, until = _unsign(kind, token, count)
    if until < clock.now():
        raise InvalidLink(expired=True)
    return numbers


def _unsign(kind: str, token: str, count: int) -> tuple[list[int], datetime]:
    try:
        *numbers, until = [int(part) for part in _signer(kind).unsign(token).split("-")]
    except (BadSignature, ValueError):
        raise InvalidLink from None
    if len(numbers) != count:
        raise InvalidLink
    return numbers, datetime.fromtimestamp(until, UTC)


def _signer(kind: str) -> Signer:
    return Signer(salt=f"dispatch.jobs.{kind}", sep=".")


def _require_row(row: T | None) -> T:
    if row is None:
        raise InvalidLink
    return row
