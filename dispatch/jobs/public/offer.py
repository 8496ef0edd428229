"""The offer page, /o/<token>/: the job, a sketch map, accept and decline, or the result."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from dispatch.core import clock
from dispatch.jobs import signed_links
from dispatch.jobs.models import Offer
from dispatch.jobs.public.common import with_signed_link
from dispatch.jobs.public.sketch_map import HEIGHT, WIDTH, draw_sketch
from dispatch.jobs.rules import phrases
from dispatch.jobs.services import AnswerChannel, answer_offer
from dispatch.jobs.services.answers import offer_state
from dispatch.telephony.speech import language_for

_KEYS = {"accept": phrases.ACCEPT_KEY, "decline": phrases.DECLINE_KEY}


@with_signed_link(signed_links.offer_of, lambda offer: language_for(offer.job.organization, offer.technician))
def offer_page(request: HttpRequest, offer: Offer) -> HttpResponse:
    """Show the offer or its result; on POST, answer it and show the result."""
    if request.method == "POST":
        if key := _KEYS.get(request.POST.get("answer", "")):
            answer_offer(offer.pk, None, key, by=AnswerChannel.LINK)
        # the page shows the result
        return HttpResponseRedirect(request.path, status=303)
    job, technician = offer.job, offer.technician
    state = offer_state(offer)
    drawing = None
    if job.lat is not None and job.lng is not None and state in (None, "accepted"):
        drawing = draw_sketch((technician.lat, technician.lng), (job.lat, job.lng), job.organization.distance_unit)
    return render(
        request,
        "pages/offer.html",
        {
            "organization": job.organization,
            "offer": offer,
            "job": job,
            "state": state,
            "distance": phrases.spoken_distance(offer.distance_m, job.organization.distance_unit),
            "is_late": offer.status != Offer.Status.PENDING or offer.expires_at <= clock.now(),
            "sketch": drawing,
            "box": (WIDTH, HEIGHT),
            "own_page": signed_links.technician_url(technician) if state == "accepted" else "",
        },
    )
