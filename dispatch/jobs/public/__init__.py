"""Serve pages without sign-in: a technician's offer and own page, a customer's form and status.

A signed link (`signed_links`) or, for the form, the organization's slug opens a page. Pages work without
JavaScript and at phone width. A GET never changes anything, because phones and chat apps prefetch links. Pages
contain no rules: they call the same services as a dispatcher's click, with the technician as the actor.
"""
