"""Pages for people who sign in nowhere: a technician's offer and own page, a customer's form and status.

What opens a page is a signed link (`links`) or the organization's name (the form). They work without JavaScript
and at a phone's width; a GET never changes anything, for phones and chat programs open links by themselves. The
pages decide nothing: they call the services that a dispatcher's click calls, as the technician."""
