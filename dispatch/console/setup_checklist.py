"""List what a new organization needs before its first job. Rows in the database tick each step."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q, QuerySet
from django.urls import reverse

from accounts.models import ApiKey, Membership, Organization
from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.languages import mark
from dispatch.jobs.models import PublicForm, ServiceType, Submission
from dispatch.technicians.models import Technician
from notifications.services import alert_reach


@dataclass(frozen=True)
class SetupStep:
    """One step: what to do, why, where, and whether it is done."""

    title: str
    help: str
    link: str
    is_done: bool


def load_checklist(organization: Organization) -> list[SetupStep]:
    """Return the steps; empty if all are done, or if the organization has received a form."""
    if Submission.objects.of(organization).exists():
        return []
    steps = [
        SetupStep(
            mark("Connect a phone provider account"),
            mark("Calls and texts are made with its credentials."),
            reverse("admin:capacity_provideraccount_add"),
            _exists(ProviderAccount.objects.of(organization).filter(is_active=True)),
        ),
        SetupStep(
            mark("Add a caller number"),
            mark("Technicians are called from it."),
            reverse("admin:capacity_outboundnumber_add"),
            _exists(OutboundNumber.objects.of(organization).filter(is_paused=False)),
        ),
        SetupStep(
            mark("Add technicians"),
            mark("One by one, or from a CSV file."),
            reverse("admin:technicians_technician_changelist"),
            _exists(Technician.objects.of(organization).filter(is_active=True)),
        ),
        SetupStep(
            mark("Set up a form"),
            mark("Add the services that you offer, and switch on the public form or create an API key."),
            reverse("admin:jobs_servicetype_changelist"),
            _exists(ServiceType.objects.of(organization).filter(is_active=True)) and _has_entrance(organization),
        ),
        SetupStep(
            mark("Invite a colleague"),
            mark("Alerts escalate to them if you are away."),
            reverse("admin:accounts_membership_add"),
            Membership.objects.of(organization).filter(is_active=True).count() > 1,
        ),
        SetupStep(
            mark("Confirm a phone for alerts"),
            mark("Until someone does, nobody is alerted by text or call."),
            reverse("console:notification_choices"),
            alert_reach.reaches_somebody(organization.pk),
        ),
    ]
    return steps if not all(step.is_done for step in steps) else []


def _has_entrance(organization: Organization) -> bool:
    if _exists(PublicForm.objects.of(organization).filter(is_on=True)):
        return True
    keys = ApiKey.objects.of(organization).filter(revoked_at=None, scopes__contains=[ApiKey.Scope.SUBMIT])
    return _exists(keys.filter(Q(expires_at=None) | Q(expires_at__gt=clock.now())))


def _exists(rows: QuerySet) -> bool:
    return bool(rows.exists())
