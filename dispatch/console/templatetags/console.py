"""Tags and filters of the console's templates."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from phonenumber_field.phonenumber import PhoneNumber, to_python

from dispatch.core import clock
from dispatch.technicians.rules import distance_words

register = template.Library()

# tone → the shape of the state, beside its colour and word
SHAPES = {
    "attention": "triangle",
    "calling": "phone",
    "waiting": "clock",
    "good": "check",
    "late": "bar",
    "off": "dash",
    "plain": "dot",
}


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """A shape of the page's sprite; with a label it speaks, without one it is decoration."""
    if label:
        return format_html('<svg class="icon" role="img" aria-label="{}"><use href="#i-{}"/></svg>', label, name)
    return format_html('<svg class="icon" aria-hidden="true"><use href="#i-{}"/></svg>', name)


@register.simple_tag
def badge(tone: str, words: object) -> SafeString:
    """A state: colour, shape and word."""
    return format_html(
        '<span class="badge {}"><svg class="icon" aria-hidden="true"><use href="#i-{}"/></svg>'
        "<span>{}</span></span>",
        tone,
        SHAPES.get(tone, "dot"),
        words,
    )


@register.filter
def shape(tone: str) -> str:
    return SHAPES.get(tone, "dot")


@register.filter
def in_parts(body: str) -> SafeString:
    """ "Service · name · place": each in its own direction of writing."""
    return format_html_join(" · ", "<bdi>{}</bdi>", ((part,) for part in body.split(" · ")))


@register.filter
def ago(moment: datetime | None, zone: str = "UTC") -> SafeString | str:
    """ "4 min ago", with the exact local time on hover and for who reads aloud; the page keeps it moving."""
    if moment is None:
        return "—"
    return _time(moment, zone, f"{span(clock.now() - moment)} ago", "ago")


@register.filter
def age(moment: datetime | None, zone: str = "UTC") -> SafeString | str:
    """As `ago`, without the word."""
    return "—" if moment is None else _time(moment, zone, span(clock.now() - moment), "age")


@register.filter
def clocked(moment: datetime | None, zone: str = "UTC") -> SafeString | str:
    """The local time of day, with the date on hover."""
    return "—" if moment is None else _time(moment, zone, f"{local(moment, zone):%H:%M:%S}", "")


@register.filter
def hour(moment: datetime, zone: str = "UTC") -> SafeString:
    """The local time of day without its seconds."""
    return _time(moment, zone, f"{local(moment, zone):%H:%M}", "")


@register.filter
def countdown(moment: datetime | None, zone: str = "UTC") -> SafeString | str:
    """ "1:42" until `moment`, "2 h 5 min" when it is far; on the server's clock, and the page counts on."""
    if moment is None:
        return "—"
    left = max(0, int((moment - clock.now()).total_seconds()))
    words = f"{left // 60}:{left % 60:02d}" if left < 3600 else span(timedelta(seconds=left))
    return _time(moment, zone, words, "left")


@register.filter
def exact(moment: datetime, zone: str = "UTC") -> str:
    """The local date and time, to the second, with the zone's name."""
    return f"{local(moment, zone):%Y-%m-%d %H:%M:%S %Z}"


@register.filter
def national(phone: object) -> SafeString | str:
    """A phone number as the reader writes it; copied as E.164."""
    number = to_python(str(phone))
    if not isinstance(number, PhoneNumber) or not number.is_valid():
        return str(phone)
    return format_html('<span class="phone" data-copy="{}">{}</span>', number.as_e164, number.as_national)


@register.filter
def distance(metres: float | None, unit: str = "km") -> str:
    return "—" if metres is None else distance_words(metres, unit)


@register.filter
def seconds(value: float | None) -> str:
    """ "1 m 42 s" for a span in seconds."""
    return "—" if value is None else span(timedelta(seconds=float(value)), fine=True)


@register.filter
def percent(share: float | None) -> str:
    return "—" if share is None else f"{share * 100:.0f} %"


@register.simple_tag(takes_context=True)
def keeping(context: dict[str, Any], **changed: object) -> str:
    """This address's query with some parameters changed; None or "" takes one out."""
    query = context["request"].GET.copy()
    for name, value in changed.items():
        if value in (None, ""):
            query.pop(name, None)
        else:
            query[name] = str(value)
    return f"?{query.urlencode()}" if query else "?"


def local(moment: datetime, zone: str) -> datetime:
    return moment.astimezone(ZoneInfo(zone))


def span(passed: timedelta, *, fine: bool = False) -> str:
    """A span in words: "12 s", "4 min", "2 h 5 min", "3 d". `fine`: with seconds below an hour."""
    whole = max(0, int(passed.total_seconds()))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if fine and whole % 60 else f"{whole // 60} min"
    if whole < 86_400:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h {minutes} min" if minutes else f"{whole // 3600} h"
    return f"{whole // 86_400} d"


def _time(moment: datetime, zone: str, words: str, kind: str) -> SafeString:
    moving = format_html(' data-time="{}" data-ms="{}"', kind, int(moment.timestamp() * 1000)) if kind else ""
    return format_html(
        '<time datetime="{}" title="{}"{}>{}</time>',
        moment.isoformat(timespec="seconds"),
        exact(moment, zone),
        moving,
        words,
    )
