"""Define the voice agent of a campaign: a program that talks to the people called, over a WebSocket."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from accounts.scoping import OwnedModel
from dispatch.leads.models.campaigns import Campaign
from dispatch.leads.rules import voice_agents as rules
from dispatch.leads.rules.script import split_names


class VoiceAgent(OwnedModel):
    """The voice agent of a campaign. It takes each answered call, or calls in which a certain key is pressed."""

    class Kind(models.TextChoices):
        RELAY = "relay", "Text (ConversationRelay)"
        STREAM = "stream", "Audio (Stream)"

    class Starts(models.TextChoices):
        ANSWER = "answer", "When the person answers"
        KEY = "key", "When a key with “Connect to the voice agent” is pressed"

    class Then(models.TextChoices):
        HANG_UP = "hang_up", "End the call"
        SCRIPT = "script", "Read the script"

    campaign = models.OneToOneField(Campaign, on_delete=models.CASCADE, related_name="agent")
    kind = models.CharField(
        "speaks",
        max_length=8,
        choices=Kind,
        default=Kind.RELAY,
        help_text="Text: Twilio listens and speaks. Audio: your program does both.",
    )
    url = models.CharField(
        "WebSocket URL",
        max_length=2000,
        help_text="For example wss://bots.example.com/quotes. Twilio connects to it.",
    )
    starts = models.CharField(max_length=8, choices=Starts, default=Starts.ANSWER)
    greeting = models.CharField(
        max_length=500, blank=True, help_text="Said first by an agent that speaks text. May contain placeholders."
    )
    variables = models.CharField(
        "data for the agent",
        max_length=400,
        blank=True,
        help_text="Names of the leads' data that the agent gets, separated by commas. It always gets lead_id, "
        "call_id, campaign and external_id.",
    )
    limit_s = models.PositiveSmallIntegerField(
        "longest conversation (s)",
        default=600,
        validators=[MinValueValidator(10), MaxValueValidator(14400)],
        help_text="Then the call is hung up.",
    )
    then = models.CharField("after the agent", max_length=8, choices=Then, default=Then.HANG_UP)
    otherwise = models.CharField(
        "said if the agent fails",
        max_length=1000,
        blank=True,
        help_text="If it can't be reached, or breaks off. May contain placeholders.",
    )

    def __str__(self) -> str:
        return f"{self.get_kind_display()}: {self.url}"

    def clean(self) -> None:
        if problems := agent_problems(self):
            raise ValidationError(problems)

    @property
    def names(self) -> list[str]:
        """Return the names of the leads' data that the agent gets."""
        return split_names(self.variables)

    @property
    def is_relay(self) -> bool:
        """Return whether the provider listens and speaks for the agent."""
        return self.kind == self.Kind.RELAY


def agent_problems(agent: VoiceAgent) -> dict[str, Any]:
    """Return what is wrong with an agent, by field."""
    problems: dict[str, Any] = {}
    if problem := rules.url_problem(agent.url, is_stream=not agent.is_relay, hosts=()):
        problems["url"] = problem
    if problem := rules.names_problem(agent.names):
        problems["variables"] = problem
    return problems
