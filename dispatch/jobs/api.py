"""The API of submissions and jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import django_filters
from django.conf import settings
from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from structlog.contextvars import bind_contextvars

from accounts.models import ApiKey
from accounts.owned_api import OrganizationViewSet, OwnedFilterSet, answer_once
from dispatch.core.idempotency import HEADER
from dispatch.core.problems import Conflict
from dispatch.core.strict import Strict
from dispatch.jobs import services
from dispatch.jobs.api_setup import DispatchPolicyViewSet, ServiceTypeViewSet
from dispatch.jobs.models import Job, Priority, Submission
from dispatch.jobs.serializers import (
    AcceptedSerializer,
    AssignSerializer,
    CancelSerializer,
    DecisionSerializer,
    DispatchAgainSerializer,
    ExtendSerializer,
    JobDetailSerializer,
    JobSerializer,
    SubmissionFormSerializer,
    SubmissionSerializer,
)
from dispatch.technicians.models import Technician

_SCOPE = ApiKey.Scope
_IDEMPOTENCY = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    description="Repeats with the same key and body get the first answer, for 7 days; another body is refused.",
)
_IF_MATCH = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, description="The ETag of the job as it was decided on; or `version`."
)


class SubmissionFilter(OwnedFilterSet):
    """`?status=received&created_after=2026-01-01T00:00Z`"""

    created_after = django_filters.IsoDateTimeFilter("created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter("created_at", lookup_expr="lt")

    class Meta:
        model = Submission
        fields = ["status"]


class SubmissionViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Forms as they were received, and the jobs that they became."""

    queryset = Submission.objects.select_related("service_type", "job")
    serializer_class = SubmissionSerializer
    filterset_class = SubmissionFilter
    required = {"list": _SCOPE.READ, "retrieve": _SCOPE.READ, "create": _SCOPE.SUBMIT}

    @extend_schema(
        request=SubmissionFormSerializer, responses={202: AcceptedSerializer}, parameters=[_IDEMPOTENCY]
    )
    def create(self, request: Request) -> Response:
        """Takes a form. 202: it is stored and becomes a job, whatever happens; look at `status_url`."""
        form = SubmissionFormSerializer(data=request.data, context=self.get_serializer_context())
        form.is_valid(raise_exception=True)

        def accept() -> tuple[int, dict]:
            submission = services.accept_submission(
                request.organization,
                form.validated_data,
                raw=request.data,
                actor=request.actor,
                api_key=request.auth if isinstance(request.auth, ApiKey) else None,
                idempotency_key=request.headers.get(HEADER, ""),
            )
            return 202, {
                "id": submission.pk,
                "status": submission.status,
                "status_url": settings.PUBLIC_BASE_URL + reverse("submission-detail", args=[submission.pk]),
                "created_at": submission.created_at,
            }

        answer = answer_once(request, "submissions", accept)
        answer["Location"] = answer.data["status_url"]
        return answer


class JobFilter(OwnedFilterSet):
    """`?status=pending&status=dispatching&service_type=plumbing&priority=emergency&needs_attention=true`"""

    status = django_filters.MultipleChoiceFilter(choices=Job.Status.choices)
    pending_reason = django_filters.MultipleChoiceFilter(choices=Job.PendingReason.choices[1:])
    service_type = django_filters.CharFilter("service_type__code")
    priority = django_filters.ChoiceFilter(
        choices=[(one.name.lower(), one.label) for one in Priority], method="by_priority"
    )
    technician = django_filters.ModelChoiceFilter(queryset=Technician.objects.all())
    created_after = django_filters.IsoDateTimeFilter("created_at", lookup_expr="gte")
    created_before = django_filters.IsoDateTimeFilter("created_at", lookup_expr="lt")
    needs_attention = django_filters.BooleanFilter(method="by_attention")

    class Meta:
        model = Job
        fields: list[str] = []

    def by_priority(self, jobs: QuerySet, name: str, value: str) -> QuerySet:
        return jobs.filter(priority=Priority[value.upper()])

    def by_attention(self, jobs: Any, name: str, value: bool) -> QuerySet:
        waiting: QuerySet = jobs.needing_attention()
        return waiting if value else jobs.exclude(pk__in=waiting.values("pk"))


class Unfit(Conflict):
    """409: the technician is unfit, and nobody confirmed that they should have the job all the same."""

    default_code = "unfit"


def _acts(serializer: type[Strict]) -> Callable:
    """A POST on one job, decided on a version of it; answers with the job as it is then."""

    def decorate(method: Callable) -> Callable:
        named = method.__name__.replace("_", "-")
        documented = extend_schema(request=serializer, responses=JobDetailSerializer, parameters=[_IF_MATCH])
        return documented(action(detail=True, methods=["post"], url_path=named)(method))  # in this order

    return decorate


class JobViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Jobs, and what dispatchers do to them."""

    queryset = Job.objects.select_related("service_type", "technician", "organization")
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
        "cannot_make_it": _SCOPE.JOBS,
        "cancel": _SCOPE.JOBS,
        "complete": _SCOPE.JOBS,
    }

    def get_queryset(self) -> QuerySet:
        jobs = super().get_queryset()
        return (
            jobs
            if self.action == "list"
            else jobs.prefetch_related("candidates__technician", "offers__technician")
        )

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
        """One job with its candidates, offers and history. The ETag is its version."""
        return self._answer()

    @_acts(AssignSerializer)
    def assign(self, request: Request, **kwargs: Any) -> Response:
        """Assigns it to a technician; a live offer is taken back and hung up on. 409 `unfit` unless confirmed."""
        given = self._decision(AssignSerializer)
        result = services.assign(self._pk, given.pop("technician"), actor=request.actor, **given)
        if not result.assigned:
            raise Unfit(" ".join(result.warnings), warnings=list(result.warnings), version=result.job.version)
        return self._answer()

    @_acts(DispatchAgainSerializer)
    def dispatch_again(self, request: Request, **kwargs: Any) -> Response:
        """Begins anew: today's policy, a fresh ranking. May carry a better place."""
        given = self._decision(DispatchAgainSerializer)
        better = services.Correction(given.pop("address"), given.pop("lat"), given.pop("lng"))
        services.dispatch_again(self._pk, actor=request.actor, correction=better, **given)
        return self._answer()

    @_acts(DecisionSerializer)
    def call_next(self, request: Request, **kwargs: Any) -> Response:
        """Hangs up on whoever is being called, and calls the next technician now."""
        services.call_next_now(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_acts(ExtendSerializer)
    def extend(self, request: Request, **kwargs: Any) -> Response:
        """Gives the technician who is being called so many seconds more."""
        given = self._decision(ExtendSerializer)
        services.extend(self._pk, given.pop("seconds"), actor=request.actor, **given)
        return self._answer()

    @_acts(DecisionSerializer)
    def pause(self, request: Request, **kwargs: Any) -> Response:
        """Calls nobody until it is resumed; hangs up on whoever is being called."""
        services.pause(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_acts(DecisionSerializer)
    def resume(self, request: Request, **kwargs: Any) -> Response:
        """Goes on where the pause stopped it."""
        services.resume(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_acts(DecisionSerializer)
    def cannot_make_it(self, request: Request, **kwargs: Any) -> Response:
        """The assigned technician gives it back: the next one is called."""
        services.cannot_make_it(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    @_acts(CancelSerializer)
    def cancel(self, request: Request, **kwargs: Any) -> Response:
        """Ends it without a result; hangs up on whoever is being called."""
        given = self._decision(CancelSerializer)
        services.cancel(self._pk, given.pop("reason"), actor=request.actor, **given)
        return self._answer()

    @_acts(DecisionSerializer)
    def complete(self, request: Request, **kwargs: Any) -> Response:
        """The work is done."""
        services.complete(self._pk, actor=request.actor, **self._decision(DecisionSerializer))
        return self._answer()

    def _decision(self, serializer: type[Strict]) -> dict[str, Any]:
        """The body, checked, with the version that was decided on; the job was looked up among the caller's
        own."""
        self.get_object()
        given = serializer(data=self.request.data, context=self.get_serializer_context())
        given.is_valid(raise_exception=True)
        decided: dict[str, Any] = dict(given.validated_data)
        decided.setdefault("version", _if_match(self.request))
        return decided

    def _answer(self) -> Response:
        job = self.get_object()
        return Response(self.get_serializer(job).data, headers={"ETag": f'"{job.version}"'})


def _if_match(request: Request) -> int | None:
    given = request.headers.get("If-Match", "").strip()
    if given in ("", "*"):
        return None
    if found := re.fullmatch(r'(?:W/)?"(\d{1,9})"', given):
        return int(found[1])
    raise ValidationError({"If-Match": ["The ETag of a job, a number in double quotes."]})


router = SimpleRouter()
router.register("submissions", SubmissionViewSet, basename="submission")
router.register("jobs", JobViewSet, basename="job")
router.register("service-types", ServiceTypeViewSet, basename="service-type")
router.register("policies", DispatchPolicyViewSet, basename="policy")
urlpatterns = router.urls
