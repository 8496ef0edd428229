"""Old leads are deleted, and open ones never are."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.privacy import retention as registry
from dispatch.leads import retention
from dispatch.leads.models import Campaign, DoNotCall, Lead
from dispatch.leads.services.outcomes import report_outcome
from tests.support import factories
from tests.support.row_locks import uncommitted

pytestmark = pytest.mark.django_db


@pytest.fixture
def campaign() -> Campaign:
    organization = factories.organization()
    return Campaign.objects.create(
        organization=organization, pool=factories.pool(organization), code="spring", name="Spring", script="Hi"
    )


def lead(campaign: Campaign, ended_days_ago: float | None) -> Lead:
    ended = None if ended_days_ago is None else clock.now() - timedelta(days=ended_days_ago)
    state = {"status": "finished", "outcome": "answered", "finished_at": ended} if ended else {}
    old = clock.now() - timedelta(days=999)
    return Lead.objects.create(
        organization=campaign.organization, campaign=campaign, phone=factories.phone(), created_at=old, **state
    )


def test_leads_that_ended_long_ago_are_deleted_and_others_stay(campaign: Campaign) -> None:
    for days in (500, 450, 401):
        lead(campaign, days)
    kept = {lead(campaign, 399).pk, lead(campaign, None).pk}
    foreign = lead(
        Campaign.objects.create(
            organization=(other := factories.organization()), pool=factories.pool(other), code="x", name="X"
        ),
        500,
    )
    DoNotCall.objects.create(organization=campaign.organization, phone="+16025550199")
    before = clock.now() - timedelta(days=retention.LEAD_DAYS)
    assert retention.delete_leads(campaign.organization_id, before, 2) == 2
    assert retention.delete_leads(campaign.organization_id, before, 2) == 1
    assert retention.delete_leads(campaign.organization_id, before, 2) == 0
    assert set(Lead.objects.values_list("pk", flat=True)) == kept | {foreign.pk}
    assert DoNotCall.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_lead_that_is_opened_again_meanwhile_is_kept(campaign: Campaign) -> None:
    opened, old = lead(campaign, 500), lead(campaign, 500)
    before, tomorrow = clock.now() - timedelta(days=retention.LEAD_DAYS), clock.now() + timedelta(days=1)
    with uncommitted(lambda: report_outcome(opened.pk, call_back_at=tomorrow, actor=SYSTEM)):
        assert retention.delete_leads(campaign.organization_id, before, 10) == 1
    assert Lead.objects.get().pk == opened.pk != old.pk
    assert retention.delete_leads(campaign.organization_id, before, 10) == 0


def test_organizations_choose_how_long_leads_are_kept() -> None:
    assert registry.effective_days("leads") == retention.LEAD_DAYS
    assert registry.effective_days("leads", 5) == retention.MIN_DAYS
