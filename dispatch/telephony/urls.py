"""What the provider calls."""

from django.urls import path

from dispatch.telephony.number_webhooks import number_hook, text_status
from dispatch.telephony.webhooks import webhook

app_name = "telephony"
urlpatterns = [
    path("<slug:provider>/calls/<int:call_id>/<slug:kind>", webhook, name="webhook"),
    path("<slug:provider>/texts/<int:text_id>/status", text_status, name="text_status"),
    path("<slug:provider>/numbers/<int:number_id>/<slug:kind>", number_hook, name="number"),
]
