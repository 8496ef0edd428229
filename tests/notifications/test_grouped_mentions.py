"""Many notes that mention one person are one notification, which counts those that still exist."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from accounts.models import Membership, User
from accounts.tenancy import actor_of
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs.models import Job, JobNote, Submission
from dispatch.jobs.services import notes
from notifications import services
from notifications.models import Delivery, Notification
from notifications.services.deliveries import is_needed
from notifications.services.notifications import handle, handle_early
from notifications.services.preferences import Wants, save_preference
from tests.support import factories as make
from tests.support.plans import explain_rows_read

pytestmark = pytest.mark.django_db


class Colleagues:
    """Dana writes notes on jobs; Kim and Lee are mentioned and get emails. Events are handled in order."""

    def __init__(self) -> None:
        self.organization = make.organization()
        self.service = make.service_type(self.organization)
        names = ("Dana", "Kim", "Lee")
        self.dana, self.kim, self.lee = (make.dispatcher(self.organization, name) for name in names)
        for person in (self.kim, self.lee):
            wants = Wants(shown=True, email=True, sms=False, voice=False)
            save_preference(person, self.organization.pk, "job.note_written", wants, actor=actor_of(person))
        self.last = 0

    def job(self) -> Job:
        about = {
            "organization": self.organization, "service_type": self.service, "customer_name": "Whitfield",
            "customer_phone": make.phone(),
        }  # fmt: skip
        submission = Submission.objects.create(form={}, status="processed", **about)
        return Job.objects.create(
            submission=submission, status="pending", pending_reason="exhausted", waiting_for="person",
            waiting_since=clock.now(), lat=make.PHOENIX.lat, lng=make.PHOENIX.lng, **about,
        )  # fmt: skip

    def write(self, job: Job, text: str = "@Kim", by: User | None = None) -> JobNote:
        return notes.write_note(job.pk, text, actor=actor_of(by or self.dana))

    def delete(self, note: JobNote) -> None:
        notes.delete_note(note.job_id, note.pk, actor=actor_of(self.dana), is_admin=True)

    def notify(self) -> None:
        batch = list(Event.objects.filter(pk__gt=self.last).order_by("pk"))
        with transaction.atomic():  # as in the event reader
            handle(batch)
        self.last = batch[-1].pk if batch else self.last

    def titles(self, person: User) -> list[str]:
        return [row.title for row in services.unread_of(person, self.organization.pk).order_by("pk")]


@pytest.fixture
def desk() -> Colleagues:
    return Colleagues()


def test_fifty_notes_are_one_notification_and_one_email(desk):
    job = desk.job()
    for number in range(50):
        desk.write(job, f"@Kim {number}")
        desk.notify()
    assert desk.titles(desk.kim) == [f"50 notes on job {job.pk} mention you"]
    assert Delivery.objects.filter(channel="email").count() == 1


def test_a_burst_that_is_handled_twice_is_counted_once(desk):
    job = desk.job()
    for number in range(150):
        desk.write(job, f"@Kim {number}")
    for _ in range(2):
        desk.last = 0
        desk.notify()
    assert desk.titles(desk.kim) == [f"150 notes on job {job.pk} mention you"]
    assert Delivery.objects.count() == 1


def test_each_person_counts_the_notes_that_mention_them(desk):
    job = desk.job()
    for text in ("@Kim", "@Kim and @Lee", "nobody", "@Lee", "@Kim"):
        desk.write(job, text)
        desk.notify()
    assert desk.titles(desk.kim) == [f"3 notes on job {job.pk} mention you"]
    assert desk.titles(desk.lee) == [f"2 notes on job {job.pk} mention you"]
    assert desk.titles(desk.dana) == []


def test_notes_of_two_colleagues_are_counted_together_and_jobs_apart(desk):
    first, second = desk.job(), desk.job()
    desk.write(first)
    desk.write(first, by=desk.lee)
    desk.write(second, by=desk.lee)
    desk.notify()
    assert desk.titles(desk.kim) == [
        f"2 notes on job {first.pk} mention you",
        f"Lee mentioned you in a note on job {second.pk}",
    ]


def test_notes_after_reading_or_ten_minutes_are_a_new_notification(desk):
    job = desk.job()
    desk.write(job)
    desk.notify()
    services.read(desk.kim, desk.organization.pk)
    desk.write(job)
    desk.notify()
    assert desk.titles(desk.kim) == [f"Dana mentioned you in a note on job {job.pk}"]
    clock.travel(601)
    desk.write(job)
    desk.notify()
    assert desk.titles(desk.kim) == [f"Dana mentioned you in a note on job {job.pk}"] * 2


def test_deleted_notes_are_no_longer_counted_until_none_is_left(desk):
    job = desk.job()
    written = [desk.write(job, by=by) for by in (desk.dana, desk.dana, desk.lee)]
    desk.notify()
    row = Notification.objects.get(user=desk.kim)
    titles = ("2 notes on job {} mention you", "Lee mentioned you in a note on job {}", "")
    for note, left in zip(written, titles, strict=True):
        desk.delete(note)
        desk.notify()
        assert desk.titles(desk.kim) == ([left.format(job.pk)] if left else [])
    row.refresh_from_db()
    assert row.settled_how == "Dana deleted the note"
    assert not is_needed(row)
    assert Delivery.objects.get().status == "dropped"


def test_a_note_deleted_before_it_is_handled_counts_for_nobody(desk):
    job = desk.job()
    desk.write(job)
    desk.notify()
    gone = desk.write(job)
    desk.write(job)
    desk.delete(gone)
    handle_early(Event.objects.get(kind="job.note_deleted"))
    desk.notify()
    assert desk.titles(desk.kim) == [f"2 notes on job {job.pk} mention you"]


def test_a_later_notification_keeps_its_count_when_an_earlier_note_is_deleted(desk):
    job = desk.job()
    earlier = desk.write(job)
    desk.notify()
    clock.travel(601)
    desk.write(job)
    desk.write(job)
    desk.notify()
    desk.delete(earlier)
    desk.notify()
    assert desk.titles(desk.kim) == [f"2 notes on job {job.pk} mention you"]


def test_what_was_read_stays_when_a_note_is_deleted(desk):
    job = desk.job()
    note = desk.write(job)
    desk.write(job)
    desk.notify()
    services.read(desk.kim, desk.organization.pk)
    desk.delete(note)
    desk.notify()
    assert Notification.objects.get(user=desk.kim).title == f"2 notes on job {job.pk} mention you"


def test_people_who_left_and_other_organizations_are_not_notified(desk):
    other = make.dispatcher(make.organization("Elsewhere"), "Kim")
    Membership.objects.filter(user=desk.lee).update(is_active=False)
    job = desk.job()
    for _ in range(3):
        desk.write(job, "@Kim @Lee")
    Membership.objects.filter(user=desk.kim).update(is_active=False)
    desk.notify()
    assert not Notification.objects.filter(user__in=[other, desk.kim, desk.lee]).exists()


@pytest.mark.django_db(transaction=True)
def test_notes_and_deletions_that_are_handled_at_once_are_counted_right(desk):
    job = desk.job()
    first = desk.write(job, "@Kim @Lee")
    desk.notify()
    written = [desk.write(job, "@Kim @Lee") for _ in range(20)]
    for note in [first, *written[::2]]:
        desk.delete(note)

    def run(step: str) -> None:
        try:
            if step == "in order":
                desk.notify()
            else:
                for event in Event.objects.filter(kind="job.note_deleted").order_by("pk"):
                    with transaction.atomic():
                        handle_early(event)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as readers:
        list(readers.map(run, ["in order", "early"]))
    for person in (desk.kim, desk.lee):
        assert desk.titles(person) == [f"10 notes on job {job.pk} mention you"]


def test_note_on_a_job_with_very_many_notes_costs_no_more(desk):
    """One job can have as many notes as its organization's API keys may write; the reader of events serves all."""
    job = desk.job()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO core_event (
                organization_id, kind, subject_type, subject_id, actor_type, actor_label, data, at
            )
            SELECT %s, kind, 'job', %s, 'user', 'Dana',
                   jsonb_build_object('note_id', -number, 'mentioned', jsonb_build_array(%s::int)), %s
            FROM generate_series(1, 10000) number, unnest(ARRAY['job.note_written', 'job.note_deleted']) kind
            """,
            [desk.organization.pk, job.pk, desk.kim.pk, clock.now()],
        )
        cursor.execute("ANALYZE core_event")
    desk.last = Event.objects.latest("pk").pk
    desk.write(job)
    desk.notify()
    note = desk.write(job)
    for change in (lambda: desk.write(job), lambda: desk.delete(note)):
        change()
        with CaptureQueriesContext(connection) as captured:
            desk.notify()
        queries = [query["sql"] for query in captured if query["sql"].startswith("SELECT")]
        read = {sql: explain_rows_read(sql, []) for sql in queries}
        assert len(read) > 5
        assert not {sql: rows for sql, rows in read.items() if rows > 100}
    assert desk.titles(desk.kim) == [f"2 notes on job {job.pk} mention you"]
