"""Build the image with buildah, without a daemon and without a registry of images, and run commands in it.

The base image is made on this machine: a minimal Debian of the release that runs here, from the mirror that apt
uses, and a Python of this machine under /usr/local, as in the official images of Python. Root is needed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.processes import ROOT
from tests.support.waiting import PATIENCE, wait_until

BASE, IMAGE = "localhost/dispatch-test-base", "localhost/dispatch-test"
PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/bin:/usr/sbin:/sbin"
# Certificates that this machine trusts, for the package index.
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def missing() -> str:
    """Return why no image can be built here, in words; empty if one can."""
    tools = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None]
    if tools:
        return f"install {' and '.join(tools)}"
    if os.geteuid() != 0:
        return "the base image can be made by root only"
    if platform.freedesktop_os_release().get("ID") != "debian":
        return "the base image is made from this machine's release of Debian, and this is none"
    if _python()[1] == Path("/usr"):
        return "the image needs a Python 3.12 outside /usr: Debian's cannot be copied"
    return ""


def build_base() -> str:
    """Return the name of the base image; make it if it does not exist."""
    python, prefix = _python()
    version = _output(python, "-c", "import platform; print(platform.python_version())")
    name = f"{BASE}:{version}"
    if _output("buildah", "images", "--quiet", "--filter", f"reference={name}"):
        return name
    root = Path(tempfile.mkdtemp(prefix="base-image-"))
    try:
        root.chmod(0o755)
        codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
        options = ("--variant=minbase", "--include=ca-certificates")
        _run("debootstrap", *options, codename, str(root), _mirror(codename))
        _copy_python(prefix, version.rpartition(".")[0], root)
        shutil.copyfile(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
        (root / "etc" / "pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n{_index()}")
        container = _output("buildah", "from", "scratch")
        _run("buildah", "add", "--quiet", container, str(root), "/")
        _run("buildah", "config", "--env", f"PATH={PATH}", container)
        _run("buildah", "commit", "--quiet", "--rm", container, name)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return name


def build_image() -> str:
    """Build deploy/Dockerfile on the base image of this machine; return the image's name."""
    _run(
        "buildah", "build", "--isolation", "chroot", "--pull-never", "--layers", "--build-arg",
        f"BASE_IMAGE={build_base()}", "--tag", IMAGE, "--file", "deploy/Dockerfile", ".",
    )  # fmt: skip
    return IMAGE


class Container:
    """A container of the image, with the network of this machine."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self._variables = [word for key, value in env.items() for word in ("--env", f"{key}={value}")]
        self._log = Path(tempfile.mkdtemp(prefix="container-")) / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, words: Sequence[str]) -> list[str]:
        return ["buildah", "run", "--isolation", "chroot", *self._variables, self.name, "--", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(self.command(words), capture_output=True, text=True)

    def start(self, *words: str) -> None:
        """Run a command in the background, with its output in the log."""
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(self.command(words), stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """Send SIGTERM to the command, as a container runtime does; return its exit code."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children(recursive=True):
            if not child.cmdline()[0].startswith("buildah"):
                child.terminate()
                break
        process = self._process
        wait_until(lambda: process.poll() is not None, message=self.log)
        return self._process.returncode

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self._process.pid).children(recursive=True)[::-1]:
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
            self._process.kill()
            self._process.wait(PATIENCE)


@contextmanager
def container(image: str, env: Mapping[str, str]) -> Iterator[Container]:
    """Yield a new container of the image, and delete it at the end."""
    made = Container(_output("buildah", "from", "--pull-never", image), env)
    try:
        yield made
    finally:
        made.kill()
        _run("buildah", "rm", made.name)


def _python() -> tuple[str, Path]:
    """Return the executable and the prefix of the Python for the base image: 3.12 if this machine has it."""
    for command in ("python3.12", sys.executable):
        with suppress(OSError, subprocess.CalledProcessError):
            return command, Path(_output(command, "-c", "import sys; print(sys.base_prefix)"))
    raise AssertionError("unreachable: this Python runs")


def _copy_python(prefix: Path, version: str, root: Path) -> None:
    """Copy a Python and the libraries that it needs into /usr/local of `root`."""
    target = root / "usr" / "local"
    library = prefix / "lib" / f"python{version}"
    unused = shutil.ignore_patterns("site-packages", "test", "__pycache__", "config-*")
    shutil.copytree(library, target / "lib" / library.name, symlinks=True, ignore=unused)
    (target / "lib" / library.name / "site-packages").mkdir()
    for path in (prefix / "lib").glob(f"libpython{version}*.so*"):
        shutil.copy2(path, target / "lib", follow_symlinks=False)
    executable = target / "bin" / f"python{version}"
    shutil.copy2(prefix / "bin" / executable.name, executable)
    for name in ("python", "python3"):
        (target / "bin" / name).symlink_to(executable.name)
    modules = [str(path) for path in (library / "lib-dynload").glob("*.so")]
    needed = set(re.findall(r"=> (/\S+)", _output("ldd", str(prefix / "bin" / executable.name), *modules)))
    for path in map(Path, needed):
        if not (root / path.relative_to("/")).exists() and not (target / "lib" / path.name).exists():
            shutil.copy2(path, target / "lib")
    _run("chroot", str(root), "ldconfig")
    _run("chroot", str(root), "/usr/local/bin/python", "-c", "import bz2, ctypes, lzma, sqlite3, ssl, uuid")


def _mirror(codename: str) -> str:
    """Return the mirror of Debian that apt uses on this machine."""
    lines = _output("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages")
    return dict(line.split(maxsplit=1) for line in lines.splitlines())[codename]


def _index() -> str:
    """Return the line of pip's configuration with the package index of this machine, if it is not the default."""
    found = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True)
    return f"index-url = {found.stdout.decode().strip()}\n" if found.returncode == 0 else ""


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
