"""An organization that texts its customers, and what its customers were texted."""

from __future__ import annotations

import itertools
from typing import Any

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services, timeline
from dispatch.jobs.models import CustomerText, CustomerTextKind, CustomerTextPolicy, Job
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Text
from dispatch.telephony.providers.base import IncomingWebhook
from dispatch.telephony.services import inbound
from notifications.models import Notification
from notifications.services.notifications import handle
from tests.harness.jobs import DANA, MARIA, started_job
from tests.support import factories

ALL = {f"sends_{kind}": True for kind in CustomerTextKind.values}
_sids = itertools.count(1)


class Shop:
    """An organization that texts its customers, with two technicians. No text leaves by itself."""

    def __init__(self, **choice: Any) -> None:
        self.organization = factories.organization("Copper State Plumbing")
        self.number = factories.number(self.organization, sends_texts=True)
        self.service = factories.service_type(self.organization, "water-heater", name="Water heater repair")
        self.maria = factories.dispatcher(self.organization, "Maria Lopez")
        self.ann = factories.technician(self.organization, "Ann Lee", max_open_jobs=5)
        self.bob = factories.technician(self.organization, "Bob Marsh", max_open_jobs=5)
        self.policy = CustomerTextPolicy.objects.create(organization=self.organization, **choice)

    def job(self, **fields: Any) -> Job:
        return started_job(self.organization, self.service, **fields)

    def assign(self, job: Job, technician: Technician | None = None) -> Job:
        services.assign(job.pk, (technician or self.ann).pk, actor=MARIA, confirm_unfit=True)
        return Job.objects.get(pk=job.pk)

    def sent(self) -> None:
        """The texts that wait have left."""
        now = clock.now()
        Text.objects.filter(status="created").update(status="delivered", requested_at=now, ended_at=now)

    def replies(self, body: str, phone: str = DANA) -> Text:
        said = IncomingWebhook(
            f"SM{next(_sids)}", self.number.account.account_sid, str(self.number.phone), phone, body=body
        )
        return inbound.receive_text(self.number, said)

    def notified(self, kind: str) -> list[str]:
        handle(list(Event.objects.order_by("pk")))
        return list(Notification.objects.filter(kind=kind).values_list("title", flat=True))


def texts(job: Job) -> list[tuple[str, str]]:
    """(kind, status) of each text to the customer, in order."""
    rows = {row.pk: row.kind for row in CustomerText.objects.filter(job=job)}
    found = Text.objects.filter(purpose="customer", subject_id__in=rows).order_by("pk")
    return [(rows[text.subject_id], text.status) for text in found]


def body(job: Job, kind: str) -> str:
    row = CustomerText.objects.filter(job=job, kind=kind, text_id__isnull=False).latest("text_id")
    return Text.objects.get(pk=row.text_id).body


def story(job: Job) -> list[str]:
    return [entry.text for entry in timeline.load_timeline(Job.objects.get(pk=job.pk))]
