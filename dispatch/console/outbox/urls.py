"""Route the outbox's pages, below /outbox/."""

from django.urls import path

from dispatch.console.outbox import actions, catalog, conditions, endpoints, groups, messages, missed

urlpatterns = [
    path("", groups.group_list, name="outbox"),
    path("summary/", groups.summary, name="outbox_summary"),
    path("groups/<int:group_id>/", groups.group_detail, name="outbox_group"),
    path("messages/", messages.message_list, name="outbox_messages"),
    path("messages/act/", actions.handle_action, name="outbox_act"),
    path("messages/<int:message_id>/", messages.message_detail, name="outbox_message"),
    path("catalog/", catalog.catalog_page, name="outbox_catalog"),
    path("endpoints/", endpoints.endpoint_list, name="outbox_endpoints"),
    path("endpoints/<int:endpoint_id>/", endpoints.endpoint_detail, name="outbox_endpoint"),
    path("endpoints/<int:endpoint_id>/condition/", conditions.edit_condition, name="outbox_condition"),
    path("endpoints/<int:endpoint_id>/missed/", missed.send_missed, name="outbox_missed"),
    path("endpoints/<int:endpoint_id>/act/", actions.act_on_endpoint, name="outbox_act_on_endpoint"),
]
