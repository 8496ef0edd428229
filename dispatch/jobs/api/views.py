"""API views of submissions and jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import django_filters
from django.db.models import QuerySet
from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from structlog.contextvars import bind_contextvars

from accounts.api.base import OrganizationViewSet, OwnedFilterSet, respond_idempotently
from accounts.api.filters import BooleanFilter
from accounts.auth.permissions import is_allowed
from accounts.models import ApiKey
from dispatch.core.api.idempotency import HEADER
from dispatch.core.api.openapi import IDEMPOTENCY_KEY
from dispatch.core.api.problems import Conflict
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.ids import ID_PATTERN
from dispatch.jobs import services
from dispatch.jobs.api.config import DispatchPolicyViewSet, ServiceTypeViewSet
from dispatch.jobs.api.intake import ENDPOINT
from dispatch.jobs.api.serializers import (
    AcceptedSerializer,
    AssignedJobSerializer,
    AssignSerializer,
    CancelSerializer,
    ComposeSerializer,
    CorrectSerializer,
    DecisionSerializer,
    DispatchAgainSerializer,
    ExtendSerializer,
    HandledSerializer,
    JobDetailSerializer,
    JobNoteSerializer,
    JobSerializer,
    JobTextSerializer,
    OnTheWaySerializer,
    ReportLateSerializer,
    SubmissionFormSerializer,
    SubmissionSerializer,
    TechnicianToldSerializer,
    WriteNoteSerializer,
    accepted_body,
)
from dispatch.jobs.models import UNINFORMED_NOTICES, Job, JobNote, Priority, Submission
from dispatch.jobs.models.notes import notes_endpoint
from dispatch.jobs.services import notes, threads
from dispatch.jobs.timeline import MAX_ENTRIES
from dispatch.technicians.models import Technician

_SCOPE = ApiKey.Scope
_IF_MATCH = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, description="The ETag of the job as you saw it, or send `version`."
)


class SubmissionFilter(OwnedFilterSet):
    """Filter submissions: `?status=received&created_after=2026-01-01T00:00Z`."""

    created_after = django_filters.IsoDateTimeFilter("created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter("created_at", lookup_expr="lt")

    class Meta:
        model = Submission
        fields = ["status"]


class SubmissionViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Submitted forms and the jobs created from them."""

    queryset = Submission.objects.select_related("service_type", "job")
    serializer_class = SubmissionSerializer
    filterset_class = SubmissionFilter
    required = {"list": _SCOPE.READ, "retrieve": _SCOPE.READ, "create": _SCOPE.SUBMIT}

    @extend_schema(
        request=SubmissionFormSerializer, responses={202: AcceptedSerializer}, parameters=[IDEMPOTENCY_KEY]
    )
    def create(self, request: Request) -> Response:
        """Submit a form. 202 means that it is stored and will become a job. Poll `status_url` for progress."""
        # `intake` accepts most requests before they come here.
        form = SubmissionFormSerializer(data=request.data, context=self.get_serializer_context())

        def accept() -> tuple[int, dict]:
            form.is_valid(raise_exception=True)
            submission = services.accept_submission(
                request.organization,
                form.validated_data,
                raw=request.data,
                actor=request.actor,
                api_key=request.auth if isinstance(request.auth, ApiKey) else None,
                idempotency_key=request.headers.get(HEADER, ""),
            )
            return 202, accepted_body(submission)

        answer = respond_idempotently(request, ENDPOINT, accept)
        answer["Location"] = answer.data["status_url"]
        return answer


class JobFilter(OwnedFilterSet):
    """Filter jobs: `?status=pending&status=dispatching&service_type=plumbing&needs_attention=true`."""

    status = django_filters.MultipleChoiceFilter(choices=Job.Status.choices)
    pending_reason = django_filters.MultipleChoiceFilter(choices=Job.PendingReason.choices[1:])
    service_type = django_filters.CharFilter("service_type__code")
    priority = django_filters.ChoiceFilter(
        choices=[(choice.name.lower(), choice.label) for choice in Priority], method="by_priority"
    )
    technician = django_filters.ModelChoiceFilter(queryset=Technician.objects.all())
    created_after = django_filters.IsoDateTimeFilter("created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter("created_at", lookup_expr="lt")
    needs_attention = BooleanFilter(method="by_attention")
    duplicate_state = django_filters.ChoiceFilter(choices=Job.DuplicateState.choices[1:])

    class Meta:
        model = Job
        fields: list[str] = []

    def by_priority(self, jobs: QuerySet, name: str, value: str) -> QuerySet:
        return jobs.filter(priority=Priority[value.upper()])

    def by_attention(self, jobs: Any, name: str, value: bool) -> QuerySet:
        waiting: QuerySet = jobs.needing_attention()
        return waiting if value else jobs.exclude(pk__in=waiting.values("pk"))


class TechnicianUnfit(Conflict):
    """Raised (409) if the technician is not eligible and the request did not set `confirm_unfit`."""

    default_code = "unfit"


def _job_action(
    serializer: type[StrictSerializer], result: type[JobDetailSerializer] = JobDetailSerializer
) -> Callable:
    """Decorate a POST action on one job and one of its versions. The response is the resulting job."""

    def decorate(method: Callable) -> Callable:
        named = method.__name__.replace("_", "-")
        documented = extend_schema(request=serializer, responses=result, parameters=[_IF_MATCH])
        return documented(action(detail=True, methods=["post"], url_path=named)(method))  # in this order

    return decorate


class JobViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Jobs and the actions of dispatchers."""

    queryset = Job.objects.select_related(
        "service_type", "technician", "preferred_technician", "organization", "duplicate_of"
    )
    filterset_class = JobFilter
    required = {
        "list": _SCOPE.READ,
        "retrieve": _SCOPE.READ,
        "assign": _SCOPE.JOBS,
        "dispatch_again": _SCOPE.JOBS,
        "call_next": _SCOPE.JOBS,
        "extend": _SCOPE.JOBS,
        "pause": _SCOPE.JOBS,
        "resume": _SCOPE.JOBS,
        "correct": _SCOPE.JOBS,
        "cannot_make_it": _SCOPE.JOBS,
        "cancel": _SCOPE.JOBS,
        "on_the_way": _SCOPE.JOBS,
        "report_late": _SCOPE.JOBS,
        "mark_started": _SCOPE.JOBS,
        "complete": _SCOPE.JOBS,
        "reopen": _SCOPE.JOBS,
        "merge_duplicate": _SCOPE.JOBS,
        "not_a_duplicate": _SCOPE.JOBS,
        "technician_told": _SCOPE.JOBS,
        "texts": _SCOPE.READ,
        "send_text": _SCOPE.JOBS,
        "texts_handled": _SCOPE.JOBS,
        "notes": _SCOPE.READ,
        "write_note": _SCOPE.JOBS,
        "delete_note": _SCOPE.JOBS,
    }

    def get_queryset(self) -> QuerySet:
        jobs = super().get_queryset()
        if self.action == "list":
            return jobs
        return jobs.prefetch_related(UNINFORMED_NOTICES, "candidates__technician", "offers__technician")

    @property
    def _pk(self) -> int:
        return int(self.kwargs["pk"])

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if "pk" in kwargs:
            bind_contextvars(job=self._pk)

    def get_serializer_class(self) -> Any:
        return JobSerializer if self.action == "list" else JobDetailSerializer

    @extend_schema(responses=JobDetailSerializer)
    def retrieve(self, request: Request, **kwargs: Any) -> Response:
        """Get a job with its candidates, offers and history. The ETag is its version."""
        return self._answer()

    @_job_action(AssignSerializer, AssignedJobSerializer)
    def assign(self, request: Request, **kwargs: Any) -> Response:
        """Assign the job to a technician.

        Withdraws a live offer and hangs up. 409 `unfit` unless confirmed. The technicians concerned are notified
        by text, else by a call; `warnings` says if that is impossible.
        """
        given = self._decision(AssignSerializer)
        result = services.assign(self._pk, given.pop("technician"), actor=request.actor, **given)
        if not result.assigned:
            raise TechnicianUnfit(
                " ".join(result.warnings), warnings=list(result.warnings), version=result.job.version
            )
        answer = self._answer()
        answer.data["warnings"] = list(result.warnings)
        return answer

    @_job_action(DispatchAgainSerializer)
    def dispatch_again(self, request: Request, **kwargs: Any) -> Response:
        """Dispatch the job again with the current policy and a new ranking. Accepts a corrected location."""
        decision = self._decision(DispatchAgainSerializer)
        correction = services.Correction(decision.pop("address"), decision.pop("lat"), decision.pop("lng"))
        services.dispatch_again(self._pk, actor=request.actor, correction=correction, **decision)
        return self._answer()

    @_job_action(DecisionSerializer)
    def call_next(self, request: Request, **kwargs: Any) -> Response:
        """Hang up on the technician being called, and call the next one now."""
        services.call_next_now(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_job_action(ExtendSerializer)
    def extend(self, request: Request, **kwargs: Any) -> Response:
        """Give the technicians being called more seconds to answer."""
        decision = self._decision(ExtendSerializer)
        services.extend(self._pk, decision.pop("seconds"), actor=request.actor, **decision)
        return self._answer()

    @_job_action(DecisionSerializer)
    def pause(self, request: Request, **kwargs: Any) -> Response:
        """Pause the job: hang up on the technicians being called, and call nobody until it is resumed."""
        services.pause(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_job_action(DecisionSerializer)
    def resume(self, request: Request, **kwargs: Any) -> Response:
        """Resume a paused job with the next technician."""
        services.resume(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_job_action(CorrectSerializer)
    def correct(self, request: Request, **kwargs: Any) -> Response:
        """Correct a job. Its technician is notified of a new location, phone or arrival window.

        A job that becomes an emergency while it is being offered is offered to several technicians at once, if its
        policy says so.
        """
        given = self._decision(CorrectSerializer)
        better = services.Correction(given.pop("address"), given.pop("lat"), given.pop("lng"))
        phone = str(given.pop("customer_phone") or "")
        details = services.Details(
            customer_name=given.pop("customer_name", services.KEEP),
            notes=given.pop("notes", services.KEEP),
            window=given.pop("arrival_window", services.KEEP),
            expected_minutes=given.pop("expected_minutes", services.KEEP),
        )
        services.correct(
            self._pk, actor=request.actor, correction=better, customer_phone=phone, details=details, **given
        )
        return self._answer()

    @_job_action(DecisionSerializer)
    def cannot_make_it(self, request: Request, **kwargs: Any) -> Response:
        """Record that the assigned technician can't make it, and call the next one (after quiet hours, if any)."""
        services.cannot_make_it(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_job_action(CancelSerializer)
    def cancel(self, request: Request, **kwargs: Any) -> Response:
        """Cancel the job. Hangs up on the technicians being called."""
        decision = self._decision(CancelSerializer)
        services.cancel(self._pk, decision.pop("reason"), actor=request.actor, **decision)
        return self._answer()

    @_job_action(DecisionSerializer)
    def complete(self, request: Request, **kwargs: Any) -> Response:
        """Mark the job as completed."""
        services.complete(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_job_action(OnTheWaySerializer)
    def on_the_way(self, request: Request, **kwargs: Any) -> Response:
        """Record that the technician is on the way, and when they should arrive. The customer's page shows it."""
        services.report_on_the_way(self._pk, actor=request.actor, **self._decision(OnTheWaySerializer))
        return self._answer()

    @_job_action(ReportLateSerializer)
    def report_late(self, request: Request, **kwargs: Any) -> Response:
        """Record that the technician is running late. The customer's page shows it."""
        decision = self._decision(ReportLateSerializer)
        services.report_late(self._pk, decision.pop("minutes"), actor=request.actor, **decision)
        return self._answer()

    @_job_action(DecisionSerializer)
    def mark_started(self, request: Request, **kwargs: Any) -> Response:
        """Record that the technician has started the work."""
        services.mark_started(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_job_action(DecisionSerializer)
    def reopen(self, request: Request, **kwargs: Any) -> Response:
        """Undo the completion of a job. Its technician has it again, and is notified."""
        services.reopen(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_job_action(DecisionSerializer)
    def merge_duplicate(self, request: Request, **kwargs: Any) -> Response:
        """Cancel the job as a duplicate of `duplicate_of`."""
        services.merge_duplicate(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_job_action(DecisionSerializer)
    def not_a_duplicate(self, request: Request, **kwargs: Any) -> Response:
        """Dismiss the flag that the job may be a duplicate."""
        services.dismiss_duplicate(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_job_action(TechnicianToldSerializer)
    def technician_told(self, request: Request, **kwargs: Any) -> Response:
        """Record that you told a technician who could not be notified of a change. Ends the alert about it."""
        decision = self._decision(TechnicianToldSerializer)
        technician_id = decision.pop("technician", None)
        services.mark_technician_told(self._pk, technician_id, actor=request.actor, **decision)
        return self._answer()

    @extend_schema(responses=JobTextSerializer(many=True), filters=False)
    @action(detail=True, methods=["get"], pagination_class=None)
    def texts(self, request: Request, **kwargs: Any) -> Response:
        """List the last 1,000 texts between technicians and dispatchers about the job, oldest first."""
        latest = self.get_object().texts.select_related("text", "technician").order_by("-pk")[:MAX_ENTRIES]
        return Response(JobTextSerializer(list(latest)[::-1], many=True).data)

    @extend_schema(request=ComposeSerializer, responses={201: JobTextSerializer})
    @texts.mapping.post
    def send_text(self, request: Request, **kwargs: Any) -> Response:
        """Text a technician about the job. 409 if they have opted out or no number may send texts."""
        given = ComposeSerializer(data=request.data, context=self.get_serializer_context())
        given.is_valid(raise_exception=True)
        body, technician = given.validated_data["body"], given.validated_data.get("technician")
        row = threads.send(self.get_object().pk, body, technician_id=technician, actor=request.actor)
        return Response(JobTextSerializer(row).data, status=201)

    @extend_schema(request=None, responses=HandledSerializer)
    @action(detail=True, methods=["post"], url_path="texts/handled")
    def texts_handled(self, request: Request, **kwargs: Any) -> Response:
        """Mark the technicians' texts about the job as needing no reply."""
        return Response({"handled": threads.mark_handled(self.get_object().pk, actor=request.actor)})

    @extend_schema(responses=JobNoteSerializer(many=True), filters=False)
    @action(detail=True, methods=["get"])
    def notes(self, request: Request, **kwargs: Any) -> Response:
        """List the notes of dispatchers on the job, newest first."""
        page = self.paginate_queryset(self.get_object().written_notes.select_related("author"))
        return self.get_paginated_response(JobNoteSerializer(page, many=True).data)

    @extend_schema(
        request=WriteNoteSerializer,
        responses={201: JobNoteSerializer},
        parameters=[IDEMPOTENCY_KEY],
        filters=False,
    )
    @notes.mapping.post
    def write_note(self, request: Request, **kwargs: Any) -> Response:
        """Write a note on the job. Members whom it mentions, "@" and their name, are notified."""
        job = self.get_object()
        given = WriteNoteSerializer(data=request.data, context=self.get_serializer_context())

        def write() -> tuple[int, dict]:
            given.is_valid(raise_exception=True)
            note = notes.write_note(job.pk, given.validated_data["text"], actor=request.actor)
            return 201, dict(JobNoteSerializer(note).data)

        try:
            return respond_idempotently(request, notes_endpoint(job.pk), write)
        except Job.DoesNotExist:  # it was deleted meanwhile
            raise Http404 from None

    @extend_schema(request=None, responses={204: None})
    @action(detail=True, methods=["delete"], url_path=f"notes/(?P<note_id>{ID_PATTERN})")
    def delete_note(self, request: Request, note_id: str, **kwargs: Any) -> Response:
        """Delete a note on the job. Its author and admins may; a key needs the scope `manage`, too."""
        is_admin = is_allowed(request, _SCOPE.MANAGE)
        try:
            notes.delete_note(self.get_object().pk, int(note_id), actor=request.actor, is_admin=is_admin)
        except (Job.DoesNotExist, JobNote.DoesNotExist):
            raise Http404 from None
        return Response(status=204)

    def _decision(self, serializer: type[StrictSerializer]) -> dict[str, Any]:
        """Return the validated body with the version that the caller saw.

        Raises Http404 unless the job belongs to the caller's organization.
        """
        self.get_object()
        body = serializer(data=self.request.data, context=self.get_serializer_context())
        body.is_valid(raise_exception=True)
        decision: dict[str, Any] = dict(body.validated_data)
        decision.setdefault("version", _if_match(self.request))
        return decision

    def _answer(self) -> Response:
        job = self.get_object()
        return Response(self.get_serializer(job).data, headers={"ETag": f'"{job.version}"'})


def _if_match(request: Request) -> int | None:
    header = request.headers.get("If-Match", "").strip()
    if header in ("", "*"):
        return None
    if match := re.fullmatch(r'(?:W/)?"(\d{1,9})"', header):
        return int(match[1])
    raise ValidationError({"If-Match": ["Must be the ETag of a job: a number in double quotes."]})


router = SimpleRouter()
router.register("submissions", SubmissionViewSet, basename="submission")
router.register("jobs", JobViewSet, basename="job")
router.register("service-types", ServiceTypeViewSet, basename="service-type")
router.register("policies", DispatchPolicyViewSet, basename="policy")
urlpatterns = router.urls
