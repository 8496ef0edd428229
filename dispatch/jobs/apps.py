from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "dispatch.jobs"
    label = "jobs"

    def ready(self) -> None:
        from dispatch.jobs import offer_calls

        offer_calls.register()
