"""Run the whole stack on this machine.

That is: servers, migrations, web, workers, dispatcher and, in development, the simulator.

`manage.py up` runs it until Ctrl-C; `manage.py demo` runs it while it submits forms:

    prepared = stack.prepare_stack(show=lambda name, line: False)
    with prepared.supervisor as children:
        children.wait_ready()
        requests.post(f"{prepared.base_url}/api/v1/submissions/", ...)
"""

from __future__ import annotations

import fcntl
import io
import os
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, TextIO
from urllib.parse import urlsplit

from django.apps import apps
from django.conf import settings
from django.core.checks import Error, Tags, run_checks
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections

from dispatch.core.environment import made_folder
from dispatch.core.observability import metrics
from dispatch.core.runtime.supervisor import STOP_GRACE_S, ProcessSpec, Supervisor
from dispatch.dev import embedded_servers


class CannotStart(RuntimeError):
    """The stack cannot run with this configuration. The message is one or a few plain lines."""


@dataclass(frozen=True)
class Stack:
    """Hold a stack that is ready to run. `notes`: plain lines about choices made (ports, migrations)."""

    base_url: str
    simulator_url: str
    supervisor: Supervisor
    notes: tuple[str, ...]
    claim: IO[bytes] | None = None  # open as long as the stack runs: see `_claim_data_folder`


def prepare_stack(
    *,
    out: TextIO | None = None,
    usual_ports: bool = True,
    history: bool = False,
    stream: bool = False,
    show: Callable[[str, str], bool] = lambda name, line: True,
) -> Stack:
    """Check settings, choose ports, migrate, and load demo data into an empty database (development only).

    `show(name, line)` decides which of the children's lines are printed. `usual_ports=False` takes free ports
    immediately, so that several stacks may run side by side. `history` gives the demo organization a history, and
    `stream` adds the process that keeps it busy. This process holds the embedded servers. Raise CannotStart.
    """
    notes: list[str] = []
    _check()
    claim = _claim_data_folder() if usual_ports else None
    # The addresses first, because they may be in use, and the rest takes time.
    for_web = _web_address(notes, usual_ports)
    for_simulator = _simulator_address(notes, usual_ports) if settings.DEVELOPMENT else None
    base_url, simulator_url = settings.PUBLIC_BASE_URL, settings.SIMULATOR_URL
    _migrate(notes)
    _seed_or_require_account(history)
    specs = _specs(for_web, for_simulator, stream)
    child_environment = {
        **os.environ,
        "DATABASE_URL": os.environ["DATABASE_URL"],
        "REDIS_URL": settings.REDIS_URL,
        "DISPATCH_DEVELOPMENT": "1" if settings.DEVELOPMENT else "0",
        "DISPATCH_DATA_DIR": str(settings.DATA_DIR),
        "PUBLIC_BASE_URL": base_url,
        "SIMULATOR_URL": simulator_url,
        "LOG_FORMAT": os.environ.get("LOG_FORMAT", "console"),
        "PYTHONUNBUFFERED": "1",
        "METRICS_PORT": "0",  # the web process reports for all of them
        **metrics.new_folder(settings.DATA_DIR / "metrics"),
    }
    connections.close_all()
    supervisor = Supervisor(
        specs, child_environment, out=out, watch=_watch_servers, show=show, grace_s=stop_grace_s()
    )
    return Stack(base_url, simulator_url, supervisor, tuple(notes), claim)


def stop_grace_s() -> float:
    """Return how long the processes may take to stop: outside development, as long as deliveries may last."""
    if settings.DEVELOPMENT:
        return STOP_GRACE_S
    return max(STOP_GRACE_S, settings.OUTBOX_MAX_TIMEOUT_S + 10, settings.AUTOSCALE_STOP_GRACE_S + 5)


_tips: list[Callable[[], Iterable[str]]] = []


def register_tips(lines: Callable[[], Iterable[str]]) -> Callable[[], Iterable[str]]:
    """Register a function that returns getting-started tips, printed by `manage.py up`. Decorator."""
    _tips.append(lines)
    return lines


def newcomer_tips() -> list[str]:
    """Return the registered tips, line by line."""
    return [line for lines in _tips for line in lines()]


def _check() -> None:
    # Checks that need no server come first: with wrong keys, for example, the others could not read rows.
    for tags, databases in ((None, None), ([Tags.database], [DEFAULT_DB_ALIAS])):
        problems = [
            message for message in run_checks(tags=tags, databases=databases) if isinstance(message, Error)
        ]
        if problems:
            lines = [f"{problem.msg} {problem.hint or ''} ({problem.id})" for problem in problems]
            if not settings.DEVELOPMENT:
                lines.append(
                    "To try Dispatch locally with demo data and simulated phones, set DISPATCH_DEVELOPMENT=1."
                )
            raise CannotStart("\n".join(lines))


def _claim_data_folder() -> IO[bytes]:
    """Lock the data folder until the file is closed. Raise CannotStart if another stack holds it.

    Two stacks would share one database and its queues, and calls would reach the simulator of either one.
    """
    claim = (made_folder(settings.DATA_DIR, mode=0o711) / "up.lock").open("ab")
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        claim.close()
        raise CannotStart(
            f"Another `manage.py up` uses the data folder {settings.DATA_DIR}. Stop it first, or set "
            "DISPATCH_DATA_DIR to another folder."
        ) from error
    return claim


def _migrate(notes: list[str]) -> None:
    output = io.StringIO()
    call_command("migrate", verbosity=1, interactive=False, skip_checks=True, stdout=output)
    if applied := output.getvalue().count(" OK\n"):
        notes.append(f"Applied {applied} migrations.")


def _seed_or_require_account(history: bool) -> None:
    if settings.DEVELOPMENT:
        call_command("seed_demo", if_empty=True, history=history, skip_checks=True)
        return
    # By name, because the model is in a higher layer.
    if not apps.get_model("capacity", "ProviderAccount")._default_manager.filter(is_active=True).exists():
        raise CannotStart(
            "No active provider account exists, so no calls can be made. Add one in the admin (run only "
            "`manage.py web` for that), or set DISPATCH_DEVELOPMENT=1 to use the simulator."
        )


def _web_address(notes: list[str], usual_ports: bool) -> socket.socket:
    """Return the socket on which web will listen.

    In development, web moves to a free port if its default is taken and was not set explicitly; the settings are
    updated.
    """
    host, advice = settings.WEB_HOST, "Set a different WEB_PORT or WEB_HOST."
    if not settings.DEVELOPMENT or os.environ.get("PUBLIC_BASE_URL") or os.environ.get("WEB_PORT"):
        listening = _listen(host, settings.WEB_PORT, advice)
    else:
        listening = _listen_on_usual_or_free_port("web", host, settings.WEB_PORT, notes, usual_ports, advice)
    if settings.DEVELOPMENT and not os.environ.get("PUBLIC_BASE_URL"):
        settings.PUBLIC_BASE_URL = f"http://{host}:{listening.getsockname()[1]}"
    return listening


def _simulator_address(notes: list[str], usual_ports: bool) -> socket.socket:
    """Return the simulator's socket. Its port is chosen in the same way, unless SIMULATOR_URL is set."""
    url, advice = urlsplit(settings.SIMULATOR_URL), "Set a different SIMULATOR_URL."
    host, port = url.hostname or "127.0.0.1", url.port or 80
    if os.environ.get("SIMULATOR_URL"):
        return _listen(host, port, advice)
    listening = _listen_on_usual_or_free_port("the simulator", host, port, notes, usual_ports, advice)
    settings.SIMULATOR_URL = f"http://{host}:{listening.getsockname()[1]}"
    return listening


def _listen_on_usual_or_free_port(
    name: str, host: str, usual: int, notes: list[str], usual_ports: bool, advice: str
) -> socket.socket:
    if not usual_ports:
        return _listen(host, 0, advice)
    try:
        return _listen(host, usual, advice)
    except CannotStart:
        listening = _listen(host, 0, advice)
        notes.append(f"Port {usual} is in use; {name} uses {listening.getsockname()[1]}.")
        return listening


def _listen(host: str, port: int, advice: str) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "the port must be a number up to 65535"
        raise CannotStart(f"Can't listen on {host}:{port}: {why}. {advice}") from error


def _specs(for_web: socket.socket, for_simulator: socket.socket | None, stream: bool) -> list[ProcessSpec]:
    manage = [sys.executable, str(settings.BASE_DIR / "manage.py")]
    host, port = for_web.getsockname()[:2]
    reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104  (compared, not bound)
    fd = for_web.detach()  # stays open as long as this process
    specs = [
        ProcessSpec(
            "web",
            [*manage, "web", "--fd", str(fd)],
            ready_url=f"http://{reached}:{port}/readyz",
            stop_stage=1,
            pass_fds=(fd,),
        ),
        ProcessSpec("dispatcher", [*manage, "dispatcher"]),
    ]
    if settings.WORKERS:
        specs.append(ProcessSpec("autoscale", [*manage, "autoscale"], relays=True))
    if for_simulator is not None:
        specs.insert(0, _simulator(for_simulator.detach()))
        if stream:
            specs.append(ProcessSpec("forms", [*manage, "demo_stream"]))
    return specs


def _simulator(fd: int) -> ProcessSpec:
    config = io.StringIO()
    call_command("simulator_config", stdout=config, skip_checks=True)
    command = [
        sys.executable, "-m", "dispatch.dev.simulator", "--quiet",
        "--fd", str(fd), "--config", config.getvalue().strip(),
    ]  # fmt: skip
    return ProcessSpec(
        "simulator", command, ready_url=f"{settings.SIMULATOR_URL}/control/state", stop_stage=2, pass_fds=(fd,)
    )


def _watch_servers() -> str | None:
    if settings.EMBEDDED_REDIS and embedded_servers.restart_redis_if_dead(settings.DATA_DIR):
        return "The embedded Valkey had stopped and was restarted."
    if settings.EMBEDDED_POSTGRES and embedded_servers.restart_postgres_if_dead(settings.DATA_DIR):
        return "The embedded PostgreSQL had stopped and was restarted."
    return None
