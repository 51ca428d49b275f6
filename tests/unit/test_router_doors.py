"""Which way a request takes: by Serve's handle or through the engine's door."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from door_scene import CHUNKED, answer_of, framed, in_loop, scene
from router_scene import FakeEngine

from serve_apps.engine.door import DoorAddress
from serve_apps.router.upstream import Engines

ASKED = ("app-v1", "POST", "/v1/completions", {}, b"{}")
GONE = DoorAddress(secret="0" * 64, proof="0" * 64, path="/nowhere/door", host=None, port=0)


def engines_of(engine: FakeEngine, *doors: DoorAddress | Exception) -> Engines:
    left = list(doors)

    async def find_door(handle: Any) -> DoorAddress:
        assert handle is engine
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return Engines(lambda _: engine, 1.0, find_door)  # type: ignore[arg-type,return-value]  # a fake


async def said(engines: Engines) -> bytes:
    answer = await engines.ask(*ASKED)
    return b"".join([chunk async for chunk in answer.chunks()])


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@in_loop
async def test_first_request_goes_by_the_handle_and_the_next_through_the_door() -> None:
    engine = FakeEngine(items=(None, (200, {}), b"by handle"))
    async with scene(answer_of(CHUNKED + framed(b"by door", b""))) as found:
        engines = engines_of(engine, found.address)
        assert await said(engines) == b"by handle"
        await settle()
        assert await said(engines) == b"by door"
        assert len(engine.asked) == 1


@pytest.mark.parametrize("door", [GONE, AttributeError("an engine of an earlier version")])
@in_loop
async def test_engine_whose_door_cannot_be_used_answers_by_its_handle(
    door: DoorAddress | Exception,
) -> None:
    engine = FakeEngine(items=(None, (200, {}), b"by handle"))
    engines = engines_of(engine, door)
    for _ in range(3):
        assert await said(engines) == b"by handle"
        await settle()
    assert len(engine.asked) == 3


@in_loop
async def test_engine_that_is_not_kept_is_asked_by_its_handle_again() -> None:
    engine = FakeEngine(items=(None, (200, {}), b"by handle"))
    async with scene(answer_of(CHUNKED + framed(b"by door", b""))) as found:
        engines = engines_of(engine, found.address)
        await said(engines)
        await settle()
        engines.keep([])
        assert await said(engines) == b"by handle"


@in_loop
async def test_place_that_does_not_come_in_time_is_an_engine_that_is_not_there() -> None:
    engine = FakeEngine()
    held = asyncio.Event()

    async def answering(writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await held.wait()

    async with scene(answering, limit=1) as found:
        engines = engines_of(engine, found.address)
        await said(engines)
        await settle()
        first = await engines.ask(*ASKED)
        engines._assign_timeout_s = 0.05
        with pytest.raises(TimeoutError):
            await engines.ask(*ASKED)
        first.close()
        held.set()
