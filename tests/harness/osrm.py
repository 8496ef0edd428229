"""A server on this machine that speaks OSRM's table service, and fails in the ways a real one does."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dispatch.technicians.road_times import PROBE_THREAD
from tests.support.waiting import PATIENCE

Point = tuple[float, float]


class Osrm(http.server.ThreadingHTTPServer):
    """Answers each table request with the minutes in `minutes`, by the technician's latitude.

    `mode`: "ok", "hang", "cut", "garbage" (`garbage` is the body), "refuse" (no road is near) or "broken".
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.minutes: dict[float, float | None] = {}
        self.mode = "ok"
        self.garbage: bytes = b"<html>"
        self.requests: list[list[Point]] = []  # of each request: the technicians' positions
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def put(self, lat: float, minutes: float | None) -> None:
        """Let the drive from this latitude take so long; None: there is no route."""
        self.minutes[round(lat, 4)] = minutes

    def table(self, path: str) -> dict[str, Any]:
        """Return the answer to a request as OSRM's documentation describes it."""
        parts = urlsplit(path)
        assert parts.path.startswith("/table/v1/driving/"), path
        query = {name: values[0] for name, values in parse_qs(parts.query, separator="&").items()}
        pairs = (point.split(",") for point in parts.path.rsplit("/", 1)[1].split(";"))
        points = [(float(lat), float(lng)) for lng, lat in pairs]
        assert query["annotations"] == "duration"
        sources = [int(nth) for nth in query["sources"].split(";")]
        (target,) = (int(nth) for nth in query["destinations"].split(";"))
        asked = [points[nth] for nth in sources]
        assert points[target] not in asked or len(points) == len(asked) + 1
        self.requests.append(asked)
        drives = [self.minutes.get(round(lat, 4)) for lat, _ in asked]
        return {"code": "Ok", "durations": [[None if drive is None else drive * 60] for drive in drives]}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Osrm

    def do_GET(self) -> None:
        answer = self.server.table(self.path)
        match self.server.mode:
            case "hang":
                self.server.released.wait(60)
            case "cut":
                self.send_response(200)
                self.send_header("Content-Length", "5000")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode()[:10])
                self.wfile.flush()
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
            case "garbage":
                self._send(200, self.server.garbage)
            case "refuse":
                self._send(400, b'{"code": "NoSegment", "message": "no road near"}')
            case "broken":
                self._send(500, b'{"code": "InternalError"}')
            case _:
                self._send(200, json.dumps(answer).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """None."""


@contextmanager
def osrm_server(settings: Any) -> Iterator[Osrm]:
    """Run a server that the settings name. At the end, requests that hang are released."""
    server = Osrm()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    settings.OSRM_URL = server.url
    try:
        yield server
    finally:
        server.released.set()
        for thread in threading.enumerate():
            if thread.name == PROBE_THREAD:
                thread.join(PATIENCE)
        server.shutdown()
        server.server_close()
