"""URLs of the provider's webhooks."""

from django.urls import path

from dispatch.telephony.webhooks import fallback, number_hook, text_status, webhook

app_name = "telephony"
urlpatterns = [
    path("<slug:provider>/calls/<int:call_id>/<slug:kind>", webhook, name="webhook"),
    path("<slug:provider>/fallback", fallback, name="fallback"),
    path("<slug:provider>/texts/<int:text_id>/status", text_status, name="text_status"),
    path("<slug:provider>/numbers/<int:number_id>/<slug:kind>", number_hook, name="number"),
]
