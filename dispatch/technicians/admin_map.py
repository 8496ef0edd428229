"""A map beside a technician's latitude and longitude, from which a position is picked. Without JavaScript there
are the two fields alone."""

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

from dispatch.technicians import base_map
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import distance_words

NEAREST_M, FARTHEST_M = 2_000.0, 2_500_000.0
USUAL_M = 15_000.0
# Of the contiguous states: where the map begins when nobody has a position yet.
_COUNTRY = (39.8, -98.6)


class PositionPicker:
    """Mixin of TechnicianAdmin."""

    admin_site: Any

    def get_urls(self) -> list:
        view = self.admin_site.admin_view(self.map_view)
        return [path("map/", view, name="technicians_technician_map"), *super().get_urls()]  # type: ignore[misc]

    def map_view(self, request: HttpRequest) -> HttpResponse:
        """The ground about `lat` and `lng` as far as `reach` metres; what is missing is chosen by where one's own
        technicians are."""
        if not self.has_view_permission(request):  # type: ignore[attr-defined]
            raise PermissionDenied
        lat, lng = _number(request, "lat", 90), _number(request, "lng", 180)
        reach = _number(request, "reach", FARTHEST_M)
        if lat is None or lng is None:
            lat, lng = self._middle(request)
            reach = reach or (FARTHEST_M if (lat, lng) == _COUNTRY else None)
        reach = max(NEAREST_M, reach or USUAL_M)
        sheet = base_map.Sheet([(lat, lng)], reach)
        scale = base_map.scale_of(sheet)
        unit = getattr(getattr(request, "organization", None), "distance_unit", "mi")
        context = {
            "sheet": sheet,
            "lines": base_map.grid(sheet),
            "places": base_map.places(sheet),
            "scale": scale,
            "scale_words": distance_words(scale[1], unit),
            "reach": reach,
            "width": base_map.WIDTH,
            "height": base_map.HEIGHT,
        }
        return TemplateResponse(request, "admin/technicians/_map.html", context)

    def _middle(self, request: HttpRequest) -> tuple[float, float]:
        crew = self.get_queryset(request).filter(is_active=True).order_by()  # type: ignore[attr-defined]
        found = crew.aggregate(lat=Avg("lat"), lng=Avg("lng"))
        return _COUNTRY if found["lat"] is None else (found["lat"], found["lng"])

    @admin.display(description="on the map")
    def on_the_map(self, technician: Technician) -> SafeString:
        """Filled by the script; without it the fields do."""
        at = reverse(f"{self.admin_site.name}:technicians_technician_map")
        return format_html('<div class="picker" data-map="{}">Type latitude and longitude in degrees.</div>', at)


def _number(request: HttpRequest, name: str, limit: float) -> float | None:
    """What the address asks for, or None for what is no number within the limit."""
    try:
        value = float(request.GET.get(name, ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= limit else None
