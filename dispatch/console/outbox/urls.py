"""The outbox's pages, below /outbox/."""

from django.urls import path

from dispatch.console.outbox import acting, endpoints, groups, messages

urlpatterns = [
    path("", groups.listed, name="outbox"),
    path("summary/", groups.summary, name="outbox_summary"),
    path("groups/<int:group_id>/", groups.one, name="outbox_group"),
    path("messages/", messages.listed, name="outbox_messages"),
    path("messages/act/", acting.act, name="outbox_act"),
    path("messages/<int:message_id>/", messages.one, name="outbox_message"),
    path("endpoints/", endpoints.listed, name="outbox_endpoints"),
    path("endpoints/<int:endpoint_id>/", endpoints.one, name="outbox_endpoint"),
    path("endpoints/<int:endpoint_id>/act/", acting.act_on_endpoint, name="outbox_act_on_endpoint"),
]
