"""URLs of the provider's webhooks as the application has them, without its pages, which take a second to load."""

from django.urls import include, path

urlpatterns = [path("telephony/", include("dispatch.telephony.urls"))]
