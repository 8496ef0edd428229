"""The same work as a whole job or a lead's whole call, written plainly: Django views, Django's ORM, a task queue.

It shares no code with Dispatch and gives none of its guarantees: no lines, no rates, no calling rules, no repair
after a crash. `wsgi` is its web application, `app` that of Celery; Dramatiq loads the module. BENCH_QUEUE names
the queue (`celery` or `dramatiq`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
from django.conf import settings

DATABASE = urlsplit(os.environ["DATABASE_URL"])
REDIS = os.environ["REDIS_URL"]
QUEUE = os.environ.get("BENCH_QUEUE", "celery")
PUBLIC, PROVIDER = os.environ["PUBLIC_BASE_URL"], os.environ["SIMULATOR_URL"]
TOKEN, ACCOUNT = os.environ["BENCH_TOKEN"], "AC" + "1" * 32
NEAR_DEGREES, OFFER_S = 0.6, 300
REQUIRED = ("customer_name", "customer_phone", "service_type", "lat", "lng")

if not settings.configured:
    settings.configure(
        SECRET_KEY="of-the-benchmark",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
        MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": DATABASE.path.strip("/"),
                "USER": DATABASE.username or "postgres",
                "PASSWORD": DATABASE.password or "",
                "HOST": parse_qs(DATABASE.query).get("host", [DATABASE.hostname or ""])[0],
                "PORT": DATABASE.port or "",
                "CONN_MAX_AGE": 600,
            }
        },
    )
    django.setup()

from django.db import connection, models, transaction  # noqa: E402
from django.http import HttpRequest, HttpResponse, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils import timezone  # noqa: E402


class Row(models.Model):
    """A row of one of the tables of `plain_schema.sql`."""

    class Meta:
        abstract = True
        app_label = "plain"

    def __str__(self) -> str:
        return str(self.pk)


class Key(Row):
    digest = models.TextField()

    class Meta(Row.Meta):
        db_table = "bench_key"


class Technician(Row):
    organization_id = models.BigIntegerField()
    name, phone, skill = models.TextField(), models.TextField(), models.TextField()
    lat, lng = models.FloatField(), models.FloatField()

    class Meta(Row.Meta):
        db_table = "bench_technician"


class Job(Row):
    organization_id = models.BigIntegerField()
    idempotency_key = models.TextField()
    form = models.JSONField()
    status = models.TextField(default="new")
    technician = models.ForeignKey(Technician, models.CASCADE, null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta(Row.Meta):
        db_table = "bench_job"


class Lead(Row):
    phone = models.TextField()
    status, outcome = models.TextField(default="backlog"), models.TextField(default="")
    due_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta(Row.Meta):
        db_table = "bench_lead"


class Call(Row):
    job = models.ForeignKey(Job, models.CASCADE, null=True)
    lead = models.ForeignKey(Lead, models.CASCADE, null=True)
    technician = models.ForeignKey(Technician, models.CASCADE, null=True)
    phone, sid = models.TextField(), models.TextField(default="")
    status = models.TextField(default="requesting")
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    class Meta(Row.Meta):
        db_table = "bench_call"


class Event(Row):
    kind = models.TextField()
    subject_id = models.BigIntegerField()
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta(Row.Meta):
        db_table = "bench_event"


# --- The tasks


def start_job(job_id: int) -> None:
    """Offer the job to the nearest technician with its skill."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=job_id)
        lat, lng = job.form["lat"], job.form["lng"]
        near = Technician.objects.filter(
            organization_id=job.organization_id,
            skill=job.form["service_type"],
            lat__range=(lat - NEAR_DEGREES, lat + NEAR_DEGREES),
            lng__range=(lng - NEAR_DEGREES, lng + NEAR_DEGREES),
        )
        technician = min(near, key=lambda one: math.hypot(one.lat - lat, one.lng - lng))
        call = Call.objects.create(job=job, technician=technician, phone=technician.phone)
        job.status = "dispatching"
        job.save(update_fields=["status"])
        Event.objects.create(kind="job.offered", subject_id=job.pk, data={"technician": technician.pk})
    send_later("expire_offer", call.pk, OFFER_S)
    place(call)


def expire_offer(call_id: int) -> None:
    """Let an offer end that nobody accepted. In the benchmark, everybody accepts in time."""
    Call.objects.filter(pk=call_id, ended_at=None).update(status="timed_out")


def call_lead(lead_id: int) -> None:
    """Call a lead that is due."""
    with transaction.atomic():
        lead = Lead.objects.select_for_update().get(pk=lead_id)
        if lead.status != "backlog" or lead.due_at > timezone.now():
            return
        lead.status = "calling"
        lead.save(update_fields=["status"])
        call = Call.objects.create(lead=lead, phone=lead.phone)
        Event.objects.create(kind="lead.calling", subject_id=lead.pk, data={"call": call.pk})
    place(call)


def place(call: Call) -> None:
    """Request the call from the provider by its SDK."""
    url = f"{PUBLIC}/calls/{call.pk}"
    answer = client().calls.create(
        to=call.phone, from_="+16025550100", url=f"{url}/voice", timeout=25, status_callback=f"{url}/status",
        status_callback_event=["ringing", "completed"],
    )  # fmt: skip
    with transaction.atomic():
        Call.objects.filter(pk=call.pk).update(sid=answer.sid)
        Event.objects.create(kind="call.submitted", subject_id=call.pk, data={"sid": answer.sid})


_client: list[Any] = []


def client() -> Any:
    """Return the provider's client of this process."""
    if not _client:
        from twilio.rest import Client

        _client.append(Client(ACCOUNT, TOKEN))
        _client[0].api.base_url = PROVIDER
        _client[0].http_client.session.trust_env = False
    return _client[0]


# --- The views


def submit(request: HttpRequest) -> HttpResponse:
    """POST /api/v1/submissions/: accept a form, once for each Idempotency-Key."""
    digest = hashlib.sha256(request.headers["Authorization"].removeprefix("Bearer ").encode()).hexdigest()
    key = Key.objects.filter(digest=digest).first()
    if key is None:
        return JsonResponse({"detail": "Invalid API key."}, status=401)
    form = json.loads(request.body)
    missing = [
        name for name in ("customer_name", "customer_phone", "service_type", "lat", "lng") if name not in form
    ]
    if missing:
        return JsonResponse({"missing": missing}, status=400)
    with transaction.atomic():
        job, is_new = Job.objects.get_or_create(
            organization_id=key.pk, idempotency_key=request.headers["Idempotency-Key"], defaults={"form": form}
        )
        if is_new:
            Event.objects.create(kind="job.received", subject_id=job.pk)
            transaction.on_commit(lambda: send("start_job", job.pk))
    return JsonResponse({"id": job.pk}, status=202)


def enqueue(request: HttpRequest) -> HttpResponse:
    """POST /leads: put the leads with these ids on the queue."""
    for lead_id in json.loads(request.body):
        send("call_lead", lead_id)
    return JsonResponse({})


def webhook(request: HttpRequest, call_id: int, kind: str) -> HttpResponse:
    """POST /calls/<id>/<voice|gather|status>: what the provider reports on a call."""
    from twilio.request_validator import RequestValidator
    from twilio.twiml.voice_response import Gather, VoiceResponse

    url = f"{PUBLIC}{request.get_full_path()}"
    if not RequestValidator(TOKEN).validate(url, request.POST, request.headers.get("X-Twilio-Signature", "")):
        return HttpResponse(status=403)
    with transaction.atomic():
        call = Call.objects.select_for_update(of=("self",)).select_related("lead", "job").get(pk=call_id)
        if kind == "gather" and call.job is not None and request.POST.get("Digits") == "1":
            job = Job.objects.select_for_update().get(pk=call.job.pk)
            if job.status == "dispatching":
                job.status, job.technician_id = "assigned", call.technician_id
                job.save(update_fields=["status", "technician"])
                Event.objects.create(kind="job.assigned", subject_id=job.pk)
        if call.ended_at is None and call.status != request.POST["CallStatus"]:
            call.status = request.POST["CallStatus"]
            if call.status in ("completed", "busy", "no-answer", "failed", "canceled"):
                call.ended_at = timezone.now()
            call.save(update_fields=["status", "ended_at"])
            Event.objects.create(kind=f"call.{call.status}", subject_id=call.pk, data=request.POST.dict())
            if call.ended_at and call.lead is not None:
                call.lead.status, call.lead.finished_at = "finished", call.ended_at
                call.lead.outcome = "answered" if call.status == "completed" else "busy"
                call.lead.save(update_fields=["status", "outcome", "finished_at"])
                Event.objects.create(kind="lead.finished", subject_id=call.lead.pk)
    if kind == "status":
        return HttpResponse(status=204)
    answer = VoiceResponse()
    if kind == "voice" and call.job_id:
        gather = Gather(num_digits=1, action=f"{PUBLIC}/calls/{call_id}/gather")
        gather.say("There is a job for you. Press 1 to accept, 2 to decline.")
        answer.append(gather)
    else:
        answer.say("Thank you. Goodbye.")
    return HttpResponse(str(answer), content_type="text/xml")


def ready(request: HttpRequest) -> HttpResponse:
    """GET /readyz."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return HttpResponse()


urlpatterns = [
    path("readyz", ready),
    path("api/v1/submissions/", submit),
    path("leads", enqueue),
    path("calls/<int:call_id>/<str:kind>", webhook),
]


# --- The queues


def run_task(name: str, row_id: int) -> None:
    """Run a task by its name."""
    {"start_job": start_job, "call_lead": call_lead, "expire_offer": expire_offer}[name](row_id)


def make_celery() -> Any:
    """Return a Celery app with the one task."""
    from celery import Celery

    app = Celery("plain", broker=f"redis+socket://{urlsplit(REDIS).path}" if REDIS.startswith("unix") else REDIS)
    app.conf.update(task_default_queue="plain-celery", task_ignore_result=True)
    app.task(name="run_task", ignore_result=True)(run_task)
    return app


def make_dramatiq() -> Any:
    """Return a Dramatiq actor of the one task."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    where = {"unix_socket_path": urlsplit(REDIS).path} if REDIS.startswith("unix") else {"url": REDIS}
    broker: Any = RedisBroker(namespace="plain-dramatiq", **where)
    dramatiq.set_broker(broker)
    return dramatiq.actor(run_task, broker=broker, max_retries=0)


if QUEUE == "celery":
    app = make_celery()
else:
    actor = make_dramatiq()


def send(name: str, row_id: int) -> None:
    """Put a task on the queue."""
    send_later(name, row_id, 0)


def send_later(name: str, row_id: int, seconds: float) -> None:
    """Put a task on the queue that is due in some seconds."""
    if QUEUE == "celery":
        app.send_task("run_task", args=(name, row_id), countdown=seconds or None)
    else:
        actor.send_with_options(args=(name, row_id), delay=int(seconds * 1000) or None)


def wsgi() -> Any:
    """Return the web application."""
    from django.core.wsgi import get_wsgi_application

    return get_wsgi_application()
