"""A person's own pages, below /notifications/."""

from django.urls import path

from dispatch.console.notices import choosing, listed

urlpatterns = [
    path("", listed.page, name="notifications"),
    path("read/", listed.read, name="notifications_read"),
    path("<int:notification_id>/acknowledge/", listed.acknowledge, name="notification_acknowledge"),
    path("choices/", choosing.page, name="notification_choices"),
    path("choices/usual/", choosing.usual, name="notification_usual"),
    path("phone/", choosing.phone, name="own_phone"),
]
