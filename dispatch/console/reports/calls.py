"""The reports by campaign and by number: calls, answers, outcomes and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.console.reports.pages import MAX_ROWS, Choice, Filters, Report, bar_chart
from dispatch.console.reports.periods import Period
from dispatch.console.reports.queries import fetch, span_parameters
from dispatch.console.reports.tables import (
    COUNT,
    MONEY,
    SECONDS,
    SHARE,
    Column,
    Row,
    Table,
    Tile,
    make_tile,
    share,
)
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.leads.models import Campaign
from dispatch.telephony.models import Call
from dispatch.telephony.rules import NEVER_PLACED

CALLS = (
    Column("calls", mark("Calls")),
    Column("answered", mark("Answered")),
    Column("answer_rate", mark("Answer rate"), SHARE),
    Column("talk_s", mark("Time on the phone"), SECONDS),
)
INCOMING = (
    Column("incoming_calls", mark("Incoming calls")),
    Column("incoming_answered", mark("Incoming answered")),
    Column("incoming_missed", mark("Incoming missed")),
    Column("incoming_talk_s", mark("Time on incoming calls"), SECONDS),
)
FINISHED = Column("finished", mark("Finished leads"))
OUTCOMES = {
    "answered": mark("Leads answered"),
    "voicemail": mark("Voicemail"),
    "attempts_exhausted": mark("Attempts exhausted"),
    "no_answer": mark("No answer"),
    "busy": mark("Busy"),
    "failed": mark("Failed"),
    "invalid_number": mark("Invalid number"),
    "precheck_failed": mark("No longer wanted"),
    "not_placed": mark("Not placed"),
    "do_not_call": mark("Do not call"),
    "no_consent": mark("No consent"),
    "outside_window": mark("Outside its hours for too long"),
    "cancelled": mark("Leads canceled"),
    "webhook_lost": mark("End never reported"),
    "dry_run": mark("Dry run"),
}

# `||` keeps the planner from an index on the purpose: without statistics, all calls of a purpose seem few.
_CALLS = """
SELECT {group} AS of, price_unit, count(*) FILTER (WHERE {counts}), count(answered_at) FILTER (WHERE {counts}),
    sum(duration_s) FILTER (WHERE {counts}), sum(price)
FROM telephony_call
WHERE organization_id = %(organization_id)s AND requested_at >= %(since)s AND requested_at < %(until)s
AND status <> ALL(%(never)s) AND {which}
GROUP BY 1, 2
"""
_BY_NUMBER = _CALLS.format(
    group="number_id", counts="true", which="(%(purpose)s = '' OR purpose || '' = %(purpose)s)"
)
# A call to the person who takes over costs something, but is not a call of the campaign's leads.
_BY_CAMPAIGN = _CALLS.format(
    group="(context ->> 'campaign_id')::bigint",
    counts="purpose = 'lead'",
    which="purpose || '' IN ('lead', 'connect') AND jsonb_typeof(context -> 'campaign_id') = 'number'",
)
# The caller was answered if the call had a subject: an open offer or job, or a customer's request.
_INCOMING = """
SELECT number_id, price_unit, count(*), count(*) FILTER (WHERE purpose <> ''), sum(duration_s), sum(price)
FROM telephony_inboundcall
WHERE organization_id = %(organization_id)s AND created_at >= %(since)s AND created_at < %(until)s
GROUP BY 1, 2
"""
_OUTCOMES = """
SELECT campaign_id, outcome, count(*) FROM leads_lead
WHERE organization_id = %(organization_id)s AND status = 'finished'
AND finished_at >= %(since)s AND finished_at < %(until)s
GROUP BY 1, 2
"""


@dataclass
class Tally:
    """The calls of one campaign or number. `costs`: the known prices by currency; `outcomes`: finished leads.

    `incoming`: the calls to the number; None if they are not counted.
    """

    calls: int = 0
    answered: int = 0
    talk_s: int = 0
    costs: dict[str, Decimal] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    incoming: Tally | None = None

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.calls += other.calls
        self.answered += other.answered
        self.talk_s += other.talk_s
        for unit, cost in other.costs.items():
            self.costs[unit] = self.costs.get(unit, Decimal()) + cost
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        if other.incoming is not None:
            self.incoming = self.incoming or Tally()
            self.incoming.add(other.incoming)

    @property
    def answer_rate(self) -> float | None:
        return share(self.answered, self.calls)

    @property
    def finished(self) -> int:
        """How many leads were finished."""
        return sum(self.outcomes.values())

    def values(self) -> dict[str, Any]:
        """Return the cells of its row."""
        found: dict[str, Any] = {
            "calls": self.calls,
            "answered": self.answered,
            "answer_rate": self.answer_rate,
            "talk_s": self.talk_s,
            "finished": self.finished,
        }
        found |= {_cost_key(unit): cost for unit, cost in self.costs.items()}
        if self.incoming is not None:
            found |= {f"incoming_{key}": value for key, value in self.incoming.values().items()}
            found["incoming_missed"] = self.incoming.calls - self.incoming.answered
        return found | {f"leads_{outcome}": self.outcomes.get(outcome, 0) for outcome in OUTCOMES}


def build_numbers(organization: Organization, period: Period, filters: Filters) -> Report:
    """Build the report by number of a period, those with most calls first.

    Incoming calls have no purpose, so they are counted only beside all outgoing ones.
    """
    now = _load_numbers(organization, period, filters.purpose)
    before = _load_numbers(organization, period.previous, filters.purpose)
    numbers = OutboundNumber.objects.of(organization).filter(pk__in=now).only("phone", "name")
    names = {number.pk: (number.phone.as_national, number.name) for number in numbers}
    options = [("", mark("All calls")), *Call.Purpose.choices]
    columns = CALLS if filters.purpose else (*CALLS, *INCOMING)
    return Report(
        tiles=_tiles(now, before, with_incoming=not filters.purpose),
        charts=[bar_chart(_("Calls and answers"), _rows(now, names), _rows(before, names), *_bars())],
        tables=[_table("numbers", mark("By number"), mark("Number"), now, names, mark("All numbers"), columns)],
        is_empty=not now,
        note=mark(
            "Calls that were never placed are left out. The phone provider reports prices some time later. An "
            "incoming call is missed if nothing was waiting for the caller."
        ),
        extra={"choices": [Choice("purpose", mark("Calls"), options, filters.purpose)]},
    )


def build_campaigns(organization: Organization, period: Period, filters: Filters) -> Report:
    """Build the report by campaign of a period, those with most calls first."""
    now, before = _load_campaigns(organization, period), _load_campaigns(organization, period.previous)
    campaigns = Campaign.objects.of(organization).filter(pk__in=now)
    names = {pk: (name, "") for pk, name in campaigns.values_list("pk", "name")}
    reached = [outcome for outcome in OUTCOMES if any(tally.outcomes.get(outcome) for tally in now.values())]
    columns = [*CALLS, FINISHED, *(Column(f"leads_{outcome}", OUTCOMES[outcome]) for outcome in reached)]
    return Report(
        tiles=_tiles(now, before, with_leads=True),
        charts=[bar_chart(_("Calls and answers"), _rows(now, names), _rows(before, names), *_bars())],
        tables=[
            _table("campaigns", mark("By campaign"), mark("Campaign"), now, names, mark("All campaigns"), columns)
        ],
        is_empty=not now,
        note=mark("Outcomes are those of leads that were finished in the period."),
    )


def _load_numbers(organization: Organization, period: Period, purpose: str) -> dict[int, Tally]:
    given = span_parameters(organization, period, never=[*NEVER_PLACED], purpose=purpose)
    tallies = _read_calls(fetch(_BY_NUMBER, given))
    if not purpose:
        incoming = _read_calls(fetch(_INCOMING, span_parameters(organization, period)))
        for pk in tallies.keys() | incoming.keys():
            tallies.setdefault(pk, Tally()).incoming = incoming.get(pk, Tally())
    return tallies


def _load_campaigns(organization: Organization, period: Period) -> dict[int, Tally]:
    given = span_parameters(organization, period, never=[*NEVER_PLACED])
    tallies = _read_calls(fetch(_BY_CAMPAIGN, given))
    for campaign_id, outcome, count in fetch(_OUTCOMES, given):
        tallies.setdefault(campaign_id, Tally()).outcomes[outcome] = count
    return tallies


def _read_calls(found: list[tuple[Any, ...]]) -> dict[int, Tally]:
    tallies: dict[int, Tally] = {}
    for pk, unit, calls, answered, talk_s, cost in found:
        costs = {} if cost is None else {unit: cost}
        tallies.setdefault(pk, Tally()).add(Tally(calls, answered, int(talk_s or 0), costs))
    return tallies


def _sum(tallies: Mapping[int, Tally]) -> Tally:
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    return total


def _tiles(
    now: Mapping[int, Tally],
    before: Mapping[int, Tally],
    *,
    with_leads: bool = False,
    with_incoming: bool = False,
) -> list[Tile]:
    total, past = _sum(now), _sum(before)
    tiles = [
        make_tile(mark("Calls"), COUNT, total.calls, past.calls),
        make_tile(mark("Answered"), COUNT, total.answered, past.answered),
        make_tile(mark("Answer rate"), SHARE, total.answer_rate, past.answer_rate, _("share of calls")),
    ]
    if with_leads:
        tiles.append(make_tile(mark("Finished leads"), COUNT, total.finished, past.finished))
    for unit, cost in sorted(total.costs.items()):
        title = _("Cost in {currency}").format(currency=unit) if unit else _("Cost")
        tiles.append(make_tile(title, MONEY, cost, past.costs.get(unit)))
    return tiles + (_incoming_tiles(total.incoming or Tally(), past.incoming or Tally()) if with_incoming else [])


def _incoming_tiles(total: Tally, past: Tally) -> list[Tile]:
    missed, past_missed = total.calls - total.answered, past.calls - past.answered
    tiles = [
        make_tile(mark("Incoming calls"), COUNT, total.calls, past.calls),
        make_tile(mark("Incoming missed"), COUNT, missed, past_missed),
    ]
    for unit, cost in sorted(total.costs.items()):
        title = f"{_('Cost of incoming calls')} {unit}".strip()
        tiles.append(make_tile(title, MONEY, cost, past.costs.get(unit)))
    return tiles


def _rows(tallies: Mapping[int, Tally], names: Mapping[int, tuple[str, str]]) -> list[Row]:
    rows = []
    for pk, tally in tallies.items():
        name, note = names.get(pk, ("?", ""))
        rows.append(Row(name, tally.values(), note, key=pk))
    return sorted(
        rows,
        key=lambda row: (-row.values["calls"] - row.values.get("incoming_calls", 0), row.name, row.key),
    )


def _table(
    slug: str,
    title: str,
    what: str,
    tallies: Mapping[int, Tally],
    names: Mapping[int, tuple[str, str]],
    all_of_them: str,
    columns: Sequence[Column],
) -> Table:
    total = _sum(tallies)
    costs = [Column(_cost_key(unit), f"{_('Cost')} {unit}".strip(), MONEY) for unit in sorted(total.costs)]
    if total.incoming is not None:
        cost_of = _("Cost of incoming calls")
        costs += [
            Column(f"incoming_{_cost_key(unit)}", f"{cost_of} {unit}".strip(), MONEY)
            for unit in sorted(total.incoming.costs)
        ]
    rows = _rows(tallies, names)
    return Table(slug, title, what, [*columns, *costs], rows, Row(_(all_of_them), total.values()), MAX_ROWS)


def _cost_key(unit: str) -> str:
    return f"cost_{unit.lower()}" if unit else "cost"


def _bars() -> tuple[tuple[str, str, str], ...]:
    """Return the columns of the chart as (key, label, tone)."""
    return ("calls", _("calls"), "calling"), ("answered", _("answered"), "good")
