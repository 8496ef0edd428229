"""The dispatcher's browser pages and the admin's side bar.

Imports all slices and owns no rows: pages read the slices' models, and actions go to the slices' services.

Invariants: the first paint is correct without JavaScript. Every page has its own address. Nobody sees another
organization's rows (`request.organization` is in every query). An action carries the version that the user saw.

How to add a page:
1. Put views in a separate module or package (such as `dispatch/console/outbox`), each under `@console_view` from
   `views_base`. Answer with `views_base.render_page(request, "console/outbox/list.html", {...})`. The template
   extends "console/base.html" and fills `title`, `content` and, if needed, `head` and `scripts`; `current` in the
   context is the name of the menu entry. For htmx, use `views_base.render_fragment(request, template, context)`.
2. Add its routes to `urls.py`, and its entry to `menu.ENTRIES` (an entry without a route is not shown).
3. Use the components: the classes of static/dispatch/console.css (card, table, badge, button, field, notice,
   empty, drawer) and the tags and filters of `{% load console %}`: `{% badge "late" "Retrying" %}`, `{% icon
   "phone" %}`, `{{ at|ago:zone }}`, `{{ phone|national }}`, `{{ meters|distance:unit }}` and
   `{% with_query page=2 %}` (this address with another parameter). Each state has a fixed color and icon.
4. Live updates: an element with `hx-get` and `hx-trigger="changed:endpoint from:body throttle:1s"` is fetched
   again after an event about an endpoint. The subject is the part of the event's kind before the dot, listed in
   `notifications.live_updates.SUBJECTS`. Busier subjects are polled: `hx-trigger="every 5s"`. Controls that must
   be disabled while the page is stale carry `data-acts`.
"""
