"""The addresses of pages that open without signing in. They are short: they travel in texts."""

from django.urls import path

from dispatch.jobs.pages.form import embedded_form, embedded_thanks, form_page, thanks_page
from dispatch.jobs.pages.offer import offer_page
from dispatch.jobs.pages.status import status_page
from dispatch.jobs.pages.technician import technician_page

app_name = "pages"
urlpatterns = [
    path("o/<str:token>/", offer_page, name="offer"),
    path("t/<str:token>/", technician_page, name="technician"),
    path("s/<str:token>/", status_page, name="status"),
    path("f/<slug:slug>/", form_page, name="form"),
    path("f/<slug:slug>/thanks/<str:token>/", thanks_page, name="thanks"),
    path("f/<slug:slug>/embed/", embedded_form, name="embed"),
    path("f/<slug:slug>/embed/thanks/<str:token>/", embedded_thanks, name="embed_thanks"),
]
