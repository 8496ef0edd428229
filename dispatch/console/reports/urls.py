"""Routes of the reports."""

from django.urls import path

from dispatch.console.reports import views

urlpatterns = [
    path("", views.show_report, name="reports"),
    path("csv/", views.as_csv, name="reports_csv"),
    path("unsubscribe/<str:token>/", views.unsubscribe, name="report_unsubscribe"),
    path("<slug:slug>/", views.show_report, name="report"),
    path("<slug:slug>/csv/", views.as_csv, name="report_csv"),
    path("<slug:slug>/subscribe/", views.subscribe, name="report_subscribe"),
]
