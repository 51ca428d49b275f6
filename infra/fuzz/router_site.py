"""The router as clients meet it, on loopback: uvicorn in front, a door and the stand-in behind."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from aiohttp import web
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from serve_apps.engine.door import Door, DoorAddress
from serve_apps.engine.fake.knobs import Knobs, parse_command
from serve_apps.engine.fake.server import FakeServer
from serve_apps.engine.spec import HOST
from serve_apps.router.connections import Connections, guarded
from serve_apps.router.deployment import Router
from serve_apps.router.passage import Items, request_bytes
from serve_apps.router.proxy import ReadGuard

MODEL = "served"
APP = "engine-v1"
KEY = "a-key-of-the-fuzz-and-of-nothing-else"
MAX_MODEL_LEN = 64
"""Tokens of a request with its answer: a client that wants all it can get is answered soon."""
MAX_BODY_BYTES, MAX_HEADER_BYTES = 20_000, 2_000
ROUTER_STREAMS = 4
"""Few, so that places which are not given back are soon missed."""
_ARGUMENTS = ("serve", "target", "--served-model-name", MODEL, "--max-model-len")
_NO_TIME = Knobs(step_s=0, step_per_draft_s=0, step_per_stream_s=0, prefill_per_token_s=0)
_START_TIMEOUT_S = 20.0
_IDLE_TIMEOUT_S = 5.0

_T = TypeVar("_T")


class _Handle:
    """The engine application's handle; its way is the door's, too."""

    def __init__(self, door: DoorAddress) -> None:
        self._door = door

    def options(self, **_: object) -> _Handle:
        return self

    def remote(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Items:
        return Items(self._door, APP, request_bytes(method, target, headers, body))


class Site:
    """A running router with one engine; clients need ``KEY``.

    Args:
        loop: What all of it runs in.
        router: It.
        routed: Its address.
        direct: The engine's own.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, router: Router, *, routed: str, direct: str
    ) -> None:
        self.router, self.routed, self.direct = router, routed, direct
        self._loop = loop

    def last_record(self) -> dict[str, Any] | None:
        """Return the record of the completion that ended last, once none is under way.

        Raises:
            TimeoutError: One is still under way.
        """
        return asyncio.run_coroutine_threadsafe(self._settled(), self._loop).result()

    async def _settled(self) -> dict[str, Any] | None:
        async with asyncio.timeout(_IDLE_TIMEOUT_S):
            while any(each["under_way"] for each in self.router.counts().values()):
                await asyncio.sleep(0)
        last = self.router.requests(0)["last"]
        records = self.router.requests(last - 1)["records"] if last else []
        return dict(records[-1]) if records else None


@contextmanager
def serving() -> Iterator[Site]:
    """Run a site until the block ends.

    Raises:
        TimeoutError: It did not come up.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="router site", daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(_START_TIMEOUT_S)

    with tempfile.TemporaryDirectory(prefix="specpilot-fuzz-") as folder:
        site = _site(Path(folder), loop)
        try:
            found = run(site.__aenter__())
            try:
                yield found
            finally:
                run(site.__aexit__(None, None, None))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


@asynccontextmanager
async def _site(folder: Path, loop: asyncio.AbstractEventLoop) -> AsyncIterator[Site]:
    arguments = parse_command([*_ARGUMENTS, str(MAX_MODEL_LEN)])
    runner = web.AppRunner(
        FakeServer(arguments, _NO_TIME).app(), handler_cancellation=True, access_log=None
    )
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    port = runner.addresses[0][1]
    door = Door(port, str(folder), limit=64, is_alive=lambda: True)
    address = await door.address(None)
    router = _router(folder, address)
    server = uvicorn.Server(_config(router))
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    routed = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Site(loop, router, routed=f"http://{HOST}:{routed}", direct=f"http://{HOST}:{port}")
    finally:
        server.should_exit = True
        await serving
        door.close()
        await runner.cleanup()
        looks = asyncio.all_tasks() - {asyncio.current_task()}  # for doors, between two of them
        for each in looks:
            each.cancel()
        await asyncio.gather(*looks, return_exceptions=True)


def _router(folder: Path, address: DoorAddress) -> Router:
    keys = folder / "keys"
    keys.write_text(f"{KEY}\n", encoding="utf-8")

    async def find_door(_: Any) -> DoorAddress:
        return address

    router = Router(10.0, lambda _: _Handle(address), find_door)  # type: ignore[arg-type,return-value]  # no Serve here
    limits = {
        "max_body_bytes": MAX_BODY_BYTES,
        "max_header_bytes": MAX_HEADER_BYTES,
        "max_streams": ROUTER_STREAMS,
    }
    router.reconfigure({"weights": {APP: 1.0}, "limits": limits, "api_keys": f"file:{keys}"})
    return router


def _config(router: Router) -> uvicorn.Config:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await router(Request(scope, receive))
        await response(scope, receive, send)

    return uvicorn.Config(
        ReadGuard(app), host=HOST, port=0, lifespan="off", log_config=None, access_log=False,
        http=guarded(Connections(64)),
    )  # fmt: skip
