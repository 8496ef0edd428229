"""The console in Spanish, over the running application: no English sentences, and nothing stored in Spanish."""

from __future__ import annotations

import re
from html import unescape

from django.test import Client
from django.urls import reverse

from accounts.models import User
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import Candidate
from tests.harness.jobs import MARIA, Floor
from tests.support import factories as make

BACKEND = "django.contrib.auth.backends.ModelBackend"
SETTINGS = "/notifications/choices/"
ENGLISH = re.compile(
    r"\b(?:the|your|with|waiting|assigned|nobody|technicians?|jobs?|ago|claimed|needs|not|and|of|from|is|are)\b",
    re.I,
)
# What people or Django's settings wrote.
NAMES = re.compile(r"Water heater repair|Time zone|<script.*?</script>|<style.*?</style>|<code>.*?</code>", re.S)


def spanish_client(person: User) -> Client:
    person.language = "es"
    person.save(update_fields=["language"])
    client = Client()
    client.force_login(person, backend=BACKEND)
    return client


def test_spanish_pages_have_no_english_sentences(floor: Floor):
    _ann, _bob = floor.crew("Ann", "Bob")
    job = floor.started()
    services.pause(job.pk, actor=MARIA, note="Llave en la puerta")
    far = floor.submit(address="100 N Central Ave, Phoenix, AZ 85004")
    floor.work()
    client = spanish_client(make.admin(floor.organization, "Dana"))
    panel = reverse("console:job", args=[job.pk])
    paths = [
        reverse("console:board"),
        f"{reverse('console:board')}?job={job.pk}&map=1",
        reverse("console:timeline"),
        f"{reverse('console:timeline')}?days=7",
        reverse("console:new_job"),
        SETTINGS,
        reverse("console:notifications"),
        *(f"{panel}act/{action}/" for action in ("assign", "resume", "cancel", "correct", "call-next")),
    ]
    assert far.pk
    for path in paths:
        answer = client.get(path)
        assert answer.status_code == 200, path
        visible = NAMES.sub("", answer.content.decode())
        said = unescape(" ".join(re.sub(r"<[^>]+>", " ", visible[visible.find("<body") :]).split()))
        found = ENGLISH.search(said)
        assert not found, (path, said[max(0, found.start() - 60) : found.end() + 60])


def test_what_a_spanish_dispatcher_does_is_stored_in_english(floor: Floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    client = spanish_client(make.dispatcher(floor.organization, "Dana"))
    sent = {"version": floor.job(job).version, "technician": ann.pk, "confirm_unfit": "on"}
    client.post(reverse("console:act", args=[job.pk, "assign"]), sent)
    assert floor.job(job).technician == ann
    stored = " ".join(str(event.data) for event in Event.objects.filter(organization_id=floor.organization.pk))
    stored += " ".join(Candidate.objects.filter(job=job).values_list("reason", flat=True))
    assert not re.search(r"calificado|asignado|técnico|trabajo|fuera de", stored), stored
