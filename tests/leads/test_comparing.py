"""A dry run beside what another dialer called."""

from __future__ import annotations

import io
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command

from dispatch.leads.models import Campaign
from tests import factories as make

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


def test_both_one_and_the_other_are_told_apart_with_why(campaign, tmp_path):
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
    assert "By both: 1" in told
    assert "median 120 s" in told
    assert "Only by the other: 3" in told
    assert "1  Outside the campaign's hours where they are" in told
    assert "1  On the do-not-call list" in told
    assert "1  No such lead" in told
    assert "Only here: 1" in told


@pytest.mark.parametrize(
    ("content", "words"),
    [("phone\n1\n", "phone and called_at"), ("phone,called_at\n602 555 0101,soon\n", "Line 2 of the file")],
)
def test_a_file_that_cannot_be_read_is_named_in_one_line(campaign, tmp_path, content, words):
    file = tmp_path / "old.csv"
    file.write_text(content)
    with pytest.raises(CommandError, match=words):
        report("--file", str(file))


def test_what_is_not_there_is_named(campaign):
    with pytest.raises(CommandError, match="no organization 'other'"):
        call_command("leads_report", "--organization", "other", "--since", "2026-11-20")
    with pytest.raises(CommandError, match="is no day"):
        call_command("leads_report", "--organization", "main-street", "--since", "today")
