"""The pages of leads, below /leads/."""

from django.urls import path

from dispatch.console.leads import acting, uploads, views

urlpatterns = [
    path("", views.overview, name="leads"),
    path("figures/", views.figures, name="leads_figures"),
    path("phone/", views.phone, name="leads_phone"),
    path("upload/", uploads.upload, name="leads_upload"),
    path("switch/", acting.switch, name="leads_switch"),
    path("campaigns/<int:campaign_id>/<slug:action>/", acting.campaign, name="leads_campaign"),
    path("<int:lead_id>/<slug:action>/", acting.lead, name="leads_act"),
]
