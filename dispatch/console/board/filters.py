"""Filters of the board, read from the URL so that a view can be bookmarked and shared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from django.http import QueryDict

from dispatch.core.ids import read_id
from dispatch.jobs.models import Offer, Priority

_PRIORITIES = {choice.name.lower(): choice for choice in Priority}


@dataclass(frozen=True)
class Filters:
    """The filters of the board. An empty value filters nothing.

    `service`: a service type's code. `area`: part of the address, such as a city or a ZIP code.
    `priority`: by name. `technician`: id of the assigned or called technician. `text`: a job number, or part of a
    phone, address, note, or name of the customer, the service or the technician.
    """

    service: str = ""
    area: str = ""
    priority: str = ""
    technician: int = 0
    text: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> Filters:
        """Parse the query. Invalid values are ignored, because users edit URLs."""
        priority = query.get("priority", "")
        return cls(
            service=query.get("service", "")[:64],
            area=query.get("area", "").strip()[:80],
            priority=priority if priority in _PRIORITIES else "",
            technician=read_id(query.get("technician")) or 0,
            text=query.get("text", "").strip()[:120],
        )

    def __bool__(self) -> bool:
        return self != Filters()

    def as_query(self) -> dict[str, Any]:
        """Return the filters that are set."""
        return {name: value for name, value in vars(self).items() if value}

    def apply(self, jobs: QuerySet) -> QuerySet:
        if self.service:
            jobs = jobs.filter(service_type__code=self.service)
        if self.area:
            jobs = jobs.filter(address__icontains=self.area)
        if self.priority:
            jobs = jobs.filter(priority=_PRIORITIES[self.priority])
        if self.technician:
            calling = Offer.objects.filter(technician=self.technician, status=Offer.Status.PENDING)
            jobs = jobs.filter(Q(technician=self.technician) | Q(pk__in=calling.values("job_id")))
        return jobs.filter(_mentions(self.text)) if self.text else jobs


NO_FILTERS = Filters()


def _mentions(text: str) -> Q:
    if match := re.fullmatch(r"#?(\d{1,18})", text):
        return Q(pk=int(match[1])) | Q(customer_phone__contains=match[1])
    digits = re.sub(r"[\s().-]", "", text)
    if re.fullmatch(r"\+?\d{4,}", digits):
        return Q(customer_phone__contains=digits.lstrip("+"))
    called = Offer.objects.filter(technician__name__icontains=text, status=Offer.Status.PENDING)
    return (
        Q(customer_name__icontains=text)
        | Q(address__icontains=text)
        | Q(notes__icontains=text)
        | Q(service_type__name__icontains=text)
        | Q(technician__name__icontains=text)
        | Q(pk__in=called.values("job_id"))
    )
