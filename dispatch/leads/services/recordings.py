"""Add recordings, use them in campaigns, and delete those that nothing plays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.urls import reverse

from dispatch.core import clock, keyed_hashes
from dispatch.core.api.problems import Conflict
from dispatch.core.db import prepared
from dispatch.core.http.ssrf import check_target_url
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.leads.models import Campaign, KeyBranch, Recording, RecordingFile
from dispatch.leads.rules import audio

# Recordings of an organization. With the largest files they take a gigabyte.
MAX_RECORDINGS = 200
MAX_URL_LENGTH = 2000
TOO_MANY = mark("Your organization has {count} recordings. Delete some that are not used.")
NOT_HTTPS = mark("Enter an address that begins with https://.")
PURPOSE = "address of a recording"
# Additions of an organization wait for each other, so that together they keep the limit.
_LOCK_LIMIT = "SELECT pg_advisory_xact_lock(hashtextextended('recordings of ' || %(organization)s::text, 0))"


class RecordingInUse(Conflict):
    """A campaign plays the recording."""


def from_file(organization_id: int, content: bytes, name: str) -> Recording:
    """Return a recording that is not saved yet.

    Raises ValidationError if the content is not usable audio, or if the organization has too many recordings.
    """
    _check_limit(organization_id)
    try:
        found = audio.read_audio(content)
    except audio.UnusableAudio as error:
        raise ValidationError(_(str(error)), code="unusable") from None
    recording = Recording(
        organization_id=organization_id,
        name=_clean_name(name),
        content_type=found.content_type,
        size_bytes=len(content),
        duration_s=round(found.duration_s, 2),
        digest=hashlib.sha256(content).hexdigest(),
    )
    recording.content = content  # type: ignore[attr-defined]  # until it is saved
    return recording


def from_url(organization_id: int, url: str, name: str = "") -> Recording:
    """Return a recording that is not saved yet.

    Raises ValidationError if the address is not a public one, or if the organization has too many recordings.
    """
    _check_limit(organization_id)
    if not url.startswith("https://") and not (settings.DEVELOPMENT and url.startswith("http://")):
        raise ValidationError(_(NOT_HTTPS), code="invalid")
    check_target_url(url)
    if len(url) > MAX_URL_LENGTH:
        raise ValidationError(_("Must be at most {most} characters.").format(most=MAX_URL_LENGTH), code="invalid")
    if "#" in url:
        fragment = _("Remove the part from # on: the address of a recording can't have one.")
        raise ValidationError(fragment, code="invalid")
    host = (urlsplit(url).hostname or "").removesuffix(".")
    if not settings.DEVELOPMENT and ("." not in host or host.endswith((".local", ".internal", ".localhost"))):
        raise ValidationError(_("This address can't be reached from the internet."), code="invalid")
    return Recording(organization_id=organization_id, name=_clean_name(name or host), url=url)


def _check_limit(organization_id: int) -> None:
    if Recording.objects.of(organization_id).count() >= MAX_RECORDINGS:
        raise ValidationError(_(TOO_MANY).format(count=MAX_RECORDINGS), code="limit_reached")


def _clean_name(name: str) -> str:
    shown = "".join(character for character in name if character.isprintable()).strip()
    return shown[:120] or "Recording"


def lock_limit(organization_id: int) -> None:
    """Let additions of recordings wait until the end of the transaction. Lock no row of a campaign before."""
    prepared.execute(_LOCK_LIMIT, {"organization": organization_id})


def save_recording(recording: Recording) -> Recording:
    """Save a recording that `from_file` or `from_url` returned, with its file.

    Raises ValidationError if the organization has too many, since others were added meanwhile.
    """
    with transaction.atomic():
        lock_limit(recording.organization_id)
        _check_limit(recording.organization_id)
        recording.save()
        if content := getattr(recording, "content", b""):
            RecordingFile.objects.create(
                organization_id=recording.organization_id, recording=recording, content=content
            )
    return recording


def address_of(recording: Recording) -> str:
    """Return the address at which the provider fetches a recording."""
    return recording.url or f"{settings.PUBLIC_BASE_URL}{path_of(recording)}"


def path_of(recording: Recording) -> str:
    """Return the signed path of a recording whose file is kept here."""
    signature = keyed_hashes.make_hash(PURPOSE, _signed(recording))
    extension = audio.EXTENSIONS[recording.content_type]
    return reverse("recording_file", args=[recording.pk, signature, extension])


def find_by_signature(recording_id: int, signature: str) -> Recording | None:
    """Return the recording whose path has this signature, or None."""
    recording = Recording.objects.filter(pk=recording_id, url="").first() if recording_id < 2**63 else None
    if recording is None or not keyed_hashes.is_hash_of(PURPOSE, _signed(recording), signature):
        return None
    return recording


def _signed(recording: Recording) -> str:
    return f"{recording.pk}:{recording.digest}"


def lock_recordings(recordings: Iterable[Recording | None], campaign_id: int | None) -> None:
    """Lock the recordings that a campaign is about to use, so that none is deleted meanwhile.

    Raises ValidationError if one is gone or belongs to another campaign. Must run in a transaction.
    """
    wanted = sorted({recording.pk for recording in recordings if recording is not None})
    locked = Recording.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk")
    rows = {row.pk: row for row in locked}
    for pk in wanted:
        if pk not in rows:
            raise ValidationError(_("Recording {number} was deleted.").format(number=pk))
        if rows[pk].campaign_id not in (None, campaign_id):
            words = _("Recording {number} belongs to another campaign. Upload it again for this one.")
            raise ValidationError(words.format(number=pk))


def update_uses(campaign: Campaign) -> None:
    """Give a saved campaign the recordings that it uses, and mark its others as unused."""
    played: list[int | None] = [campaign.recording_id, campaign.voicemail_recording_id]
    played.extend(KeyBranch.objects.filter(campaign=campaign).values_list("recording", flat=True))
    used = {pk for pk in played if pk is not None}
    Recording.objects.of(campaign.organization_id).filter(pk__in=used).update(campaign=campaign, unused_at=None)
    unused = Recording.objects.filter(campaign=campaign, unused_at=None).exclude(pk__in=used)
    unused.update(unused_at=clock.now())


def delete_recording(recording_id: int) -> None:
    """Delete a recording. Raises RecordingInUse, and Recording.DoesNotExist."""
    with transaction.atomic():
        recording = Recording.objects.select_for_update(no_key=True).get(pk=recording_id)
        if not find_unreferenced().filter(pk=recording_id).exists():
            by = recording.campaign or _("A campaign")
            raise RecordingInUse(_("{campaign} plays this recording. Remove it there first.").format(campaign=by))
        recording.delete()


def find_unreferenced() -> QuerySet[Any]:
    """Return the recordings that no campaign or branch plays."""
    return Recording.objects.exclude(
        Exists(Campaign.objects.filter(recording=OuterRef("pk")))
    ).exclude(
        Exists(Campaign.objects.filter(voicemail_recording=OuterRef("pk")))
    ).exclude(Exists(KeyBranch.objects.filter(recording=OuterRef("pk"))))  # fmt: skip


def delete_unused(organization_id: int, before: datetime, limit: int) -> int:
    """Delete up to `limit` recordings that nothing has played since before the cutoff; return how many."""
    unused = find_unreferenced().filter(organization_id=organization_id, unused_at__lt=before)
    with transaction.atomic():
        locked = Recording.objects.select_for_update(no_key=True, skip_locked=True).filter(
            pk__in=list(unused.order_by("unused_at").values_list("pk", flat=True)[:limit])
        )
        ids = list(locked.values_list("pk", flat=True))
        # Check again, now that nothing can begin to use them.
        _, counts = find_unreferenced().filter(pk__in=ids).delete()
    return counts.get(Recording._meta.label, 0)
