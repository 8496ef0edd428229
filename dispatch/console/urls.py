"""The console's addresses. A page's own stand beside its views; here they are put together."""

from django.urls import path

from dispatch.console import chrome

app_name = "console"
urlpatterns = [
    path("organization/", chrome.choose_organization, name="choose_organization"),
    path("duty/", chrome.duty, name="duty"),
    path("health/", chrome.health_bar, name="health"),
]
