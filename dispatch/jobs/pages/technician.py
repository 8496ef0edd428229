"""A technician's own page: /t/<token>/. Duty, position, jobs; done, cannot make it."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.ids import read_id
from dispatch.core.problems import Conflict
from dispatch.jobs import links, places, services
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.pages.common import signed
from dispatch.technicians import editing
from dispatch.technicians.models import Technician

# What was done, as the page says it after the redirect; a code in the address, so that no link can make it say
# anything else.
SAID = {
    "on": "You are on duty.",
    "off": "You are off duty. You are not offered jobs until you are back.",
    "moved": "Your position is known.",
    "done": "The job is done. Thank you.",
    "given_back": "The job goes to another technician.",
}


class Refused(Exception):
    """What was asked for cannot be done; the text tells them why."""


@signed(links.technician_of)
def technician_page(request: HttpRequest, technician: Technician) -> HttpResponse:
    problem = ""
    if request.method == "POST":
        act = _ACTIONS.get(request.POST.get("do", ""))
        try:
            if act is None:
                raise Refused("The page was out of date. Please try again.")
            said = act(technician, request.POST)
            return HttpResponseRedirect(f"{request.path}?said={said}", status=303)
        except (Refused, Conflict) as refused:
            problem = str(refused)
        except ValidationError as refused:
            problem = " ".join(refused.messages)
        technician.refresh_from_db()
    return render(
        request,
        "pages/technician.html",
        {
            "organization": technician.organization,
            "technician": technician,
            "zone": technician.time_zone or technician.organization.time_zone,
            "offer": _live_offer(technician),
            "jobs": _jobs(technician),
            "said": SAID.get(request.GET.get("said", ""), "") if not problem else "",
            "problem": problem,
        },
        status=409 if problem else 200,
    )


def _set_duty(technician: Technician, form: Any) -> str:
    on_duty = form.get("on") == "1"
    editing.set_duty(technician.pk, on_duty, actor=_actor(technician))
    return "on" if on_duty else "off"


def _move(technician: Technician, form: Any) -> str:
    """From the phone's own position, or from an address or ZIP code."""
    place = form.get("place", "").strip()[:300]
    lat, lng = _degrees(form.get("lat")), _degrees(form.get("lng"))
    if place or lat is None or lng is None:
        if not place:
            raise Refused("Enter an address or a ZIP code.")
        found, why = places.find(lat=None, lng=None, address=place, organization=technician.organization)
        if found is None:
            raise Refused(f"{why} Your position was not changed.")
        lat, lng = found.lat, found.lng
    if not (-90 <= lat <= 90 and -180 <= lng <= 180):
        raise Refused("That is no position. Your position was not changed.")
    editing.move(technician.pk, lat, lng)
    return "moved"


def _done(technician: Technician, form: Any) -> str:
    job, version = _own_job(technician, form)
    services.complete(job.pk, actor=_actor(technician), version=version)
    return "done"


def _give_back(technician: Technician, form: Any) -> str:
    job, version = _own_job(technician, form)
    note = form.get("note", "").strip()[:500]
    services.cannot_make_it(job.pk, actor=_actor(technician), version=version, note=note)
    return "given_back"


_ACTIONS: dict[str, Callable[[Technician, Any], str]] = {
    "duty": _set_duty,
    "position": _move,
    "done": _done,
    "cannot": _give_back,
}


def _own_job(technician: Technician, form: Any) -> tuple[Job, int]:
    """The job as this technician has it, and the version that says so: should it change in between, the service
    refuses."""
    job = Job.objects.of(technician.organization_id).filter(pk=read_id(form.get("job")) or 0).first()
    if job is None or job.technician_id != technician.pk or job.status != Job.Status.ASSIGNED:
        raise Refused("This job is not yours any more.")
    return job, job.version


def _live_offer(technician: Technician) -> tuple[Offer, str] | None:
    offers = Offer.objects.select_related("job__service_type").filter(technician=technician, status="pending")
    offer = offers.filter(expires_at__gt=clock.now()).first()
    return (offer, links.offer_url(offer)) if offer else None


def _jobs(technician: Technician) -> list[Job]:
    """What they have to do, and what they did today."""
    zone = ZoneInfo(technician.time_zone or technician.organization.time_zone)
    local = clock.now().astimezone(zone)
    midnight = datetime(local.year, local.month, local.day, tzinfo=zone)
    mine = Job.objects.select_related("service_type").filter(technician=technician)
    today = Q(status=Job.Status.ASSIGNED) | Q(status=Job.Status.COMPLETED, ended_at__gte=midnight)
    return list(mine.filter(today).order_by("status", "priority", "assigned_at")[:50])


def _degrees(given: Any) -> float | None:
    try:
        value = float(given)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _actor(technician: Technician) -> Actor:
    return Actor("technician", technician.pk, technician.name)
