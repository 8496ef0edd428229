"""Show messages and their groups in the admin: their state and its reason, their attempts, and actions."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import admin, messages
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from accounts.admin.base import ACT, VIEW, OwnedAdmin, OwnedTabularInline
from accounts.admin.stored_values import show_body
from dispatch.core.ids import read_id
from dispatch.core.labels import label, translate_label
from dispatch.core.languages import mark
from dispatch.outbox.explain import why_stuck
from dispatch.outbox.models import Attempt, Message, MessageGroup, QuarantinedPointer, Status
from dispatch.outbox.services.actions import Action, act_on_messages
from dispatch.outbox.services.endpoints import COUNT_LIMIT

STATUS_LABELS = {
    "PENDING": "info",
    "QUEUED": "info",
    "PROCESSING": "info",
    "COMPLETED": "success",
    "ERROR": "danger",
    "CANCELLED": "warning",
    "EXPIRED": "warning",
}
GROUP_COLORS = {"blocked": "danger", "waiting": "info", "idle": "success"}
# What an action reports.
DONE = {
    Action.RETRY: mark("{count:,} retried."),
    Action.RESOLVE: mark("{count:,} resolved."),
    Action.IGNORE: mark("{count:,} ignored."),
    Action.CANCEL: mark("{count:,} canceled."),
    Action.REPLAY: mark("{count:,} replayed."),
}
NOT_DONE = {
    Action.RETRY: mark("{count} not retried: only messages in ERROR can be; these are: {statuses}."),
    Action.RESOLVE: mark("{count} not resolved: only messages in ERROR can be; these are: {statuses}."),
    Action.IGNORE: mark("{count} not ignored: only messages in ERROR can be; these are: {statuses}."),
    Action.CANCEL: mark("{count} not canceled: only messages that have not ended can be; these are: {statuses}."),
    Action.REPLAY: mark(
        "{count} not replayed: only messages that have ended without an error and still have their content can "
        "be; these are: {statuses}."
    ),
}
# How many messages an action changes at once, oldest first. Up to as many are counted that do not allow it.
MAX_AT_ONCE = 10_000
# How many messages of a group's queue a page shows.
SHOWN_OF_GROUP = 20


class StuckFilter(admin.SimpleListFilter):
    """Filter for messages that need attention."""

    title = label("needs attention")
    parameter_name = "needs"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("blocking", gettext("Blocks its group")),
            ("open", translate_label("Open")),
            ("tried", gettext("Open, tried before")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        match self.value():
            case "blocking":
                return queryset.filter(status="ERROR", group__blocked_by=F("pk"))
            case "open":
                return queryset.filter(status__in=["PENDING", "QUEUED", "PROCESSING"])
            case "tried":
                return queryset.filter(status__in=["PENDING", "QUEUED", "PROCESSING"], calls__gt=0)
        return queryset


class AfterFilter(admin.SimpleListFilter):
    """Filter for messages after one: the rest after a replay. It is shown while it applies."""

    title = label("number")
    parameter_name = "after"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        after = read_id(self.value())
        return [] if after is None else [(str(after), gettext("After message {number}").format(number=after))]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        after = read_id(self.value())
        return queryset if after is None else queryset.filter(pk__gt=after)


class AttemptInline(OwnedTabularInline):
    """List a message's attempts, latest first, read-only."""

    model = Attempt
    admin_may = VIEW
    dispatcher_may = VIEW
    fields = ["number", "when", "result", "took", "asked", "answered"]
    readonly_fields = fields
    ordering = ["-id"]
    per_page = 20
    verbose_name_plural = label("attempts, latest first")

    @display(description=label("ended"))
    def when(self, attempt: Attempt) -> str:
        return exact_time(attempt.ended_at, attempt.organization.time_zone)

    @display(description=label("result"))
    def result(self, attempt: Attempt) -> str:
        words = attempt.get_outcome_display()
        code = f" ({attempt.status_code})" if attempt.status_code else ""
        late = gettext(", too late") if attempt.is_late else "" if attempt.is_spent else gettext(", not counted")
        return f"{words}{code}{late}"

    @display(description=label("duration"))
    def took(self, attempt: Attempt) -> str:
        return f"{attempt.elapsed_s * 1000:,.0f} ms"

    @display(description=label("request"))
    def asked(self, attempt: Attempt) -> str:
        return f"POST {shorten(attempt.url, 200)}" if attempt.url else "—"

    @display(description=label("response"))
    def answered(self, attempt: Attempt) -> str:
        if attempt.answer:
            return show_body(attempt.answer)
        return attempt.error or "—"


@admin.register(Message)
class MessageAdmin(OwnedAdmin):
    """Show messages read-only; only actions change them."""

    admin_may = ACT
    dispatcher_may = ACT
    list_display = [
        "id", "type", "sent_to", "named_group", "sequence", "state", "created", "all_attempts", "last_error",
    ]  # fmt: skip
    list_filter = [StuckFilter, "status", "mode", "endpoint", AfterFilter]
    list_filter_sheet = True
    list_select_related = ["endpoint", "group", "organization"]
    search_fields = ["=id", "=webhook_id", "=group__name", "=type", "=idempotency_key"]
    search_help_text = _("Number, webhook-id, group, type or idempotency key")
    ordering = ["-id"]
    show_full_result_count = False
    inlines = [AttemptInline]
    actions = ["retry", "ignore", "resolve", "cancel", "replay"]
    actions_detail = ["retry_this", "ignore_this", "resolve_this", "cancel_this", "replay_this"]
    readonly_fields = ["why", "to", "in_group", "is_now", "body", "all_attempts"]
    fieldsets = [
        (None, {"fields": ["why", "is_now", "type", "to", "in_group", "sequence", "mode", "body"]}),
        (
            _("When"),
            {
                "fields": [
                    "created_at", "scheduled_for", "due_at", "queued_at", "started_at", "lease_until", "ended_at",
                    "expires_at",
                ]
            },
        ),
        (
            _("Result"),
            {
                "fields": [
                    "attempts", "all_attempts", "lapses", "last_error", "resolution", "epoch", "replays",
                    "replayed_at", "idempotency_key", "webhook_id",
                ]
            },
        ),
    ]  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        model = [field.name for field in Message._meta.fields]
        return [*self.readonly_fields, *(name for name in model if name != "organization")]

    @display(description=label("why it is in this state"))
    def why(self, message: Message) -> str:
        return why_stuck(message, message.organization.time_zone)

    @display(description=label("status"), ordering="status", label=STATUS_LABELS)
    def state(self, message: Message) -> tuple[str, str]:
        return message.status, self.is_now(message)

    @display(description=label("status"))
    def is_now(self, message: Message) -> str:
        resolved = f", {gettext(message.resolution)}" if message.resolution else ""
        return f"{message.get_status_display()}{resolved}"

    @display(description=label("created"), ordering="id")
    def created(self, message: Message) -> str:
        return exact_time(message.created_at, message.organization.time_zone)

    @display(description=label("all attempts"), ordering="calls")
    def all_attempts(self, message: Message) -> int:
        """Count the attempts, including those that don't count against the budget."""
        return message.calls

    @display(description=label("to"))
    def to(self, message: Message) -> str:
        return message.endpoint.name if message.endpoint else message.url

    @display(description=label("to"), ordering="endpoint__name")
    def sent_to(self, message: Message) -> str:
        return shorten(self.to(message))

    @display(description=label("group"))
    def in_group(self, message: Message) -> str:
        if message.mode == "IMMEDIATE":
            return gettext("{group} (no order)").format(group=message.group.name)
        return link(self, message.group, message.group.name)

    @display(description=label("group"), ordering="group__name")
    def named_group(self, message: Message) -> str:
        name = shorten(message.group.name)
        return gettext("{group} (no order)").format(group=name) if message.mode == "IMMEDIATE" else name

    @display(description=label("payload"))
    def body(self, message: Message) -> str:
        return show_body(message.payload)

    # --- On several messages: those selected, or all that match the filters -----------------------------------
    @admin.action(description=_("Retry (resets the attempt count; history is kept)"), permissions=["act"])
    def retry(self, request: Any, queryset: QuerySet) -> None:
        apply_action(request, Action.RETRY, queryset)

    @admin.action(description=_("Ignore (gives up; the group continues)"), permissions=["act"])
    def ignore(self, request: Any, queryset: QuerySet) -> None:
        apply_action(request, Action.IGNORE, queryset)

    @admin.action(description=_("Resolve (already handled; the group continues)"), permissions=["act"])
    def resolve(self, request: Any, queryset: QuerySet) -> None:
        apply_action(request, Action.RESOLVE, queryset)

    @admin.action(description=_("Cancel (not sent)"), permissions=["act"])
    def cancel(self, request: Any, queryset: QuerySet) -> None:
        apply_action(request, Action.CANCEL, queryset)

    @admin.action(description=_("Replay (sends messages again that have ended)"), permissions=["act"])
    def replay(self, request: Any, queryset: QuerySet) -> None:
        apply_action(request, Action.REPLAY, queryset)

    # --- On one message -----------------------------------------------------------------------------------------
    @action(
        description=_("Retry"),
        permissions=["act"],
        dialog={
            "title": _("Retry this message?"),
            "description": (_("Resets the attempt count. Only for messages in ERROR.")),
        },
    )
    def retry_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        return self._act(request, Action.RETRY, object_id)

    @action(
        description=_("Ignore"),
        permissions=["act"],
        dialog={
            "title": _("Ignore this message?"),
            "description": _("The message becomes CANCELLED and its group continues. Only for messages in ERROR."),
        },
    )
    def ignore_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        return self._act(request, Action.IGNORE, object_id)

    @action(
        description=_("Resolve"),
        permissions=["act"],
        dialog={
            "title": _("Resolve this message?"),
            "description": (
                _(
                    "The message becomes COMPLETED without being sent, and its group "
                    "continues. Only for messages in ERROR."
                )
            ),
        },
    )
    def resolve_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        return self._act(request, Action.RESOLVE, object_id)

    @action(
        description=_("Cancel"),
        permissions=["act"],
        dialog={
            "title": _("Cancel this message?"),
            "description": (
                _(
                    "A waiting message is never sent. A message in flight may still "
                    "arrive; its group continues afterwards."
                )
            ),
        },
    )
    def cancel_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        return self._act(request, Action.CANCEL, object_id)

    @action(
        description=_("Replay"),
        permissions=["act"],
        dialog={
            "title": _("Replay this message?"),
            "description": (
                _(
                    "The receiver gets it again, with the same webhook-id and the header Dispatch-Replay. Later "
                    "messages of its group wait for it."
                )
            ),
        },
    )
    def replay_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        return self._act(request, Action.REPLAY, object_id)

    def _act(self, request: Any, chosen: Action, object_id: str) -> HttpResponse:
        apply_action(request, chosen, Message.objects.filter(pk=object_id))
        return self.back_to(object_id)


@admin.register(MessageGroup)
class MessageGroupAdmin(OwnedAdmin):
    """Show groups with the messages that block them and since when."""

    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["named", "to", "state", "blocked_since"]
    list_filter = [("blocked_by", admin.EmptyFieldListFilter), "endpoint"]
    list_select_related = ["endpoint"]
    search_fields = ["=name"]
    ordering = ["-id"]
    show_full_result_count = False
    fields = ["name", "endpoint", "is_now", "blocked_since", "line"]
    readonly_fields = fields
    actions = ["retry_blockers", "ignore_blockers", "resolve_blockers"]

    @display(description=label("name"), ordering="name")
    def named(self, group: MessageGroup) -> str:
        return shorten(group.name)

    @display(
        description=label("endpoint"), ordering="endpoint__name", empty_value=label("URLs without an endpoint")
    )
    def to(self, group: MessageGroup) -> str | None:
        return shorten(group.endpoint.name) if group.endpoint else None

    @display(description=label("state"), label=GROUP_COLORS)
    def state(self, group: MessageGroup) -> tuple[str, str]:
        kind = "blocked" if group.blocked_by else "waiting" if group.wake_at else "idle"
        return kind, self.is_now(group)

    @display(description=label("state"))
    def is_now(self, group: MessageGroup) -> str:
        if group.blocked_by:
            return gettext("blocked by the ERROR of message {message_id}").format(message_id=group.blocked_by)
        return gettext("has messages to send") if group.wake_at else gettext("empty")

    @display(description=label("queue"))
    def line(self, group: MessageGroup) -> str:
        """List the open messages and ERRORs of the group, in order."""
        own = group.messages.exclude(mode="IMMEDIATE").filter(
            status__in=["PENDING", "QUEUED", "PROCESSING", "ERROR"]
        )
        messages_of_group = list(own.order_by("sequence", "id")[: SHOWN_OF_GROUP + 1])
        if not messages_of_group:
            return gettext("empty")
        rows = (
            (link(MessageAdmin(Message, self.admin_site), row, f"{row.pk} {row.type}"), row.sequence,
             row.get_status_display(), why_stuck(row, group.organization.time_zone))
            for row in messages_of_group[:SHOWN_OF_GROUP]
        )  # fmt: skip
        listed = format_html_join("", gettext("<li>{} (sequence {}): {}. {}</li>"), rows)
        has_more = len(messages_of_group) > SHOWN_OF_GROUP
        more = format_html("<p>{}</p>", gettext("… and more")) if has_more else ""
        return format_html("<ol>{}</ol>{}", listed, more)

    @admin.action(description=_("Retry the blocking messages"), permissions=["act"])
    def retry_blockers(self, request: Any, queryset: QuerySet) -> None:
        apply_action(request, Action.RETRY, _blockers(queryset), list_of_rest=_list_of_blockers(self, request))

    @admin.action(description=_("Ignore the blocking messages"), permissions=["act"])
    def ignore_blockers(self, request: Any, queryset: QuerySet) -> None:
        apply_action(request, Action.IGNORE, _blockers(queryset))

    @admin.action(description=_("Resolve the blocking messages"), permissions=["act"])
    def resolve_blockers(self, request: Any, queryset: QuerySet) -> None:
        apply_action(request, Action.RESOLVE, _blockers(queryset))


@admin.register(QuarantinedPointer)
class QuarantinedPointerAdmin(OwnedAdmin):
    """Show quarantined pointers. They belong to no organization, so only superusers have access."""

    admin_may = frozenset()
    superuser_may = frozenset({"view", "delete"})
    list_display = ["at", "reason"]
    search_fields = ["reason", "content"]
    fields = ["at", "reason", "shown_content"]
    readonly_fields = fields

    @display(description=label("content"))
    def shown_content(self, pointer: QuarantinedPointer) -> str:
        return show_body(pointer.content)

    def of_organizations(self, rows: QuerySet, organizations: list[int]) -> QuerySet:
        return rows.none()


def link(own: OwnedAdmin, row: Any, words: str) -> str:
    """Return a link to the row's page."""
    name = f"{own.admin_site.name}:{row._meta.app_label}_{row._meta.model_name}_change"
    at = reverse(name, args=[row.pk])
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', at, words)


def shorten(text: str, longest: int = 60) -> str:
    """Shorten text for lists; the row's page shows all of it."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def exact_time(moment: datetime, zone: str) -> str:
    """Format the local date and time, to the second, with the name of the time zone."""
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %Z}"


def apply_action(request: Any, chosen: Action, rows: QuerySet, *, list_of_rest: str = "") -> None:
    """Apply the action to the oldest MAX_AT_ONCE rows that allow it.

    Reports how many changed, how to go on if there are more, and why the others did not change. `list_of_rest`:
    the URL of the list of messages with the filters of `rows`, if it is not the list of this request.
    """
    others = rows.exclude(status__in=chosen.before).order_by().values_list("status", flat=True)
    refused = Counter(others[:MAX_AT_ONCE])
    fitting = rows.filter(status__in=chosen.before).order_by("pk")
    ids = list(fitting.values_list("pk", flat=True)[: MAX_AT_ONCE + 1])
    has_more = len(ids) > MAX_AT_ONCE
    ids = ids[:MAX_AT_ONCE]
    done = act_on_messages(chosen, ids, actor=request.actor)
    refused.update(done.refused.values())
    if done.changed or not refused:
        messages.success(request, gettext(DONE[chosen]).format(count=len(done.changed)))
    if has_more:
        messages.warning(request, _how_to_go_on(request, chosen, ids[-1], list_of_rest))
    if refused:
        statuses = ", ".join(sorted(translate_label(Status(status).label) for status in refused))
        count = format_count(refused.total(), MAX_AT_ONCE)
        messages.warning(request, gettext(NOT_DONE[chosen]).format(count=count, statuses=statuses))


def _how_to_go_on(request: Any, chosen: Action, last: int, list_of_rest: str) -> str:
    """Return what a user does about the rest.

    Repeating the action would find the same messages again once they were delivered, or have failed, again.
    """
    if chosen not in (Action.REPLAY, Action.RETRY):
        words = gettext("At most {count:,} at once, oldest first. Repeat for the rest.")
        return words.format(count=MAX_AT_ONCE)
    at, filters = list_of_rest.split("?") if list_of_rest else ("", request.GET.urlencode())
    query = QueryDict(filters, mutable=True)
    query[AfterFilter.parameter_name] = str(last)
    query.pop("p", None)  # the page of the list
    return format_html(
        '{} <a class="underline" href="{}?{}">{}</a>',
        gettext("At most {count:,} at once, oldest first.").format(count=MAX_AT_ONCE),
        at,
        query.urlencode(),
        gettext("Continue after message {number}").format(number=last),
    )


def format_count(number: int, most: int = COUNT_LIMIT) -> str:
    """Format a count that stops at `most`."""
    return gettext("{count:,} or more").format(count=number) if number >= most else f"{number:,}"


def _list_of_blockers(own: OwnedAdmin, request: HttpRequest) -> str:
    """Return the URL of the list of messages that block their groups, with the filters that both lists have."""
    query = QueryDict(mutable=True)
    for name, values in request.GET.lists():
        if name.startswith(("endpoint", "organization")):
            query.setlist(name, values)
    query[StuckFilter.parameter_name] = "blocking"
    return f"{reverse(f'{own.admin_site.name}:outbox_message_changelist')}?{query.urlencode()}"


def _blockers(groups: QuerySet) -> QuerySet:
    blocking = groups.filter(blocked_by__isnull=False).values("blocked_by")
    return Message.objects.filter(pk__in=blocking, group__in=groups)
