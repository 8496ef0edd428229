from django.apps import AppConfig


class CapacityConfig(AppConfig):
    name = "dispatch.capacity"
    label = "capacity"

    def ready(self) -> None:
        from dispatch.capacity import fast, lines
        from dispatch.core import generation

        generation.on_lost(lines.rebuild)
        fast.when_back(lines.catch_up)
