"""What the board shows: read from the address, so that a view can be kept and passed on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from django.http import QueryDict

from dispatch.core.ids import read_id
from dispatch.jobs.models import Offer, Priority

_PRIORITIES = {one.name.lower(): one for one in Priority}


@dataclass(frozen=True)
class Filters:
    """`service`: a service type's code; `area`: part of the address, such as a city or a ZIP code; `priority` by
    name; `technician`: an id, assigned or being called; `text`: a job's number, or part of name, phone, place."""

    service: str = ""
    area: str = ""
    priority: str = ""
    technician: int = 0
    text: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> Filters:
        """What makes no sense is left out, never an error: addresses are edited by hand."""
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
        """Those that are set."""
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


def _mentions(text: str) -> Q:
    if found := re.fullmatch(r"#?(\d{1,18})", text):
        return Q(pk=int(found[1])) | Q(customer_phone__contains=found[1])
    digits = re.sub(r"[\s().-]", "", text)
    if re.fullmatch(r"\+?\d{4,}", digits):
        return Q(customer_phone__contains=digits.lstrip("+"))
    return Q(customer_name__icontains=text) | Q(address__icontains=text) | Q(notes__icontains=text)
