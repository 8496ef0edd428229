"""The chat services and webhooks to which notifications go."""

from typing import Any

from django.db import models
from django.db.models import Q

from accounts.models import User
from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.crypto import EncryptedJSONField
from notifications import rules


class AlertChannel(OwnedModel):
    """Store one channel of a user, or of the whole team if `user` is empty.

    `config` has the addresses and tokens (`channels.kinds`); it is never shown. A removed channel keeps its row
    for the history of its deliveries, without the config.
    """

    class Kind(models.TextChoices):
        SLACK = "slack", "Slack"
        TEAMS = "teams", "Microsoft Teams"
        GOOGLE_CHAT = "google_chat", "Google Chat"
        TELEGRAM = "telegram", "Telegram"
        MATRIX = "matrix", "Matrix"
        NTFY = "ntfy", "ntfy"
        WEBHOOK = "webhook", "Webhook"

    class Scope(models.TextChoices):
        ALERTS = "alerts", "Alerts only"
        SHOWN = "shown", "Alerts, and events that are shown briefly"

    class Audience(models.TextChoices):
        DISPATCHERS = rules.DISPATCHERS, "Dispatchers"
        ADMINS = rules.ADMINS, "Admins"

    user = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=16, choices=Kind)
    name = models.CharField(max_length=60)
    config: Any = EncryptedJSONField(default=dict, editable=False)
    address = models.CharField(
        max_length=120, blank=True, editable=False, help_text="Where it goes, without secrets."
    )
    scope = models.CharField("sends", max_length=8, choices=Scope, default=Scope.ALERTS)
    audience = models.CharField(
        "for", max_length=16, choices=Audience, default=Audience.DISPATCHERS,
        help_text="It gets what these members are notified of.",
    )  # fmt: skip
    created_at = models.DateTimeField(default=clock.now, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False, help_text="Failed attempts in a row.")
    error = models.CharField(max_length=255, blank=True, editable=False, help_text="Of the latest attempt.")
    tried_at = models.DateTimeField(null=True, editable=False, help_text="When the latest attempt ended.")
    paused_until = models.DateTimeField(
        null=True, editable=False, help_text="No attempt until then: it keeps failing."
    )
    stopped_at = models.DateTimeField(
        null=True,
        editable=False,
        help_text="The service rejected a message for good. A successful test ends this.",
    )
    removed_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        verbose_name = "team channel"
        ordering = ["name", "pk"]
        indexes = [
            models.Index(fields=["organization", "user"], condition=Q(removed_at=None), name="channels_in_use")
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_team(self) -> bool:
        return self.user_id is None
