"""The dispatcher's browser pages, the admin's side bar and the demo. Stands on all slices and owns no rows: what
it shows it reads, what people do it hands to the slices' services.

Keeps: the first paint is the truth, without JavaScript; every page has its address; nobody sees another
organization's rows (`request.organization` is in every query); an action carries the version it was decided on.

How a page is added:
1. Views in a module or package of their own (`dispatch/console/outbox.py`), each under `@console_view` from
   `web`, answering with `web.page(request, "console/outbox/list.html", {...})`. The template extends
   "console/base.html" and fills `title`, `content` and, if it needs them, `head` and `scripts`; `current` in the
   context is the menu entry's name. A fragment for htmx is `web.fragment(request, template, context)`.
2. Its addresses in `urls.py`; its line in `menu.ENTRIES`, if it is not there already (an entry whose address does
   not exist is not shown).
3. Components: the classes of static/dispatch/console.css (card, table, badge, button, field, notice, empty,
   drawer); tags and filters of `{% load console %}`: `{% badge "late" "Retrying" %}`, `{% icon "phone" %}`,
   `{{ at|ago:zone }}`, `{{ phone|national }}`, `{{ metres|distance:unit }}`, `{% keeping page=2 %}` (this address
   with another parameter). Colours and shapes of states: UI.md.
4. Live: an element with `hx-get` and `hx-trigger="changed:endpoint from:body throttle:1s"` is fetched again when
   an event about such a subject has happened (what stands before the dot of its kind; those that are told are in
   `notifications.hints.SUBJECTS`); busier ones are polled: `hx-trigger="every 5s"`. What must not be pressed while
   the page is stale carries `data-acts`.
"""
