"""An offer's page: /o/<token>/. What it is, where it lies, accept, decline, or what became of it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from dispatch.core import clock
from dispatch.jobs import links
from dispatch.jobs.models import Offer
from dispatch.jobs.pages.common import signed
from dispatch.jobs.rules import words
from dispatch.jobs.rules.sketch import HEIGHT, WIDTH, sketch
from dispatch.jobs.services import By, answer_offer
from dispatch.jobs.standing import standing

_KEYS = {"accept": words.ACCEPT_KEY, "decline": words.DECLINE_KEY}


@signed(links.offer_of)
def offer_page(request: HttpRequest, offer: Offer) -> HttpResponse:
    if request.method == "POST":
        if key := _KEYS.get(request.POST.get("answer", "")):
            answer_offer(offer.pk, None, key, by=By.LINK)
        # whatever came of it, the page tells
        return HttpResponseRedirect(request.path, status=303)
    job, technician = offer.job, offer.technician
    became = standing(offer)
    drawing = None
    if job.lat is not None and job.lng is not None and became in (None, "accepted"):
        drawing = sketch((technician.lat, technician.lng), (job.lat, job.lng), job.organization.distance_unit)
    return render(
        request,
        "pages/offer.html",
        {
            "organization": job.organization,
            "offer": offer,
            "job": job,
            "became": became,
            "distance": words.spoken_distance(offer.distance_m, job.organization.distance_unit),
            "left_s": max(0, int((offer.expires_at - clock.now()).total_seconds())),
            "sketch": drawing,
            "box": (WIDTH, HEIGHT),
            "own_page": links.technician_url(technician) if became == "accepted" else "",
        },
    )
