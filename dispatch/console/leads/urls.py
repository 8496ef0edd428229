"""Route the pages of leads, below /leads/."""

from django.urls import path

from dispatch.console.leads import actions, campaign, uploads, views

urlpatterns = [
    path("", views.overview, name="leads"),
    path("figures/", views.figures_fragment, name="leads_figures"),
    path("phone/", views.phone, name="leads_phone"),
    path("upload/", uploads.upload_view, name="leads_upload"),
    path("live/", views.go_live, name="leads_go_live"),
    path("switch/", actions.switch_mode, name="leads_switch"),
    path("campaigns/<int:campaign_id>/", campaign.show_campaign, name="campaign"),
    path("campaigns/<int:campaign_id>/figures/", campaign.render_figures, name="campaign_figures"),
    path("campaigns/<int:campaign_id>/export.csv", campaign.export_leads, name="campaign_export"),
    path("campaigns/<int:campaign_id>/call-me/", campaign.call_member, name="campaign_call_me"),
    path("campaigns/<int:campaign_id>/<slug:action>/", actions.act_on_campaign, name="leads_campaign"),
    path("<int:lead_id>/<slug:action>/", actions.act_on_lead, name="leads_act"),
]
