"""The URL to which routers post pointers, without all pages of the application, which take long to load."""

from django.urls import path

from dispatch.outbox.api.process import process

urlpatterns = [path("api/v1/dispatch/process/", process, name="outbox_process")]
