"""Map the account endpoints under /api/v1/."""

from django.urls import path
from rest_framework.routers import SimpleRouter

from accounts.api import openapi as openapi  # names the authentication schemes
from accounts.api.views import (
    ApiKeyViewSet,
    ChooseOrganizationView,
    DutyView,
    MemberViewSet,
    MeView,
    OrganizationView,
)

router = SimpleRouter()
router.register("members", MemberViewSet, basename="member")
router.register("api-keys", ApiKeyViewSet, basename="api-key")

urlpatterns = [
    path("me/", MeView.as_view(), name="me"),
    path("me/organization/", ChooseOrganizationView.as_view(), name="choose-organization"),
    path("organization/", OrganizationView.as_view(), name="organization"),
    path("duty/", DutyView.as_view(), name="duty"),
    *router.urls,
]
