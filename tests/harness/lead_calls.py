"""Leads with data, and a customer's server that calls of a campaign ask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.leads import Floor


def add_with(floor: Floor, phone: str, **data: Any) -> int:
    from dispatch.leads.services.intake import NewLead

    (answer_,) = floor.accept([NewLead(phone, data=data)])
    assert answer_.id
    return answer_.id


@contextmanager
def document(
    say: Callable[[bytes], bytes], content_type: str = "application/json"
) -> Iterator[tuple[str, list[str]]]:
    """Run a customer's server that returns this body; yield its address, and the requested paths."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            answer_ = say(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(answer_)))
            self.end_headers()
            self.wfile.write(answer_)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/twiml", asked
    finally:
        server.shutdown()
        server.server_close()
