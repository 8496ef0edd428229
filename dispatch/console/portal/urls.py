"""Route the portal, below /portal/."""

from django.urls import path

from dispatch.console.portal import views
from dispatch.console.portal.session import open_portal

app_name = "portal"
urlpatterns = [
    path("<str:uid>/", views.home, name="home"),
    path("<str:uid>/open/<str:code>/", open_portal, name="open"),
    path("<str:uid>/leave/", views.leave, name="leave"),
    path("<str:uid>/catalog/", views.catalog_page, name="catalog"),
    path("<str:uid>/endpoints/<int:endpoint_id>/", views.endpoint_page, name="endpoint"),
    path("<str:uid>/endpoints/<int:endpoint_id>/act/", views.act, name="act"),
    path("<str:uid>/endpoints/<int:endpoint_id>/messages/<int:message_id>/", views.message_page, name="message"),
]
