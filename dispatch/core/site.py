"""The whole site on this machine: servers, tables, web, workers, dispatcher and, for development, the simulator.

`manage.py up` runs it until Ctrl-C; `manage.py demo` runs it while it submits forms:

    here = site.prepare(show=lambda name, line: False)
    with here.supervisor as children:
        children.wait_ready()
        requests.post(f"{here.base_url}/api/v1/submissions/", ...)
"""

from __future__ import annotations

import io
import os
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TextIO
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.core.checks import Error, Tags, run_checks
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections

from dispatch.core import embedded, metrics
from dispatch.core.supervisor import Spec, Supervisor


class CannotStart(RuntimeError):
    """The site cannot run as it is configured; the message is one or a few plain lines for a person."""


@dataclass(frozen=True)
class Site:
    """A site about to run. `notes` are plain lines about what was chosen on the way (ports, migrations)."""

    base_url: str
    simulator_url: str
    supervisor: Supervisor
    notes: tuple[str, ...]


def prepare(
    *,
    out: TextIO | None = None,
    usual_ports: bool = True,
    show: Callable[[str, str], bool] = lambda name, line: True,
) -> Site:
    """Checks, chooses ports, migrates, loads demo data into an empty database (development only).

    `show(name, line)` decides which of the children's lines are printed; `usual_ports=False` takes free ports at
    once, so that several may run side by side. The embedded servers are held by this process. Raises
    CannotStart."""
    notes: list[str] = []
    _check()
    listening = _web_address(notes, usual_ports)  # before what takes long, for it may be refused
    _migrate(notes)
    _simulator_address(notes, usual_ports)  # after it, for nobody keeps that port meanwhile
    base_url, simulator_url = settings.PUBLIC_BASE_URL, settings.SIMULATOR_URL
    _refuse_or_seed()
    specs = _specs(listening)
    child_environment = {
        **os.environ,
        "DATABASE_URL": _database_url(),
        "REDIS_URL": settings.REDIS_URL,
        "DISPATCH_DEVELOPMENT": "1" if settings.DEVELOPMENT else "0",
        "DISPATCH_DATA_DIR": str(settings.DATA_DIR),
        "PUBLIC_BASE_URL": base_url,
        "SIMULATOR_URL": simulator_url,
        "LOG_FORMAT": os.environ.get("LOG_FORMAT", "console"),
        "PYTHONUNBUFFERED": "1",
        "METRICS_PORT": "0",  # the web process tells for all of them
        **metrics.new_folder(settings.DATA_DIR / "metrics"),
    }
    connections.close_all()
    supervisor = Supervisor(specs, child_environment, out=out, watch=_watch_servers, show=show)
    return Site(base_url, simulator_url, supervisor, tuple(notes))


_hints: list[Callable[[], Iterable[str]]] = []


def tells_newcomers(lines: Callable[[], Iterable[str]]) -> Callable[[], Iterable[str]]:
    """Decorator: registers who tells a newcomer of the demo logins and what to try; printed by `manage.py up`."""
    _hints.append(lines)
    return lines


def demo_hints() -> list[str]:
    """What the slices tell a newcomer, line by line."""
    return [line for lines in _hints for line in lines()]


def _check() -> None:
    # First what needs no server: with wrong keys, say, the others could not even read their rows.
    for tags, databases in ((None, None), ([Tags.database], [DEFAULT_DB_ALIAS])):
        problems = [found for found in run_checks(tags=tags, databases=databases) if isinstance(found, Error)]
        if problems:
            told = [f"{found.msg} {found.hint or ''} ({found.id})" for found in problems]
            if not settings.DEVELOPMENT:
                told.append(
                    "To only try it here, with demo data and simulated phones, set DISPATCH_DEVELOPMENT=1."
                )
            raise CannotStart("\n".join(told))


def _migrate(notes: list[str]) -> None:
    said = io.StringIO()
    call_command("migrate", verbosity=1, interactive=False, skip_checks=True, stdout=said)
    if applied := said.getvalue().count(" OK\n"):
        notes.append(f"{applied} migrations applied.")


def _refuse_or_seed() -> None:
    if settings.DEVELOPMENT:
        call_command("seed_demo", if_empty=True, skip_checks=True)
        return
    # By name, for the table lies in a higher slice.
    if not apps.get_model("capacity", "ProviderAccount")._default_manager.filter(is_active=True).exists():
        raise CannotStart(
            "There is no active provider account, so nobody could be called. Add one in the admin (start only "
            "`manage.py web` for that), or set DISPATCH_DEVELOPMENT=1 to try everything with the simulator."
        )


def _web_address(notes: list[str], usual_ports: bool) -> socket.socket:
    """The socket on which web will listen. In development it moves to a free port when its own is taken and nobody
    chose it; the settings are changed to say so."""
    host = settings.WEB_HOST
    if not settings.DEVELOPMENT or os.environ.get("PUBLIC_BASE_URL") or os.environ.get("WEB_PORT"):
        listening = _listen(host, settings.WEB_PORT)
    else:
        try:
            listening = _listen(host, settings.WEB_PORT if usual_ports else 0)
        except CannotStart:
            listening = _listen(host, 0)
            notes.append(f"Port {settings.WEB_PORT} is taken; web uses {listening.getsockname()[1]}.")
    if settings.DEVELOPMENT and not os.environ.get("PUBLIC_BASE_URL"):
        settings.PUBLIC_BASE_URL = f"http://{host}:{listening.getsockname()[1]}"
    return listening


def _simulator_address(notes: list[str], usual_ports: bool) -> None:
    """In development the simulator moves likewise."""
    if settings.DEVELOPMENT and not os.environ.get("SIMULATOR_URL"):
        usual = urlsplit(settings.SIMULATOR_URL).port or 0
        port = _free_port(usual if usual_ports else 0)
        if usual_ports and port != usual:
            notes.append(f"Port {usual} is taken; the simulator uses {port}.")
        settings.SIMULATOR_URL = f"http://127.0.0.1:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "a port is a number up to 65535"
        raise CannotStart(
            f"Nothing can listen on {host}:{port}: {why}. Set another WEB_PORT or WEB_HOST."
        ) from error


def _free_port(wanted: int) -> int:
    """`wanted` when nobody listens there, else one that is free now."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise CannotStart("This machine has no free port.")


def _specs(listening: socket.socket) -> list[Spec]:
    manage = [sys.executable, str(settings.BASE_DIR / "manage.py")]
    host, port = listening.getsockname()[:2]
    reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104  (compared, not bound)
    fd = listening.detach()  # open as long as this process
    specs = [
        Spec(
            "web",
            [*manage, "web", "--fd", str(fd)],
            ready_url=f"http://{reached}:{port}/readyz",
            stop_stage=1,
            pass_fds=(fd,),
        ),
        Spec("dispatcher", [*manage, "dispatcher"]),
    ]
    if settings.WORKERS:
        specs.append(Spec("autoscale", [*manage, "autoscale"], relays=True))
    if settings.DEVELOPMENT:
        specs.insert(0, _simulator())
    return specs


def _simulator() -> Spec:
    config = io.StringIO()
    call_command("simulator_config", stdout=config, skip_checks=True)
    ready = settings.DATA_DIR / f"simulator-{os.getpid()}.ready"
    command = [
        sys.executable, "-m", "dispatch.telephony.simulator", "--quiet",
        "--port", str(urlsplit(settings.SIMULATOR_URL).port), "--config", config.getvalue().strip(),
        "--ready-file", str(ready),
    ]  # fmt: skip
    return Spec(
        "simulator", command, ready_file=ready, ready_url=f"{settings.SIMULATOR_URL}/control/state", stop_stage=2
    )


def _database_url() -> str:
    if settings.EMBEDDED_POSTGRES:
        return embedded.postgres_url(settings.DATA_DIR)
    return os.environ["DATABASE_URL"]


def _watch_servers() -> str | None:
    if settings.EMBEDDED_REDIS and embedded.restart_redis_if_dead(settings.DATA_DIR):
        return "The embedded Valkey was gone and is started again."
    if settings.EMBEDDED_POSTGRES and embedded.restart_postgres_if_dead(settings.DATA_DIR):
        return "The embedded PostgreSQL was gone and is started again."
    return None
