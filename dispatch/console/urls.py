"""Routes of the console. Packages with several pages have their own `urls`, included here."""

from django.urls import include, path

from dispatch.console import app_manifest, page_context, service_worker
from dispatch.console.board import bulk, handover, job_panel, new_job, notes, saved_views, thread, views
from dispatch.console.notifications.acknowledging import alert_link
from dispatch.console.notifications.push import technician_browser
from dispatch.console.timeline import views as timeline

app_name = "console"
urlpatterns = [
    path("console.webmanifest", app_manifest.console_manifest, name="app_manifest"),
    path("technician.webmanifest", app_manifest.technician_manifest, name="technician_manifest"),
    path("service-worker.js", service_worker.service_worker, name="service_worker"),
    path("offline/", service_worker.offline_page, name="offline"),
    path("t/<str:token>/push/", technician_browser, name="technician_push"),
    path("organization/", page_context.choose_organization, name="choose_organization"),
    path("duty/", page_context.duty, name="duty"),
    path("tour/dismiss/", page_context.dismiss_tour, name="dismiss_tour"),
    path("health/", page_context.health_bar, name="health"),
    path("board/", views.board, name="board"),
    path("board/changes/", views.changes, name="changes"),
    path("board/columns/<slug:name>/", views.column, name="column"),
    path("board/selected/", bulk.handle_selected, name="selected"),
    path("board/views/", saved_views.show_menu, name="views"),
    path("board/views/<int:view_id>/", saved_views.change_view, name="view"),
    path("board/claims/", views.claim_item, name="claim"),
    path("board/handover/", handover.show_notes, name="handover_notes"),
    path("board/handover/<int:note_id>/", handover.read_note, name="read_handover_note"),
    path("board/crew/", views.technician_strip_view, name="crew"),
    path("board/crew/<int:technician_id>/back/", views.resume_technician, name="call_back"),
    path("board/map/", views.map_view, name="map"),
    path("board/map/points/", views.map_points, name="map_points"),
    path("board/timeline/", timeline.show_timeline, name="timeline"),
    path("board/timeline/jobs/<int:job_id>/", timeline.check_drop, name="timeline_drop"),
    path("board/new/", new_job.new_job, name="new_job"),
    path("board/new/facts/", new_job.describe_request, name="new_job_facts"),
    path("board/new/<int:submission_id>/", new_job.show_made_job, name="new_job_made"),
    path("board/jobs/<int:job_id>/", job_panel.show_panel, name="job"),
    path("board/jobs/<int:job_id>/texts/", thread.show_thread, name="thread"),
    path("board/jobs/<int:job_id>/notes/", notes.show_notes, name="notes"),
    path("board/members/", notes.list_members, name="members"),
    path("board/jobs/<int:job_id>/act/<slug:action>/", job_panel.handle_action, name="act"),
    path("a/<str:token>/", alert_link, name="alert_link"),
    path("leads/", include("dispatch.console.leads.urls")),
    path("notifications/", include("dispatch.console.notifications.urls")),
    path("outbox/", include("dispatch.console.outbox.urls")),
    path("schedules/", include("dispatch.console.schedules.urls")),
    path("reports/", include("dispatch.console.reports.urls")),
]
