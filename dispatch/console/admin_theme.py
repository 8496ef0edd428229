"""Theme of the admin: Unfold's settings."""

from __future__ import annotations

from django.templatetags.static import static

UNFOLD = {
    "SITE_TITLE": "Dispatch",
    "SITE_HEADER": "Dispatch",
    "SITE_SYMBOL": "headset_mic",
    "SITE_URL": None,
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("dispatch/favicon.svg")}
    ],
    "SIDEBAR": {"navigation": "dispatch.console.navigation.sidebar"},
    # The blue of "in flight". All other colors mark states.
    "COLORS": {
        "primary": {
            "50": "oklch(97% .014 254.6)",
            "100": "oklch(93.2% .032 255.6)",
            "200": "oklch(88.2% .059 254.1)",
            "300": "oklch(80.9% .105 251.8)",
            "400": "oklch(70.7% .165 254.6)",
            "500": "oklch(62.3% .19 259.8)",
            "600": "oklch(51% .2 262)",
            "700": "oklch(45% .19 263)",
            "800": "oklch(39% .16 264)",
            "900": "oklch(34% .13 265)",
            "950": "oklch(26% .09 267)",
        }
    },
    "GLOBAL_CALLBACK": "accounts.views.admin_context",
    "DASHBOARD_CALLBACK": "dispatch.console.admin_dashboard.dashboard_context",
    "STYLES": [
        lambda request: static("dispatch/tokens.css"),
        lambda request: static("dispatch/notices.css"),
        lambda request: static("dispatch/admin.css"),
    ],
    "SCRIPTS": [
        # The theme's own way to evaluate its templates' expressions is forbidden by the Content-Security-Policy.
        lambda request: static("dispatch/admin_expressions.js"),
        lambda request: static("dispatch/press.js"),
        lambda request: static("dispatch/texts.js"),
        lambda request: static("dispatch/live.js"),
        lambda request: static("dispatch/alerts.js"),
        lambda request: static("dispatch/drafts.js"),
        lambda request: static("dispatch/admin.js"),
    ],
}
