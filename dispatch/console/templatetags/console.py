"""Template tags and filters of the console."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import template
from django.utils.html import format_html, format_html_join, json_script
from django.utils.safestring import SafeString
from phonenumber_field.phonenumber import PhoneNumber, to_python

from dispatch.core import clock, languages
from dispatch.core.labels import translate_label
from dispatch.core.languages import gettext as _
from dispatch.core.script_texts import load_catalog
from dispatch.core.stored_texts import translate_stored
from dispatch.jobs.reasons import translate_reason
from dispatch.technicians.rules import distance_words, road_words

register = template.Library()

# tone → icon, shown beside the color and the word
SHAPES = {
    "attention": "triangle",
    "calling": "phone",
    "waiting": "clock",
    "good": "check",
    "late": "bar",
    "off": "dash",
    "idle": "dash",
    "plain": "dot",
    "texted": "text",
}


@register.simple_tag
def script_texts() -> SafeString:
    """Return the JSON script element with the translations of the scripts' texts; empty in English."""
    catalog = load_catalog(languages.active())
    return json_script(catalog, "script-texts") if catalog else SafeString("")


@register.filter
def translated(text: object) -> str:
    """Translate a text that the code marked, such as a label of choices, into the active language."""
    return languages.gettext(str(text)) if text else ""


@register.filter
def event_words(kind: str) -> str:
    """Return what happened, such as "Circuit opened" for "endpoint.circuit_opened", in the active language."""
    words = languages.gettext(kind.partition(".")[2]).replace("_", " ").replace("cancelled", "canceled")
    return words[:1].upper() + words[1:]


@register.filter(name="label")
def label_filter(text: object) -> str:
    """Translate a label, such as the name of a voice, into the active language."""
    return translate_label(str(text)) if text else ""


@register.simple_tag
def icon(name: str, label: str = "") -> SafeString:
    """Return an icon of the page's sprite. It is announced if it has a label, and decorative otherwise."""
    if label:
        return format_html('<svg class="icon" role="img" aria-label="{}"><use href="#i-{}"/></svg>', label, name)
    return format_html('<svg class="icon" aria-hidden="true"><use href="#i-{}"/></svg>', name)


@register.simple_tag
def described_by(name: str, error: str, has_help: object = False) -> SafeString:
    """Return the attributes of a field that name its help and error: elements `<name>-help` and `<name>-error`."""
    ids = [f"{name}-help"] * bool(has_help) + [f"{name}-error"] * bool(error)
    attributes = [("aria-describedby", " ".join(ids))] * bool(ids) + [("aria-invalid", "true")] * bool(error)
    return format_html_join("", ' {}="{}"', attributes)


@register.simple_tag
def badge(tone: str, words: object) -> SafeString:
    """Return a state badge: color, icon and word."""
    return format_html(
        '<span class="badge {}"><svg class="icon" aria-hidden="true"><use href="#i-{}"/></svg>'
        "<span>{}</span></span>",
        tone,
        SHAPES.get(tone, "dot"),
        words,
    )


@register.filter
def shape(tone: str) -> str:
    """Return the name of the icon for a tone."""
    return SHAPES.get(tone, "dot")


@register.filter
def in_parts(body: str) -> SafeString:
    """Wrap each part of "Service · name · place" in its own text direction."""
    return format_html_join(" · ", "<bdi>{}</bdi>", ((part,) for part in body.split(" · ")))


@register.filter
def ago(moment: datetime | None, zone: str = "UTC") -> SafeString | str:
    """Format "4 min ago", with the exact local time on hover and for screen readers. The page keeps it current."""
    if moment is None:
        return "—"
    return _time(moment, zone, _("{span} ago").format(span=span(clock.now() - moment)), "ago")


@register.filter
def age(moment: datetime | None, zone: str = "UTC") -> SafeString | str:
    """Format as `ago` does, without the word "ago"."""
    return "—" if moment is None else _time(moment, zone, span(clock.now() - moment), "age")


@register.filter
def clocked(moment: datetime | None, zone: str = "UTC") -> SafeString | str:
    """Format the local time of day, with the date on hover."""
    return "—" if moment is None else _time(moment, zone, f"{local(moment, zone):%H:%M:%S}", "")


@register.filter
def hour(moment: datetime, zone: str = "UTC") -> SafeString:
    """Format the local time of day without seconds."""
    return _time(moment, zone, f"{local(moment, zone):%H:%M}", "")


@register.filter
def hour_words(moment: datetime, zone: str = "UTC") -> str:
    """Format the local time of day without seconds, as plain text."""
    return f"{local(moment, zone):%H:%M}"


@register.filter
def countdown(moment: datetime | None, zone: str = "UTC") -> SafeString | str:
    """Format "1:42" until `moment`, or "2 h 5 min" if it is far, by the server's clock. The page counts on."""
    if moment is None:
        return "—"
    left = max(0, int((moment - clock.now()).total_seconds()))
    words = f"{left // 60}:{left % 60:02d}" if left < 3600 else span(timedelta(seconds=left))
    return _time(moment, zone, words, "left")


@register.filter
def exact(moment: datetime, zone: str = "UTC") -> str:
    """Format the local date and time to the second, with the zone's name: "Mon, Dec 7, 2026, 09:00:00 MST"."""
    there = local(moment, zone)
    return f"{languages.date_words(there, year=True)}, {there:%H:%M:%S %Z}"


@register.filter
def national(phone: object) -> SafeString | str:
    """Format a phone number nationally; it is copied as E.164."""
    number = to_python(str(phone))
    if not isinstance(number, PhoneNumber) or not number.is_valid():
        return str(phone)
    return format_html('<span class="phone" data-copy="{}">{}</span>', number.as_e164, number.as_national)


@register.filter
def reasoned(reason: str) -> str:
    """Translate why a technician is or is not eligible."""
    return translate_reason(reason)


@register.filter
def stored(text: object) -> str:
    """Translate a sentence that is stored in English, such as the error of a channel."""
    return translate_stored(str(text)) if text else ""


@register.filter
def dated(day: date) -> str:
    """Format a date as "Mon, Dec 7"."""
    return languages.date_words(day)


@register.filter
def distance(meters: float | None, unit: str = "km") -> str:
    """Format a distance in the unit `mi` or `km`."""
    return "—" if meters is None else distance_words(meters, unit)


@register.simple_tag
def travel(meters: int | None, unit: str, travel_s: int | None) -> str:
    """Return how far away a technician is, and by which measure: "12 min by road" or "4.2 mi straight line"."""
    if meters is None:
        return "—"
    if travel_s is not None:
        return _("{time} by road").format(time=road_words(travel_s).removesuffix(" by road"))
    return _("{distance} straight line").format(distance=distance_words(meters, unit))


@register.filter
def seconds(value: float | None) -> str:
    """Format seconds as "1 min 42 s"."""
    return "—" if value is None else span(timedelta(seconds=float(value)), fine=True)


@register.filter
def percent(share: float | None) -> str:
    """Format a share from 0 to 1 as "42%"."""
    return "—" if share is None else f"{share * 100:.0f}%"


@register.simple_tag(takes_context=True)
def with_query(context: dict[str, Any], **changed: object) -> str:
    """Return this address's query with some parameters changed; None or "" removes one."""
    query = context["request"].GET.copy()
    for name, value in changed.items():
        if value in (None, ""):
            query.pop(name, None)
        else:
            query[name] = str(value)
    return f"?{query.urlencode()}" if query else "?"


def local(moment: datetime, zone: str) -> datetime:
    """Return the moment in the time zone."""
    return moment.astimezone(ZoneInfo(zone))


def span(passed: timedelta, *, fine: bool = False) -> str:
    """Format a span: "12 s", "4 min", "2 h 5 min", "3 d". `fine`: with seconds below an hour."""
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
