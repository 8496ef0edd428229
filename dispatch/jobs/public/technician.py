"""The technician's page, /t/<token>/: duty, position, today's jobs, and closing or giving back a job."""

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
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.stored_texts import translate_stored
from dispatch.jobs import geocoding, services, signed_links
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.public.common import choose_words, confirmation_of, with_signed_link
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.speech import language_for

# Confirmations after the redirect. The URL carries only a code, so that no link can inject other text.
CONFIRMATIONS = {
    "on": mark("You're on duty."),
    "off": mark("You're off duty. You won't get offers until you go back on duty."),
    "moved": mark("Your position has been updated."),
    "on_the_way": mark("We've recorded that you're on the way."),
    "started": mark("The job is marked as started."),
    "done": mark("The job is marked as done. Thank you."),
    "given_back": mark("We'll find another technician for the job."),
    "pin": mark("Your PIN is set. Enter it when you call and are asked for it."),
    "no_pin": mark("Your PIN is removed."),
}


class ActionRefused(Exception):
    """Raised if the request can't be carried out. The message is shown to the technician."""


@with_signed_link(signed_links.technician_of, lambda technician: language_for(technician.organization, technician))
def technician_page(request: HttpRequest, technician: Technician) -> HttpResponse:
    """Show the page; on POST, perform the action `do` and show its result."""
    problem = ""
    if request.method == "POST":
        act = _ACTIONS.get(request.POST.get("do", ""))
        try:
            if act is None:
                raise ActionRefused(_("The page was out of date. Please try again."))
            said = act(technician, request.POST)
            return HttpResponseRedirect(f"{request.path}?said={said}", status=303)
        except ActionRefused as refused:
            problem = str(refused)
        except Conflict as refused:
            problem = choose_words(
                str(refused), _("The job has changed meanwhile. Please check it and try again.")
            )
        except ValidationError as refused:
            problem = choose_words(" ".join(refused.messages), _("Please check what you entered."))
        technician.refresh_from_db()
    return render(
        request,
        "pages/technician.html",
        {
            "organization": technician.organization,
            "technician": technician,
            "zone": technician.time_zone or technician.organization.time_zone,
            "offer": _live_offer(technician),
            "jobs": _todays_jobs(technician),
            "said": "" if problem else confirmation_of(request, CONFIRMATIONS),
            "problem": problem,
        },
        status=409 if problem else 200,
    )


def _set_duty(technician: Technician, form: Any) -> str:
    on_duty = form.get("on") == "1"
    technicians.set_duty(technician.pk, on_duty, actor=_actor(technician))
    return "on" if on_duty else "off"


def _set_position(technician: Technician, form: Any) -> str:
    """Set the position from the phone's coordinates, or from an address or ZIP code."""
    place = form.get("place", "").strip()[:300]
    lat, lng = _degrees(form.get("lat")), _degrees(form.get("lng"))
    if place or lat is None or lng is None:
        if not place:
            raise ActionRefused(_("Enter an address or a ZIP code."))
        location, why = geocoding.geocode_with_reason(
            lat=None, lng=None, address=place, organization=technician.organization
        )
        if location is None:
            raise ActionRefused(translate_stored(why) + " " + _("Your position was not changed."))
        lat, lng = location.lat, location.lng
    if not (-90 <= lat <= 90 and -180 <= lng <= 180):
        raise ActionRefused(_("The coordinates are out of range. Your position was not changed."))
    technicians.move_technician(technician.pk, lat, lng)
    return "moved"


def _complete_job(technician: Technician, form: Any) -> str:
    job, version = _own_job(technician, form)
    services.complete(job.pk, actor=_actor(technician), version=version)
    return "done"


def _go(technician: Technician, form: Any) -> str:
    job, version = _own_job(technician, form)
    entered = form.get("eta", "").strip()
    minutes = read_id(entered)
    if entered and minutes is None:
        raise ActionRefused(_("Enter the minutes until you arrive as a number, or leave the field empty."))
    services.report_on_the_way(job.pk, actor=_actor(technician), eta_minutes=minutes, version=version)
    return "on_the_way"


def _start(technician: Technician, form: Any) -> str:
    job, version = _own_job(technician, form)
    services.mark_started(job.pk, actor=_actor(technician), version=version)
    return "started"


def _give_back(technician: Technician, form: Any) -> str:
    job, version = _own_job(technician, form)
    note = form.get("note", "").strip()[:500]
    services.cannot_make_it(job.pk, actor=_actor(technician), version=version, note=note)
    return "given_back"


def _set_pin(technician: Technician, form: Any) -> str:
    pin = form.get("pin", "").strip()
    if form.get("remove") == "1":
        technicians.set_pin(technician.pk, "", actor=_actor(technician))
        return "no_pin"
    if not pin:
        raise ActionRefused(_("Enter 4 to 8 digits."))
    technicians.set_pin(technician.pk, pin, actor=_actor(technician))
    return "pin"


_ACTIONS: dict[str, Callable[[Technician, Any], str]] = {
    "duty": _set_duty,
    "position": _set_position,
    "go": _go,
    "start": _start,
    "done": _complete_job,
    "cannot": _give_back,
    "pin": _set_pin,
}


def _own_job(technician: Technician, form: Any) -> tuple[Job, int]:
    """Return this technician's job and its version.

    The service rejects the action if the job changes meanwhile. Raises ActionRefused if the job isn't assigned to
    the technician.
    """
    job = Job.objects.of(technician.organization_id).filter(pk=read_id(form.get("job")) or 0).first()
    if job is None or job.technician_id != technician.pk or job.status != Job.Status.ASSIGNED:
        raise ActionRefused(_("This job is no longer yours."))
    return job, job.version


def _live_offer(technician: Technician) -> tuple[Offer, str] | None:
    offers = Offer.objects.select_related("job__service_type").filter(technician=technician, status="pending")
    offer = offers.filter(expires_at__gt=clock.now()).first()
    return (offer, signed_links.offer_url(offer)) if offer else None


def _todays_jobs(technician: Technician) -> list[Job]:
    """Return the assigned jobs, and the jobs completed today."""
    zone = ZoneInfo(technician.time_zone or technician.organization.time_zone)
    local = clock.now().astimezone(zone)
    midnight = datetime(local.year, local.month, local.day, tzinfo=zone)
    jobs = Job.objects.select_related("service_type").filter(technician=technician)
    today = Q(status=Job.Status.ASSIGNED) | Q(status=Job.Status.COMPLETED, ended_at__gte=midnight)
    return list(jobs.filter(today).order_by("status", "priority", "assigned_at")[:50])


def _degrees(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _actor(technician: Technician) -> Actor:
    return Actor("technician", technician.pk, technician.name)
