"""Command line of the simulator."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

from .app import serve
from .config import Config, load
from .webhooks import is_loopback
from .world import World


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dispatch.telephony.simulator", description="A telephone provider on this machine."
    )
    parser.add_argument("--host", default="127.0.0.1", help="loopback address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--config", metavar="FILE.json", help="accounts, numbers, handsets, timing")
    parser.add_argument("--seed", type=int, default=1, help="for all chance")
    parser.add_argument("--speed", type=float, default=1.0, help="simulated seconds per second")
    parser.add_argument("--clock", choices=("scaled", "manual"), default="scaled", help="manual: stepped by tests")
    parser.add_argument("--ready-file", metavar="PATH", help="written with base_url and pid once it listens")
    parser.add_argument("--leash", action="store_true", help="stop when standard input ends")
    parser.add_argument("--allow-remote-webhooks", action="store_true", help="call hosts other than loopback")
    parser.add_argument("--quiet", action="store_true", help="no line per change of a call")
    return parser


def main() -> int:
    parser = arguments()
    given = parser.parse_args()
    if not is_loopback(given.host):
        parser.error(f"the simulator listens on loopback only, not on {given.host}")
    if not 0 <= given.port <= 65_535:
        parser.error(f"a port is a number up to 65535, not {given.port}")
    try:
        config = load(given.config)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_run(config, given))
    except (OSError, ValueError) as error:
        print(f"simulator: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The quicker event loop that comes with the web server, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(config: Config, given: argparse.Namespace) -> None:
    world = World(
        config,
        seed=given.seed,
        speed=given.speed,
        manual=given.clock == "manual",
        allow_remote=given.allow_remote_webhooks,
        quiet=given.quiet,
    )
    await serve(world, given.host, given.port, given.ready_file, given.leash)


if __name__ == "__main__":
    sys.exit(main())
