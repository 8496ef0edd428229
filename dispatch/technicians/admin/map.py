"""A map next to a technician's latitude and longitude for picking the position.

Without JavaScript, only the two fields are shown.
"""

from __future__ import annotations

import math
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Avg
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from dispatch.core.labels import label
from dispatch.technicians import map_outline
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import distance_words

NEAREST_M, FARTHEST_M = 2_000.0, 2_500_000.0
USUAL_M = 15_000.0
# The center of the contiguous states: the map's start if no technician has a position yet.
_COUNTRY = (39.8, -98.6)


class PositionPickerMixin:
    """Mixin of TechnicianAdmin."""

    admin_site: Any

    def get_urls(self) -> list:
        view = self.admin_site.admin_view(self.map_view)
        return [path("map/", view, name="technicians_technician_map"), *super().get_urls()]  # type: ignore[misc]

    def map_view(self, request: HttpRequest) -> HttpResponse:
        """Return the map background around `lat` and `lng` up to `reach` meters.

        Missing parameters default to the location of the user's technicians.
        """
        if not self.has_view_permission(request):  # type: ignore[attr-defined]
            raise PermissionDenied
        lat, lng = _number(request, "lat", 90), _number(request, "lng", 180)
        reach = _number(request, "reach", FARTHEST_M)
        if lat is None or lng is None:
            lat, lng = self._middle(request)
            reach = reach or (FARTHEST_M if (lat, lng) == _COUNTRY else None)
        reach = max(NEAREST_M, reach or USUAL_M)
        sheet = map_outline.Sheet([(lat, lng)], reach)
        scale = map_outline.scale_of(sheet)
        unit = getattr(getattr(request, "organization", None), "distance_unit", "mi")
        context = {
            "sheet": sheet,
            "lines": map_outline.grid_lines(sheet),
            "places": map_outline.towns_on_map(sheet),
            "scale": scale,
            "scale_words": distance_words(scale[1], unit),
            "reach": reach,
            "width": map_outline.WIDTH,
            "height": map_outline.HEIGHT,
        }
        return TemplateResponse(request, "admin/technicians/_map.html", context)

    def _middle(self, request: HttpRequest) -> tuple[float, float]:
        technicians = self.get_queryset(request).filter(is_active=True).order_by()  # type: ignore[attr-defined]
        center = technicians.aggregate(lat=Avg("lat"), lng=Avg("lng"))
        return _COUNTRY if center["lat"] is None else (center["lat"], center["lng"])

    @admin.display(description=label("on the map"))
    def on_the_map(self, technician: Technician) -> SafeString:
        """Return the placeholder that the script fills."""
        at = reverse(f"{self.admin_site.name}:technicians_technician_map")
        words = gettext("Enter latitude and longitude in degrees.")
        return format_html('<div class="picker" data-map="{}">{}</div>', at, words)


def _number(request: HttpRequest, name: str, limit: float) -> float | None:
    """Return a query parameter as a number, or None if it isn't one within the limit."""
    try:
        value = float(request.GET.get(name, ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= limit else None
