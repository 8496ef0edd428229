"""Create a tenant's row of each kind; the rows of leads are in tests/leads/rows.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db.models import Model

from accounts.models import (
    ApiKey,
    DefaultView,
    HandoverNote,
    HandoverReading,
    IdentityProvider,
    Membership,
    Organization,
    OrganizationLimits,
    ReportSubscription,
    RetentionRule,
    SavedView,
    User,
)
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.jobs.models import (
    Candidate,
    CustomerText,
    CustomerTextPolicy,
    DispatchPolicy,
    Job,
    JobNote,
    JobText,
    Offer,
    PublicForm,
    ServiceType,
    Submission,
    TechnicianNotice,
)
from dispatch.outbox.models import (
    Attempt,
    DirectRequest,
    Endpoint,
    EventType,
    EventTypeVersion,
    Message,
    MessageGroup,
    PortalLink,
    Target,
)
from dispatch.outbox.services.intake import default_pool
from dispatch.schedules.models import (
    BulkImport,
    ConcurrencyLimit,
    ExclusionCalendar,
    Run,
    RunReport,
    Schedule,
    ScheduleFeed,
)
from dispatch.technicians.models import Shift, Skill, Technician
from dispatch.telephony.models import (
    Call,
    CallEvent,
    ExchangeRate,
    InboundCall,
    NumberHealthPolicy,
    OptOut,
    SpendCap,
    Text,
)
from notifications.models import (
    Alert,
    AlertChannel,
    Claim,
    Delivery,
    EscalationPolicy,
    EscalationStep,
    Notification,
    PhoneConfirmation,
    Preference,
    PushMessage,
    PushSubscription,
    Route,
)
from tests.leads.rows import ROWS as LEAD_ROWS
from tests.support import factories as make

if TYPE_CHECKING:
    from tests.support.tenants import Tenant


def _submission(t: Tenant) -> Submission:
    return Submission.objects.create(
        organization=t.organization,
        status="processed",
        form={"notes": t.tag},
        customer_name=f"{t.tag} customer",
        customer_phone=make.phone(),
        service_type=t.row(ServiceType),
        notes=t.tag,
        address=f"1 {t.tag} Street",
    )


def _job(t: Tenant) -> Job:
    return Job.objects.create(
        organization=t.organization,
        submission=t.row(Submission),
        service_type=t.row(ServiceType),
        status="pending",
        pending_reason="exhausted",
        customer_name=f"{t.tag} customer",
        waiting_for="person",
        customer_phone=make.phone(),
        address=f"1 {t.tag} Street",
        notes=t.tag,
        lat=33.4,
        lng=-112.0,
    )


def _call(t: Tenant) -> Call:
    number = t.row(OutboundNumber)
    return Call.objects.create(
        organization=t.organization,
        purpose="offer",
        subject_id=t.row(Offer).pk,
        account=number.account,
        number=number,
        pool=number.pool,
        line_slot=1,
        pool_slot=1,
        to_phone=make.phone(),
        from_phone=number.phone,
        status="ringing",
        sid=f"CA{t.tag}",
        place_by=clock.now() + timedelta(minutes=5),
        error_message=t.tag,
    )


def _text(t: Tenant) -> Text:
    number = t.row(OutboundNumber)
    return Text.objects.create(
        organization=t.organization,
        purpose="offer",
        subject_id=t.row(Offer).pk,
        account=number.account,
        number=number,
        to_phone=make.phone(),
        from_phone=str(number.phone),
        body=f"{t.tag} has a job",
        status="sent",
        sid=f"SM{t.tag}",
        not_after=clock.now() + timedelta(hours=1),
    )


def _endpoint(t: Tenant) -> Endpoint:
    return Endpoint.objects.create(
        organization=t.organization,
        name=f"{t.tag} ERP",
        url=f"https://{t.tag.lower()}.example/hook",
        secret=f"whsec_{t.tag}",
        headers={"X-Tag": t.tag},
        pool=default_pool(t.organization.pk),
        paused_reason=t.tag,
    )


def _message(t: Tenant) -> Message:
    return Message.objects.create(
        organization=t.organization,
        endpoint=t.row(Endpoint),
        target=t.row(Target),
        group=t.row(MessageGroup),
        type=f"{t.tag.lower()}.changed",
        payload=f'{{"tag": "{t.tag}"}}',
        status="ERROR",
        last_error=t.tag,
        due_at=clock.now(),
        idempotency_key=t.tag,
        calls=1,
        attempts=1,
    )


def _schedule(t: Tenant) -> Schedule:
    return Schedule.objects.create(
        organization=t.organization,
        name=f"{t.tag} visit",
        kind="message",
        payload={"type": t.tag, "endpoint": f"{t.tag} ERP", "payload": {}},
        headers={"X-Tag": t.tag},
        status="ended",
        time_zone="UTC",
        cron="0 9 * * *",
        anchor=clock.now(),
        occurrences=1,
        missed_after_s=300,
        shard=1,
    )


ROWS: dict[type[Model], Callable[[Tenant], Model]] = {
    Organization: lambda t: t.organization,
    User: lambda t: t.dispatcher,
    Membership: lambda t: t.dispatcher.memberships.get(),
    ApiKey: lambda t: ApiKey.objects.get(organization=t.organization),
    OrganizationLimits: lambda t: OrganizationLimits.objects.create(organization=t.organization, api_keys=50),
    IdentityProvider: lambda t: IdentityProvider.objects.create(
        organization=t.organization,
        issuer=f"https://{t.tag.lower()}.example",
        client_id=f"{t.tag} client",
        client_secret=f"{t.tag} secret",
        allowed_domains=[f"{t.tag.lower()}.example"],
    ),
    ReportSubscription: lambda t: ReportSubscription.objects.create(
        organization=t.organization,
        membership=t.row(Membership),
        report="overview",
        due_at=clock.now() + timedelta(days=7),
        next_attempt_at=clock.now() + timedelta(days=7),
    ),
    SavedView: lambda t: SavedView.objects.create(
        organization=t.organization, owner=t.dispatcher, name=t.tag, query=f"city={t.tag}"
    ),
    DefaultView: lambda t: DefaultView.objects.create(
        organization=t.organization, user=t.dispatcher, view=t.row(SavedView)
    ),
    HandoverNote: lambda t: HandoverNote.objects.create(
        organization=t.organization, author=t.dispatcher, text=f"{t.tag} note"
    ),
    HandoverReading: lambda t: HandoverReading.objects.create(note=t.row(HandoverNote), reader=t.dispatcher),
    RetentionRule: lambda t: RetentionRule.objects.create(
        organization=t.organization, what="events", days=400 + t.organization.pk
    ),
    Skill: lambda t: make.skill(t.organization, f"{t.tag.lower()}-gas"),
    Technician: lambda t: make.technician(t.organization, f"{t.tag} Unit", skills=(t.row(Skill),)),
    Shift: lambda t: Shift.objects.create(
        organization=t.organization, technician=t.row(Technician), weekday=1, starts="08:00", ends="17:00"
    ),
    ProviderAccount: lambda t: make.account(
        t.organization, name=f"{t.tag} account", account_sid=f"AC{t.tag.encode().hex()[:32]:0<32}"
    ),
    DispatchPool: lambda t: make.pool(t.organization, name=f"{t.tag} pool", code=f"{t.tag.lower()}-pool"),
    OutboundNumber: lambda t: make.number(
        t.organization, name=f"{t.tag} number", account=t.row(ProviderAccount), pool=t.row(DispatchPool)
    ),
    ServiceType: lambda t: make.service_type(
        t.organization, f"{t.tag.lower()}-boiler", name=f"{t.tag} boiler", skills=(t.row(Skill),)
    ),
    DispatchPolicy: lambda t: DispatchPolicy.objects.create(
        organization=t.organization, service_type=t.row(ServiceType), call_pool=t.row(DispatchPool)
    ),
    PublicForm: lambda t: PublicForm.objects.create(organization=t.organization, heading=f"{t.tag} form"),
    CustomerTextPolicy: lambda t: CustomerTextPolicy.objects.create(
        organization=t.organization, sends_assigned=True, sender_name=f"{t.tag} Heating"
    ),
    Submission: _submission,
    Job: _job,
    CustomerText: lambda t: CustomerText.objects.create(
        organization=t.organization, job=t.row(Job), kind="cancelled", reason=t.tag
    ),
    Candidate: lambda t: Candidate.objects.create(
        organization=t.organization,
        job=t.row(Job),
        technician=t.row(Technician),
        rank=1,
        verdict="in",
        reason=t.tag,
        distance_m=100,
        score=1.0,
    ),
    Offer: lambda t: Offer.objects.create(
        organization=t.organization,
        job=t.row(Job),
        technician=t.row(Technician),
        attempt=1,
        status="timed_out",
        reason=t.tag,
        expires_at=clock.now(),
    ),
    TechnicianNotice: lambda t: TechnicianNotice.objects.create(
        organization=t.organization,
        job=t.row(Job),
        technician=t.row(Technician),
        news="cancelled",
        status="reached",
        reason=t.tag,
        alert_at=clock.now(),
    ),
    Call: _call,
    CallEvent: lambda t: CallEvent.objects.create(
        organization=t.organization, call=t.row(Call), key="0", kind="ringing", payload={"tag": t.tag}
    ),
    Text: _text,
    JobText: lambda t: JobText.objects.create(
        organization=t.organization, job=t.row(Job), text=t.row(Text), technician=t.row(Technician)
    ),
    JobNote: lambda t: JobNote.objects.create(
        organization=t.organization,
        job=t.row(Job),
        author=t.dispatcher,
        author_label=t.dispatcher.name,
        text=f"{t.tag} note",
    ),
    OptOut: lambda t: OptOut.objects.create(organization=t.organization, phone=make.phone()),
    ExchangeRate: lambda t: ExchangeRate.objects.create(
        organization=t.organization, from_currency="EUR", to_currency="USD", rate=1
    ),
    SpendCap: lambda t: SpendCap.objects.create(organization=t.organization, other_currencies=t.tag[:60]),
    NumberHealthPolicy: lambda t: NumberHealthPolicy.objects.create(organization=t.organization),
    InboundCall: lambda t: InboundCall.objects.create(
        organization=t.organization,
        account=t.row(OutboundNumber).account,
        number=t.row(OutboundNumber),
        sid=f"CA-in-{t.tag}",
        from_phone=make.phone(),
    ),
    Endpoint: _endpoint,
    EventType: lambda t: EventType.objects.create(
        organization=t.organization, name=f"order.{t.tag.lower()}", description=f"{t.tag} order", version=1
    ),
    PortalLink: lambda t: PortalLink.objects.create(
        organization=t.organization,
        endpoint=t.row(Endpoint),
        uid=f"{t.tag.lower()}-portal",
        label=t.tag,
        expires_at=clock.now(),
        session_s=60,
    ),
    EventTypeVersion: lambda t: EventTypeVersion.objects.create(
        organization=t.organization, event_type=t.row(EventType), number=1, example={"of": t.tag}
    ),
    Target: lambda t: Target.objects.create(
        organization=t.organization, endpoint=t.row(Endpoint), last_error=f"{t.tag} is away"
    ),
    DirectRequest: lambda t: DirectRequest.objects.create(
        organization=t.organization, pool=t.row(DispatchPool), slot=9, lease_until=clock.now()
    ),
    MessageGroup: lambda t: MessageGroup.objects.create(
        organization=t.organization,
        endpoint=t.row(Endpoint),
        target=t.row(Target),
        name=f"{t.tag}:1",
        key=f"{t.tag}-group",
    ),
    Message: _message,
    Attempt: lambda t: Attempt.objects.create(
        organization=t.organization,
        message=t.row(Message),
        number=1,
        epoch=1,
        ended_at=clock.now(),
        url=f"https://{t.tag.lower()}.example/hook",
        outcome="permanent",
        status_code=400,
        answer=t.tag,
        error=t.tag,
    ),
    Alert: lambda t: Alert.objects.create(
        organization=t.organization,
        event_id=-t.organization.pk,  # of no event that a test appends
        kind="job.pending",
        title=f"{t.tag} job needs a dispatcher",
        body=t.tag,
        subject_type="job",
        subject_id=t.row(Job).pk,
        status="acknowledged",
    ),
    Schedule: _schedule,
    Run: lambda t: Run.objects.create(
        organization=t.organization,
        schedule=t.row(Schedule),
        kind="message",
        shard=t.row(Schedule).shard,
        number=1,
        trigger_at=clock.now(),
        status="failed",
        ended_at=clock.now(),
        error=t.tag,
        result={"tag": t.tag},
    ),
    RunReport: lambda t: RunReport.objects.create(
        organization=t.organization,
        run=t.row(Run),
        epoch=1,
        attempt=1,
        outcome="failed",
        error=t.tag,
        ended_at=clock.now(),
    ),
    BulkImport: lambda t: BulkImport.objects.create(
        organization=t.organization, total=1, actor={"type": "user", "id": 1, "label": t.tag}
    ),
    ExclusionCalendar: lambda t: ExclusionCalendar.objects.create(
        organization=t.organization,
        name=f"{t.tag} holidays",
        url="https://example.com/holidays.ics",
        content="BEGIN:VCALENDAR\nVERSION:2.0\nEND:VCALENDAR\n",
        refresh_at=clock.now(),
    ),
    ConcurrencyLimit: lambda t: ConcurrencyLimit.objects.create(
        organization=t.organization, key=f"{t.tag} key", max_runs=2
    ),
    ScheduleFeed: lambda t: ScheduleFeed.objects.create(organization=t.organization, name=f"{t.tag} calendar"),
    Notification: lambda t: Notification.objects.create(
        organization=t.organization,
        user=t.dispatcher,
        alert=t.row(Alert),
        event_id=-t.organization.pk,  # of no event that a test appends
        kind="job.pending",
        level="critical",
        title=f"{t.tag} job needs a dispatcher",
        body=t.tag,
        subject_type="job",
        subject_id=t.row(Job).pk,
    ),
    Claim: lambda t: Claim.objects.create(
        organization=t.organization, user=t.dispatcher, subject_type="job", subject_id=t.row(Job).pk
    ),
    Delivery: lambda t: Delivery.objects.create(
        organization=t.organization,
        notification=t.row(Notification),
        channel="email",
        status="failed",
        next_attempt_at=None,
        error=t.tag,
    ),
    AlertChannel: lambda t: AlertChannel.objects.create(
        organization=t.organization,
        user=t.dispatcher,
        kind="webhook",
        name=t.tag[:60],
        address="example.org",
        config={"url": "https://example.org/", "token": t.tag},
    ),
    PushSubscription: lambda t: PushSubscription.objects.create(
        organization=t.organization,
        user=t.dispatcher,
        name=t.tag[:60],
        host="push.example.com",
        endpoint=f"https://push.example.com/{t.tag}",
        endpoint_hash=t.tag[:64],
        keys={"p256dh": t.tag, "auth": t.tag},
        server_key=t.tag[:120],
    ),
    PushMessage: lambda t: PushMessage.objects.create(
        organization=t.organization,
        subscription=t.row(PushSubscription),
        purpose="test",
        subject_id=1,
        status="failed",
        next_attempt_at=None,
        ended_at=clock.now(),
        expires_at=clock.now(),
        error=t.tag,
    ),
    PhoneConfirmation: lambda t: PhoneConfirmation.objects.create(
        organization=t.organization, user=t.dispatcher, phone=make.phone(), nonce=t.tag[:32]
    ),
    Preference: lambda t: Preference.objects.create(
        organization=t.organization, user=t.dispatcher, kind="job.pending", email=True, sms=True, voice=True
    ),
    Route: lambda t: Route.objects.create(organization=t.organization, kind="endpoint.disabled", to="dispatchers"),
    EscalationPolicy: lambda t: EscalationPolicy.objects.create(
        organization=t.organization, repeat_s=90, call_pool=t.row(DispatchPool)
    ),
    EscalationStep: lambda t: EscalationStep.objects.create(
        organization=t.organization, policy=t.row(EscalationPolicy), audience="on_duty", after_s=30
    ),
    **LEAD_ROWS,
}
