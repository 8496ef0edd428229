"""Read the facts that `rules.descriptions` needs to explain the state of a lead."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django.db.models import Q

from dispatch.capacity import account_outages
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock
from dispatch.core.languages import date_words
from dispatch.core.languages import gettext as _
from dispatch.core.stored_texts import translate_stored
from dispatch.leads.models import EngineSwitch, Lead
from dispatch.leads.rules import descriptions
from dispatch.leads.rules.states import Outcome, Reason
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call


def explain_lead(lead: Lead) -> str:
    """Explain why this lead was called, is not called yet, or will never be called."""
    now = clock.now()
    if lead.status == Lead.Status.FINISHED:
        refused = lead.outcome == Outcome.EXHAUSTED and not lead.attempts  # by the provider, each time
        return descriptions.describe_outcome(Outcome.NOT_PLACED if refused else lead.outcome, lead.reason)
    if lead.status == Lead.Status.PROCESSING:
        if lead.cancel_requested_at is not None:
            return _("Canceled. Its call is being hung up.")
        call = Call.objects.filter(purpose="lead", subject_id=lead.pk, attempt=lead.token).first()
        if call is None:
            return _("Being called.")
        return _("Being called: {status}.").format(status=_(call.get_status_display()).lower())
    if lead.reason == Reason.DRY_RUN:
        return descriptions.describe_dry_run(lead.simulated_outcome)
    line = ""
    if not lead.reason and lead.due_at <= now:
        if hold := describe_engine_hold():
            return f"{hold}."
        line = _missing_line(lead.campaign.pool)
    return descriptions.explain_waiting(lead.reason, lead.due_at, now, _local_time(lead, lead.due_at), line)


def describe_engine_hold() -> str:
    """Describe the switch that holds the due leads of all organizations, or return "". They have no reason."""
    holding = EngineSwitch.objects.filter(Q(is_stopped=True) | Q(promoter_paused=True))
    engine = holding.order_by("-is_stopped").first()
    if engine is None:
        return ""
    if engine.is_stopped:
        return descriptions.describe_waiting(Reason.STOPPED)
    return _("Calls to due leads are paused for all organizations")


def _local_time(lead: Lead, moment: datetime) -> str:
    shown = moment.astimezone(ZoneInfo(lead.organization.time_zone))
    return f"{date_words(shown)}, {shown:%H:%M:%S %Z}"


def _missing_line(pool: DispatchPool) -> str:
    if hold := telephony.spend_hold(pool.organization_id, "lead"):
        return _("the spending cap. {reason}").format(reason=hold).removesuffix(".")
    if pool.is_paused:
        return _("pool {pool}, which is paused").format(pool=pool.name)
    if not OutboundNumber.objects.filter(pool=pool, is_paused=False, account__is_active=True).exists():
        return _("a usable number in pool {pool}").format(pool=pool.name)
    account = account_outages.outage_of_pool(pool.pk)
    if account and not OutboundNumber.objects.filter(account_outages.IS_USABLE, pool=pool).exists():
        outage = translate_stored(account_outages.describe(account))
        return _("the end of an outage. {reason}").format(reason=outage).removesuffix(".")
    return _("a free line of pool {pool}").format(pool=pool.name)
