"""Run the simulator from the command line."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections.abc import Callable

from .app import listen, serve
from .config import Config, load
from .webhooks import is_loopback
from .world import World


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m dispatch.dev.simulator", description="Simulate a phone provider on this machine."
    )
    parser.add_argument("--host", default="127.0.0.1", help="loopback address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free port")
    parser.add_argument("--fd", type=int, help="an inherited listening socket, instead of an address")
    parser.add_argument("--config", metavar="FILE.json", help="accounts, numbers, handsets, timing")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument("--speed", type=float, default=1.0, help="simulated seconds per second")
    parser.add_argument(
        "--clock", choices=("scaled", "manual"), default="scaled", help=("manual: advanced by tests")
    )
    parser.add_argument("--ready-file", metavar="PATH", help="file to write base_url and pid to once it listens")
    parser.add_argument("--leash", action="store_true", help="stop when standard input ends")
    parser.add_argument(
        "--allow-remote-webhooks", action="store_true", help=("allow webhooks to hosts other than loopback")
    )
    parser.add_argument("--quiet", action="store_true", help="do not log changes of calls")
    return parser


def main() -> int:
    """Run the simulator until it is stopped; return the exit code."""
    parser = arguments()
    given = parser.parse_args()
    if not is_loopback(given.host):
        parser.error(f"the simulator listens on loopback only, not on {given.host}")
    if not 0 <= given.port <= 65_535:
        parser.error(f"the port must be a number up to 65535, not {given.port}")
    try:
        config = load(given.config)
        listening = listen(given.host, given.port) if given.fd is None else socket.socket(fileno=given.fd)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_run(config, given, listening))
    except (OSError, ValueError) as error:
        print(f"simulator: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if uvloop is installed (the web server requires it), otherwise None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(config: Config, given: argparse.Namespace, listening: socket.socket) -> None:
    world = World(
        config,
        seed=given.seed,
        speed=given.speed,
        manual=given.clock == "manual",
        allow_remote=given.allow_remote_webhooks,
        quiet=given.quiet,
    )
    await serve(world, listening, given.ready_file, given.leash)


if __name__ == "__main__":
    sys.exit(main())
