"""The console's addresses. A page's own stand beside its views; here they are put together."""

from django.urls import include, path

from dispatch.console import chrome
from dispatch.console.board import drawer, views
from dispatch.console.reports import views as reports

app_name = "console"
urlpatterns = [
    path("organization/", chrome.choose_organization, name="choose_organization"),
    path("duty/", chrome.duty, name="duty"),
    path("health/", chrome.health_bar, name="health"),
    path("board/", views.board, name="board"),
    path("board/changes/", views.changes, name="changes"),
    path("board/columns/<slug:name>/", views.column, name="column"),
    path("board/claims/", views.claim, name="claim"),
    path("board/crew/", views.crew, name="crew"),
    path("board/crew/<int:technician_id>/back/", views.call_back, name="call_back"),
    path("board/map/", views.map_view, name="map"),
    path("board/jobs/<int:job_id>/", drawer.show, name="job"),
    path("board/jobs/<int:job_id>/act/<slug:action>/", drawer.act, name="act"),
    path("leads/", include("dispatch.console.leads.urls")),
    path("notifications/", include("dispatch.console.notices.urls")),
    path("outbox/", include("dispatch.console.outbox.urls")),
    path("schedules/", include("dispatch.console.schedules.urls")),
    path("reports/", reports.reports, name="reports"),
    path("reports/csv/", reports.as_csv, name="reports_csv"),
]
