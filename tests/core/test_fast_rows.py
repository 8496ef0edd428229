"""Single rows by prepared statements: related rows, also those of related rows, are the same as the ORM's."""

from __future__ import annotations

import pytest

from dispatch.core.db import fast_rows
from dispatch.leads.models import Campaign, Recording
from dispatch.telephony.models import CallEvent
from tests.support import factories

pytestmark = pytest.mark.django_db


def test_rows_related_to_related_rows_are_read_in_one_query() -> None:
    organization = factories.organization()
    pool = factories.pool(organization)
    number = factories.number(organization, pool=pool)

    row = fast_rows.fetch_by_pk(type(number), number.pk, "account", "account__organization", "pool")

    assert row == number
    assert row.account == number.account
    assert row.account.organization == organization
    assert row.pool == pool
    for path in ("account", "pool"):
        assert row._meta.get_field(path).is_cached(row)
    assert row.account._meta.get_field("organization").is_cached(row.account)


def test_a_missing_related_row_has_no_related_rows() -> None:
    organization = factories.organization()
    campaign = Campaign.objects.create(
        organization=organization, pool=factories.pool(organization), code="spring", name="Spring"
    )

    row = fast_rows.fetch_by_pk(Campaign, campaign.pk, "recording", "recording__organization", "organization")

    assert row.recording is None
    assert row.organization == organization
    assert Recording.objects.count() == 0


def test_conditions_may_be_on_related_rows() -> None:
    assert fast_rows.fetch_many(CallEvent, "r1.purpose = %s ORDER BY t.id", ["offer"], "call") == []
