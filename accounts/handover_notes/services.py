"""Write, list and read hand-over notes. Their events carry no text: it may name customers, and events are kept."""

from __future__ import annotations

import unicodedata
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from accounts import services as accounts
from accounts.handover_notes.models import MAX_TEXT, HandoverNote, HandoverReading
from accounts.models import Membership, Organization, User
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _

# A note that a colleague of its author has read is shown for this long to those who have not.
SHOWN_AFTER_READING = timedelta(hours=24)
# The same text from a member who is off duty is the same form within this time.
SAME_FORM = timedelta(minutes=10)
MAX_SHOWN = 20
# Letters and symbols that look like a space: the Hangul fillers and the empty Braille pattern.
WITHOUT_SHAPE = "\u115f\u1160\u3164\uffa0\u2800"


@transaction.atomic
def end_shift(membership_id: int, text: str, *, actor: Actor) -> HandoverNote | None:
    """Put a member off duty, and store their note for the next shift. Return the note; None for an empty text.

    A form that is sent twice leaves one note. One that is sent from a second tab, when the member is off duty
    already, leaves another. Raises ValidationError {text}.
    """
    text = clean_text(text)
    locked = Membership.objects.select_for_update(no_key=True, of=("self",)).get(pk=membership_id)
    was_on_duty = locked.on_duty
    member = accounts.set_duty(membership_id, False, actor=actor)
    if not text:
        return None
    own_notes = HandoverNote.objects.of(member.organization_id).filter(author_id=member.user_id, text=text)
    if not was_on_duty and (sent_before := own_notes.filter(written_at__gte=clock.now() - SAME_FORM).last()):
        return sent_before
    note: HandoverNote = HandoverNote.objects.create(
        organization_id=member.organization_id, author_id=member.user_id, text=text
    )
    events.append(member.organization_id, "handover_note.written", note.pk, actor=actor)
    return note


def open_notes(organization: Organization, user: User) -> QuerySet[HandoverNote]:
    """Select the notes that this user, who is on duty, has not read, oldest first.

    A note that no colleague of its author has read stays, also for its author. From the first reading on, it is
    shown to the others for a day, so that all who come on duty see it, and not to its author.
    """
    own_reading = HandoverReading.objects.filter(note=OuterRef("pk"), reader=user)
    is_recent = Q(first_read_at__gte=clock.now() - SHOWN_AFTER_READING) & ~Q(author=user)
    notes = HandoverNote.objects.of(organization).filter(Q(first_read_at=None) | is_recent)
    found: QuerySet[HandoverNote] = notes.exclude(Exists(own_reading)).select_related("author")
    return found.order_by("written_at", "pk")


@transaction.atomic
def mark_as_read(organization: Organization, note_id: int, user: User, *, actor: Actor) -> HandoverNote:
    """Record that the user has read the note; once, however often they press. Raises HandoverNote.DoesNotExist.

    On their own note, an author hides it only from themselves.
    """
    note: HandoverNote = HandoverNote.objects.of(organization).select_for_update(no_key=True).get(pk=note_id)
    now = clock.now()
    _, is_new = HandoverReading.objects.get_or_create(note=note, reader=user, defaults={"read_at": now})
    if not is_new:
        return note
    if note.first_read_at is None and note.author_id != user.pk:
        note.first_read_at = now
        note.save(update_fields=["first_read_at"])
    events.append(note.organization_id, "handover_note.read", note.pk, actor=actor)
    return note


def clean_text(text: str) -> str:
    """Return the text without spaces around it, or "" if none of it can be seen. Raises ValidationError {text}."""
    text = "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").strip().split("\n"))
    if len(text) > MAX_TEXT:
        words = _("The note is too long ({count} characters, at most {limit}). Shorten it.")
        raise ValidationError({"text": words.format(count=len(text), limit=MAX_TEXT)})
    if any(unicodedata.category(letter) in ("Cc", "Cs") and letter not in "\n\t" for letter in text):
        raise ValidationError({"text": _("Remove the characters that can't be seen.")})
    return text if any(_is_visible(letter) for letter in text) else ""


def _is_visible(letter: str) -> bool:
    """Return whether the letter shows something: it is no space, mark on another letter, or mark of direction."""
    category = unicodedata.category(letter)
    return category[0] not in "ZM" and category not in ("Cc", "Cf") and letter not in WITHOUT_SHAPE
