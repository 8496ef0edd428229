"""Application configurations of the console and of the admin."""

from django.apps import AppConfig
from django.contrib.admin.apps import SimpleAdminConfig


class ConsoleConfig(AppConfig):
    """The console has templates, static files and a loop, but no models."""

    default = True
    name = "dispatch.console"
    label = "console"

    def ready(self) -> None:
        from accounts import services as accounts
        from dispatch.console import checks  # noqa: F401
        from dispatch.console.reports.subscriptions import move_due_times

        accounts.on_time_zone_change(move_due_times)


class AdminConfig(SimpleAdminConfig):
    """Use our admin site. `dispatch.urls` discovers the admin, because only web processes need it."""

    default = False
    default_site = "dispatch.console.admin_site.DispatchAdminSite"
