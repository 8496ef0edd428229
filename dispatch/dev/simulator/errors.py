"""Define the provider's error responses: a table of codes and an exception."""

from __future__ import annotations

from typing import Any

# code: (HTTP status, message, True for a mistake of the caller, False for a fact about a number or account)
CODES: dict[int, tuple[int, str, bool]] = {
    10001: (403, "Account is not active", False),
    10004: (429, "Call concurrency limit exceeded", False),
    20001: (400, "Invalid parameter", True),
    20003: (401, "Authenticate", False),
    20004: (405, "Method not allowed", True),
    20005: (403, "Account not active", False),
    20008: (403, "Resource not accessible with Test Account Credentials", False),
    20403: (403, "Forbidden", False),
    20404: (404, "The requested resource was not found", False),
    20429: (429, "Too Many Requests", False),
    20500: (500, "An internal server error has occurred", False),
    20503: (503, "Service unavailable", False),
    21201: (400, "No 'To' number is specified", True),
    21205: (400, "Url is not a valid URL", True),
    21210: (400, "'From' phone number not verified", False),
    21211: (400, "The 'To' number is not a valid phone number", False),
    21212: (400, "The 'From' number is not a valid phone number", False),
    21213: (400, "No 'From' number is specified", True),
    21214: (400, "'To' phone number cannot be reached", False),
    21215: (400, "Account not authorized to call that country", False),
    21216: (400, "Account not allowed to call that number", False),
    21217: (400, "Phone number does not appear to be valid", False),
    21218: (400, "Invalid ApplicationSid", True),
    21219: (400, "'To' phone number not verified", False),
    21220: (400, "Call is not in-progress. Cannot redirect.", False),
    21602: (400, "Message body is required", True),
    21603: (400, "A 'From' phone number is required", True),
    21604: (400, "A 'To' phone number is required", True),
    21606: (400, "The 'From' phone number is not a message-capable number of this account", False),
    21608: (400, "The 'To' number is unverified and the account may text only verified numbers", False),
    21609: (400, "The 'StatusCallback' URL is not a valid URL", True),
    21610: (400, "Attempt to send to unsubscribed recipient", False),
    21611: (429, "This 'From' number has exceeded the maximum number of queued messages", False),
    21612: (400, "Message cannot be sent with this combination of 'To' and 'From'", False),
    21614: (400, "'To' number is not a mobile number", False),
    21617: (400, "The concatenated message body exceeds the 1600 character limit", True),
    21626: (400, "Invalid 'StatusCallbackEvent'", True),
    21705: (400, "The Messaging Service is invalid", True),
    # Its HTTP status is not documented; 429 would be easier for clients.
    22005: (400, "Call queue full: the call would not be placed within 24 hours", False),
    70051: (401, "Authorization failed", False),
    573002: (403, "Trial account: this call is not permitted", False),
}


class ApiError(Exception):
    """An error response. `complaint`: it shows a mistake of the caller and is recorded for tests to assert on."""

    def __init__(
        self, code: int, detail: str = "", *, complaint: bool | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self.code = code
        self.status, message, mistake = CODES.get(code, (400, "Bad request", False))
        self.message = f"{message}: {detail}" if detail else message
        self.complaint = mistake if complaint is None else complaint
        self.headers = headers or {}
        super().__init__(f"{code} {self.message}")

    def body(self) -> dict[str, Any]:
        """Return the JSON that the provider's libraries read."""
        return {
            "code": self.code,
            "message": self.message,
            "more_info": f"https://www.twilio.com/docs/errors/{self.code}",
            "status": self.status,
        }
