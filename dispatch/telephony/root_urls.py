"""URLs of the provider's webhooks, without all pages of the application, which take long to load."""

from django.urls import include, path

urlpatterns = [path("telephony/", include("dispatch.telephony.urls"))]
