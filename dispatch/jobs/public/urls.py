"""Routes of the pages that open without signing in. They are short because they are sent in texts."""

from django.urls import path

from dispatch.jobs.public.offer import offer_page
from dispatch.jobs.public.request_form import embedded_form, embedded_thanks, form_page, thanks_page
from dispatch.jobs.public.status import status_page
from dispatch.jobs.public.technician import technician_page

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
