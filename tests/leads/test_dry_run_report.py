"""A dry run compared with what another dialer called."""

from __future__ import annotations

import io
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command

from dispatch.leads.models import Campaign
from tests.support import factories as make

pytestmark = pytest.mark.django_db
PHOENIX = ZoneInfo("America/Phoenix")


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization("Main Street", slug="main-street")
    return Campaign.objects.create(
        organization=organization, pool=make.pool(organization), code="spring", name="S"
    )


def report(*arguments: str) -> str:
    out = io.StringIO()
    call_command("leads_report", "--organization", "main-street", "--since", "2026-11-20", *arguments, stdout=out)
    return out.getvalue()


def test_report_separates_both_only_ours_and_only_theirs(campaign, tmp_path):
    def lead(last: str, **fields: object) -> None:
        campaign.leads.create(organization=campaign.organization, phone=f"+1602555{last}", **fields)

    nine = datetime(2026, 11, 20, 9, 0, tzinfo=PHOENIX)
    lead("0101", status="finished", outcome="dry_run", finished_at=nine)
    lead("0102", status="finished", outcome="dry_run", finished_at=nine.replace(hour=10))
    lead("0103", reason="outside_window")
    lead("0104", status="finished", outcome="do_not_call", finished_at=nine)
    file = tmp_path / "old.csv"
    file.write_text(
        "phone,called_at\n(602) 555-0101,2026-11-20 09:02\n6025550103,2026-11-20 21:30\n"
        "6025550104,2026-11-20T16:00:00Z\n6025550199,2026-11-20 12:00\n6025550102,2026-11-21 12:00\n"
    )
    told = report("--file", str(file))
    assert "Would have been called here: 2" in told
    assert "2026-11-20 09:00  1" in told
    assert "Called by both: 1" in told
    assert "median 120 s" in told
    assert "Called only by the other dialer: 3" in told
    assert "1  Outside the campaign's hours at the person's location" in told
    assert "1  On the do-not-call list" in told
    assert "1  No such lead" in told
    assert "Would have been called only here: 1" in told


@pytest.mark.parametrize(
    ("content", "words"),
    [("phone\n1\n", "phone and called_at"), ("phone,called_at\n602 555 0101,soon\n", "Row 2 of the file")],
)
def test_a_file_that_cannot_be_read_is_named_in_one_line(campaign, tmp_path, content, words):
    file = tmp_path / "old.csv"
    file.write_text(content)
    with pytest.raises(CommandError, match=words):
        report("--file", str(file))


def test_unknown_organization_and_invalid_date_are_named(campaign):
    with pytest.raises(CommandError, match="No organization has the short name 'other'"):
        call_command("leads_report", "--organization", "other", "--since", "2026-11-20")
    with pytest.raises(CommandError, match="is not a valid date"):
        call_command("leads_report", "--organization", "main-street", "--since", "today")
