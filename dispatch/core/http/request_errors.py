"""The forms of the errors of requests, which are stored in English with attempts, channels and browsers."""

from __future__ import annotations

from dispatch.core.stored_texts import mark_stored

# Why an address must not be called: `ssrf`.
FORBIDDEN = (
    mark_stored("the URL is longer than {most} characters"),
    mark_stored("the URL contains a space, a control character or a backslash"),
    mark_stored("not a valid URL: {fault}"),
    mark_stored("the URL must use http or https"),
    mark_stored("the URL contains a user name or password"),
    mark_stored("the URL has no host"),
    mark_stored("an IPv4 address must be written as four decimal numbers"),
    mark_stored("the host is not a valid name or address"),
    mark_stored("the URL has no valid port"),
    mark_stored("port {number} is reserved for a protocol other than HTTP"),
    mark_stored("{address} is not an address"),
    mark_stored("{address} is a link-local, metadata, multicast or reserved address"),
    mark_stored("{address} is a private or loopback address"),
    mark_stored("{address} is not a public address"),
)
# What the HTTP client and the outbox record about a request.
FAILED = (
    mark_stored("the name was not looked up in time"),
    mark_stored("no response within {seconds} s"),
    mark_stored("{host} has no address"),
    mark_stored("The receiver answered {status}."),
    mark_stored("The receiver answered {status}. It has deferred this message for too long."),
    mark_stored("The attempt's lease ended without a result."),
    mark_stored("{count} attempts in a row ended without a result."),
    mark_stored("The response cannot be read: {fault}."),
    mark_stored("No access token: {fault}"),
    mark_stored("The client certificate expired on {time} UTC."),
)
