"""Routes of the user's own pages, below /notifications/."""

from django.urls import path

from dispatch.console.notifications import acknowledging, channels, inbox, phone, preferences, push, push_renewal

urlpatterns = [
    path("", inbox.page, name="notifications"),
    path("read/", inbox.mark_read, name="notifications_read"),
    path("<int:notification_id>/acknowledge/", inbox.acknowledge, name="notification_acknowledge"),
    path("alerts/<int:alert_id>/", acknowledging.alert_page, name="alert"),
    path("channels/", channels.list_channels, name="channels"),
    path("channels/new/<slug:kind>/", channels.new_channel, name="channel_new"),
    path("channels/<int:channel_id>/test/", channels.test_channel, name="channel_test"),
    path("channels/<int:channel_id>/remove/", channels.remove_channel, name="channel_remove"),
    path("push/", push.own_browser, name="push"),
    path("push/renew/", push_renewal.renew_browser, name="push_renewal"),
    path("push/browsers/", push.list_browsers, name="push_browsers"),
    path("push/<int:subscription_id>/test/", push.test_browser, name="push_test"),
    path("push/<int:subscription_id>/remove/", push.remove_browser, name="push_remove"),
    path("choices/", preferences.page, name="notification_choices"),
    path("choices/usual/", preferences.reset_preferences, name="notification_usual"),
    path("phone/", phone.change_phone, name="own_phone"),
    path("phone/code/", phone.send_code, name="own_phone_code"),
    path("phone/confirm/", phone.confirm_phone, name="own_phone_confirm"),
    path("language/", preferences.change_language, name="own_language"),
]
