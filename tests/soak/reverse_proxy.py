"""Forward HTTP requests to one of several servers: those whose probe succeeds, or all if none does.

Run as `python -m tests.soak.reverse_proxy HOST:PORT [--probe /servez] SERVER...`, where a server is `HOST:PORT`. A
request whose connection fails goes to the next server, as operators configure their proxies. One that breaks off
after it was sent is answered with 502, because it may have been processed.
"""

from __future__ import annotations

import argparse
import asyncio

import aiohttp
from aiohttp import web

PROBE_EVERY_S = 1.0
PROBE_WITHIN_S = 2.5
CONNECT_WITHIN_S = 2.0
ANSWER_WITHIN_S = 15.0
MAX_BODY_BYTES = 10 * 1024 * 1024
NOT_FORWARDED = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Proxy:
    def __init__(self, servers: list[str], probe: str, connect_within_s: float) -> None:
        self._servers, self._probe, self._connect_within_s = servers, probe, connect_within_s
        self._healthy = list(servers)
        self._turn = 0

    async def forward(self, request: web.Request) -> web.Response:
        body = await request.read()
        self._turn += 1
        servers = self._healthy or self._servers
        for n in range(len(servers)):
            server = servers[(self._turn + n) % len(servers)]
            try:
                return await self._ask(server, request, body)
            except aiohttp.ClientConnectorError:
                continue
            except (TimeoutError, aiohttp.ClientError) as error:
                if isinstance(error, aiohttp.ConnectionTimeoutError):
                    continue
                return web.Response(status=502, text=f"{server}: {error!r}")
        return web.Response(status=503, text="no server can be reached")

    async def watch(self) -> None:
        while True:
            found = await asyncio.gather(*map(self._is_healthy, self._servers))
            self._healthy = [server for server, is_healthy in zip(self._servers, found, strict=True) if is_healthy]
            await asyncio.sleep(PROBE_EVERY_S)

    async def run(self, address: str) -> None:
        # Kept connections are not reused: one to a host that vanished would swallow a request.
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S, sock_connect=self._connect_within_s)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as self._client:
            app = web.Application(client_max_size=MAX_BODY_BYTES)
            app.router.add_route("*", "/{path:.*}", self.forward)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            host, _, port = address.partition(":")
            await web.TCPSite(runner, host, int(port), backlog=1024).start()
            if self._probe:
                await self.watch()
            await asyncio.Event().wait()

    async def _ask(self, server: str, request: web.Request, body: bytes) -> web.Response:
        url = f"http://{server}{request.raw_path}"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in NOT_FORWARDED}
        async with self._client.request(
            request.method, url, headers=headers, data=body, allow_redirects=False
        ) as answer:
            kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in NOT_FORWARDED]
            return web.Response(status=answer.status, body=await answer.read(), headers=dict(kept))

    async def _is_healthy(self, server: str) -> bool:
        timeout = aiohttp.ClientTimeout(total=PROBE_WITHIN_S)
        try:
            async with self._client.get(f"http://{server}{self._probe}", timeout=timeout) as answer:
                return answer.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("servers", nargs="+")
    parser.add_argument("--probe", default="")
    parser.add_argument("--connect-within", type=float, default=CONNECT_WITHIN_S)
    given = parser.parse_args()
    asyncio.run(Proxy(given.servers, given.probe, given.connect_within).run(given.address))


if __name__ == "__main__":
    main()
