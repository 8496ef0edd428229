"""Write notes on open jobs. One mentions the demo's dispatcher, who has an unread notification of it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from accounts.models import User
from dispatch.dev.demo.history.jobs import JobWriter, person
from dispatch.jobs.models import JobNote
from dispatch.jobs.rules.mentions import find_mentions
from notifications import rules
from notifications.models import Notification

Row = dict[str, Any]


def write_notes(writer: JobWriter, now: datetime, *, delayed: Row, exhausted: Row, lost: Row, paused: Row) -> None:
    """Collect the notes on these jobs. The last dispatcher mentions the first."""
    first, last = writer.dispatchers[0], writer.dispatchers[-1]
    texts = (
        (paused, 21, first, "Gate code 4417. The dog is friendly, but please close the gate."),
        (paused, 18, last, "The customer prefers a call to the office number."),
        (lost, 17, first, "Called twice, no answer. The feed store opens at nine and may know the house."),
        (exhausted, 6, last, f"@{first.name} The tank is in the garage, the water is off. Can wait until 5 pm."),
        (delayed, 4, first, "Told the customer about the delay. That's fine, but not after six."),
    )
    for job, minutes, author, text in texts:
        _write_note(writer, job, now - timedelta(minutes=minutes), author, text)


def _write_note(writer: JobWriter, job: Row, at: datetime, author: User, text: str) -> None:
    members = [(user.pk, user.name) for user in writer.dispatchers]
    mentions = find_mentions(text, members)
    note = writer.batch.add(
        JobNote, job_id=job["id"], author_id=author.pk, author_label=author.name, text=text,
        mentions=[asdict(mention) for mention in mentions], written_at=at,
    )  # fmt: skip
    mentioned = sorted({user for mention in mentions for user in mention.users} - {author.pk})
    rows = [_notification(writer, job, at, author, user) for user in mentioned]
    data = {"note_id": note["id"], "mentioned": mentioned or None}
    writer.batch.event(at, "job.note_written", job["id"], person(author), rows=rows, **data)


def _notification(writer: JobWriter, job: Row, at: datetime, author: User, user: int) -> Row:
    service = writer.service_of(job)
    facts = {"service": service.name, "customer": job["customer_name"], "place": job["address"]}
    rule = rules.BY_KIND["job.note_written"]
    said = rules.message_of(rule, {**facts, "id": job["id"], "actor": author.name})
    return writer.batch.add(
        Notification, kind=rule.kind, level=rule.level, title=said.title, body=said.body, subject_type="job",
        subject_id=job["id"], created_at=at, user_id=user,
    )  # fmt: skip
