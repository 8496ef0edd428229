"""Define the admin site: Unfold's, with a different search."""

from __future__ import annotations

import time
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.dataclasses import SearchResult
from unfold.sites import UnfoldAdminSite

from dispatch.core.ids import read_id

RESULTS_PER_PAGE = 100


class DispatchAdminSite(UnfoldAdminSite):
    """The admin. Its search finds the pages that the user may open."""

    def search(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Return the pages whose name or group contains the text `s`.

        Unfold caches objects, but our cache stores only JSON. The names are few, so nothing is cached.
        """
        text = request.GET.get("s", "").strip().lower()
        if not text:
            return HttpResponse()
        began = time.monotonic()
        paginator = Paginator(self._find_pages(request, text), RESULTS_PER_PAGE)
        page = paginator.get_page(read_id(request.GET.get("page")) or 1)
        kind = "command" if "extended" in request.GET else "search"
        context = {
            "page_obj": paginator,
            "results": page,
            "page_counter": page.start_index() - 1 if paginator.count else 0,
            "execution_time": time.monotonic() - began,
            "command_show_history": False,
        }
        return TemplateResponse(
            request, f"unfold/helpers/{kind}_results.html", context, headers={"HX-Trigger": "search"}
        )

    def _find_pages(self, request: HttpRequest, text: str) -> list[SearchResult]:
        found: dict[str, SearchResult] = {}
        for group in self.get_sidebar_list(request):
            matches_group = text in str(group["title"]).lower()
            for item in group["items"]:
                title, link = str(item["title"]), str(item["link"])
                if item["has_permission"] and (matches_group or text in title.lower()):
                    found[link] = SearchResult(title, str(group["title"]), link, item.get("icon"))
        for result in self._search_apps(self.get_app_list(request), text):
            found.setdefault(result.link, result)
        return list(found.values())
