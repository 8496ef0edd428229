"""Define every URL of the application."""

from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.permissions import AllowAny

from accounts.auth.views import sign_in
from accounts.rq_dashboard import urlpatterns as rq_urlpatterns
from accounts.views import JoinView, SetPasswordView
from dispatch.console.privacy import audit_log, views
from dispatch.core.api import problems
from dispatch.core.api.schema_view import SchemaView
from dispatch.outbox.api.webhooks import WebhooksView
from dispatch.schedules.calendar_feed import schedule_feed

api: list[URLPattern | URLResolver] = [
    path("", include("accounts.api.urls")),
    path("", include("dispatch.capacity.api")),
    path("", include("dispatch.telephony.api")),
    path("", include("dispatch.technicians.api")),
    path("", include("dispatch.jobs.api.views")),
    path("", include("dispatch.leads.api")),
    path("", include("dispatch.outbox.api")),
    path("", include("dispatch.schedules.api")),
    path("", include("notifications.api.views")),
    path("schema/", SchemaView.as_view(), name="schema"),
    path("schema/webhooks/", WebhooksView.as_view(), name="webhooks-schema"),
    path(
        "docs/",
        SpectacularSwaggerSplitView.as_view(
            url_name="schema", permission_classes=[AllowAny], authentication_classes=[]
        ),
        name="docs",
    ),
]

admin.autodiscover()
admin.site.login = sign_in  # type: ignore[assignment, method-assign]

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="console:board", query_string=True), name="home"),
    path("", include("dispatch.console.urls")),
    path("admin/rq/", include((rq_urlpatterns, "django_rq"))),
    path("admin/personal-data/", admin.site.admin_view(views.page), name="personal_data"),
    path("admin/audit-log/", admin.site.admin_view(audit_log.page), name="audit_log"),
    re_path(r"^admin/r/", problems.raise_not_found),  # Django's link from a row to its page reveals rows
    path("admin/", admin.site.urls),
    path("account/", include("accounts.auth.urls")),
    path("join/<str:token>/", JoinView.as_view(), name="join"),
    path("set-password/<uidb64>/<token>/", SetPasswordView.as_view(), name="set_password"),
    path("api/v1/", include(api)),
    path("", include("dispatch.outbox.root_urls")),
    path("", include("dispatch.jobs.public.urls")),
    path("calendars/<str:token>.ics", schedule_feed, name="schedule_feed"),
    path("portal/", include("dispatch.console.portal.urls")),
    path("telephony/recordings/", include("dispatch.leads.recording_views")),
    path("", include("dispatch.telephony.root_urls")),
    re_path(r"^api/", problems.unknown_path),
]

if settings.DEVELOPMENT:
    urlpatterns.append(path("phones/", include("dispatch.dev.phones.urls")))
    urlpatterns.append(path("demo-receiver/", include("dispatch.dev.demo.receiver")))

handler400 = problems.bad_request
handler403 = problems.forbidden
handler404 = problems.not_found
handler500 = problems.server_error
