"""Routes of the schedules pages, below /schedules/."""

from django.urls import path

from dispatch.console.schedules import form_views, views

urlpatterns = [
    path("", views.overview, name="schedules"),
    path("new/", form_views.new, name="new_schedule"),
    path("preview/", form_views.preview, name="preview_schedule"),
    path("<int:schedule_id>/", views.detail, name="schedule"),
    path("<int:schedule_id>/edit/", form_views.edit, name="edit_schedule"),
    path("<int:schedule_id>/run/", form_views.run_with_changes, name="run_with_changes"),
    path("<int:schedule_id>/act/<slug:action>/", views.act_on_schedule, name="act_on_schedule"),
    path("runs/<int:run_id>/", views.run, name="schedule_run"),
    path("runs/<int:run_id>/act/<slug:action>/", views.act_on_run, name="act_on_run"),
]
