"""Write and delete the notes on a job. Their events carry no text: it may name customers, and events are kept."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import asdict

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction

from accounts.handover_notes.services import clean_text
from accounts.models import Membership
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.models import RememberedAnswer
from dispatch.jobs.models import Job, JobNote
from dispatch.jobs.models.notes import notes_endpoint
from dispatch.jobs.rules.mentions import find_mentions
from dispatch.jobs.services import transitions


def members_of(organization_id: int) -> list[tuple[int, str]]:
    """Return the id and the name of everyone who can be mentioned: the organization's active members."""
    members = Membership.objects.of(organization_id).filter(is_active=True, user__is_active=True)
    return list(members.order_by("user__name", "user_id").values_list("user_id", "user__name"))


def write_note(job_id: int, text: str, *, actor: Actor) -> JobNote:
    """Write a note on the job. The members whom it mentions are notified, each once, but not its author.

    Raises Job.DoesNotExist and ValidationError {text}.
    """
    text = clean_text(unicodedata.normalize("NFC", text))
    if not text:
        raise ValidationError({"text": _("Enter a note.")})
    author = actor.id if actor.type == "user" else None
    with transaction.atomic():
        job = transitions.lock_job(job_id)
        mentions = find_mentions(text, members_of(job.organization_id))
        note: JobNote = JobNote.objects.create(
            organization_id=job.organization_id,
            job=job,
            author_id=author,
            author_label=actor.label,
            text=text,
            mentions=[asdict(mention) for mention in mentions],
        )
        mentioned = sorted({user for mention in mentions for user in mention.users} - {author})
        transitions.append_job_event(
            job, "job.note_written", actor=actor, note_id=note.pk, mentioned=mentioned or None
        )
    return note


def may_delete(note: JobNote, actor: Actor, *, is_admin: bool) -> bool:
    """Return whether the actor may delete the note: its author or an admin."""
    return is_admin or (actor.type == "user" and actor.id is not None and actor.id == note.author_id)


def delete_note(job_id: int, note_id: int, *, actor: Actor, is_admin: bool) -> None:
    """Delete a note on the job. Raises Job.DoesNotExist, JobNote.DoesNotExist and PermissionDenied."""
    with transaction.atomic():
        job = transitions.lock_job(job_id)
        note = job.written_notes.get(pk=note_id)
        if not may_delete(note, actor, is_admin=is_admin):
            raise PermissionDenied(_("Only its author or an admin can delete a note."))
        note.delete()
        _erase_stored_response(job, note_id)
        transitions.append_job_event(job, "job.note_deleted", actor=actor, note_id=note_id)


def _erase_stored_response(job: Job, note_id: int) -> None:
    """Erase the text of a deleted note in the response that is kept for its Idempotency-Key.

    The response stays, so that a repeated request does not write the note again.
    """
    stored = RememberedAnswer.objects.filter(organization_id=job.organization_id, endpoint=notes_endpoint(job.pk))
    for row in stored:
        if (response := json.loads(row.body))["id"] == note_id:
            row.body = json.dumps({**response, "text": "", "mentioned": []}, ensure_ascii=False)
            row.save(update_fields=["body"])
