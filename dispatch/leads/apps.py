from django.apps import AppConfig


class LeadsConfig(AppConfig):
    name = "dispatch.leads"
    label = "leads"
