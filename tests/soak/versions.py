"""The processes of one version of this project, beside those of another on the same servers."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import requests
from django.conf import settings

from tests.support.processes import ROOT, Process, free_port
from tests.support.waiting import PATIENCE, wait_until

GUIDE = ROOT / "docs" / "operations" / "upgrade.md"
WEBS = ("web 1", "web 2")
# In the order in which the guide replaces them.
COMMANDS: dict[str, tuple[str, ...]] = {
    "dispatcher 1": ("dispatcher",),
    "dispatcher 2": ("dispatcher",),
    "worker 1": ("worker", settings.DISPATCH_QUEUE, "--slot", "1"),
    "worker 2": ("worker", settings.DISPATCH_QUEUE, "--slot", "2"),
    "timeout worker": ("worker", settings.DISPATCH_TIMEOUT_QUEUE),
    "message worker": ("worker", settings.SCHEDULE_KIND_QUEUES["message"]),
    "status worker": ("worker", settings.SCHEDULE_STATUS_QUEUE),
    **dict.fromkeys(WEBS, ("web",)),
}


class Version:
    """The processes by name, with the code in `source`. Each web process has a separate port."""

    def __init__(self, name: str, source: Path, env: Mapping[str, str], ports: Mapping[str, int]) -> None:
        self.name, self.source = name, source
        self._env, self._ports = dict(env), ports
        self._running: dict[str, Process] = {}

    def start_all(self, *names: str) -> None:
        for name in names or COMMANDS:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a process. A web process is ready when this returns."""
        command = COMMANDS[name]
        if name in self._ports:
            command = (*command, "--port", str(self._ports[name]))
        if command[0] == "worker" and "--slot" in command:  # a slot has one worker at a time
            command = (*command[:-1], f"{self.name}-{command[-1]}")
        self._running[name] = Process(command, self._env, folder=self.source)
        if name in self._ports:
            wait_until(lambda: answers(self._ports[name], "readyz"), PATIENCE, self.logs)

    def port(self, name: str) -> int:
        return self._ports[name]

    def stop(self, name: str) -> None:
        """Stop a process as an operator does; check that it ends cleanly."""
        process = self._running.pop(name)
        # uvicorn stops cleanly, then repeats the signal
        assert process.stop() in (0, -signal.SIGTERM), f"{self.name} {name}\n{process.log()[-5000:]}"

    def ended(self) -> list[str]:
        """Return the names of processes that have ended by themselves."""
        return [name for name, process in self._running.items() if process.returncode is not None]

    def kill(self) -> None:
        for process in self._running.values():
            process.kill()

    def logs(self) -> str:
        return "\n".join(
            f"--- {self.name} {name}\n{process.log()[-3000:]}" for name, process in self._running.items()
        )

    def errors(self) -> list[str]:
        """Return the lines of the logs that report an error."""
        return [
            f"{self.name} {name}: {line[:300]}"
            for name, process in self._running.items()
            for line in process.log().splitlines()
            if re.search(r"\[error|\[critical|Traceback|^\w+(\.\w+)*Error", line)
        ]


def answers(port: int, path: str) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/{path}", timeout=5).ok
    except requests.RequestException:
        return False


@contextmanager
def reverse_proxy(ports: list[int]) -> Iterator[str]:
    """Yield the URL of a proxy in front of web processes at these ports; a refused request goes to the next."""
    port = free_port()
    command = [sys.executable, "-m", "tests.soak.reverse_proxy", f"127.0.0.1:{port}", "--connect-within", "15"]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [*command, *(f"127.0.0.1:{one}" for one in ports)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out,
            stderr=out,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


def commands_of_the_guide() -> list[str]:
    """Return the shell commands of the upgrade guide, block by block."""
    blocks = re.findall(r"^( *)```sh\n(.*?)^ *```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    return ["\n".join(line.removeprefix(indent) for line in block.splitlines()) for indent, block in blocks]


class Operator:
    """A shell that follows the guide: it starts in `folder`, and later commands run where earlier ones went."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder, self.env = folder, dict(env)

    def run(self, block: str) -> str:
        """Run a block of the guide as it is written; return what it printed. Any failing command fails it."""
        here = tempfile.NamedTemporaryFile(mode="r", suffix=".folder")  # noqa: SIM115
        script = f"set -e\n{block}\npwd > {here.name}\n"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        print(f"{time.strftime('%H:%M:%S')} {' '.join(block.split())}", flush=True)  # noqa: T201
        self.folder = Path(here.read().strip())
        here.close()
        return done.stdout + done.stderr


def offline_python(folder: Path) -> Path:
    """Write a `python3` whose new environments have the packages of the running one, as from a package cache."""
    site_packages = next(path for path in sys.path if path.endswith("site-packages"))
    script = folder / "python3"
    script.write_text(
        "#!/bin/sh\n"
        f'if [ "$1 $2" != "-m venv" ]; then exec {sys.executable} "$@"; fi\n'
        "for folder; do :; done\n"  # the last argument
        f'{sys.executable} -m venv --without-pip "$folder" || exit 1\n'
        f'echo {site_packages} > "$(echo "$folder"/lib/python*/site-packages)/installed.pth"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def path_with(*folders: Path) -> str:
    """Return PATH with these folders first."""
    return os.pathsep.join([*map(str, folders), os.environ["PATH"]])
