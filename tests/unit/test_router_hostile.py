"""What clients and engines send that is no JSON or no event stream; the others are served."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_scene import DONE, SSE, FakeEngine, Items, Reply, ask, event, router_of

from serve_apps.engine.errors import EngineNotRunning
from serve_apps.router.policy import without_boot_names

GOOD = {"model": "m", "prompt": "a"}


async def parts_of(*parts: bytes):  # type: ignore[no-untyped-def]  # an asynchronous generator
    for part in parts:
        yield part


def is_served(reply: Reply) -> bool:
    return reply.status == 200 and reply.chunks == [event(text="a"), DONE]


@given(
    parts=st.lists(st.binary(max_size=30) | st.sampled_from([b"{", b"[" * 3000, b'{"a":', b"\xff"]))
)
@settings(max_examples=200)
def test_body_that_is_no_json_object_is_400_and_no_engine_hears_of_it(parts: list[bytes]) -> None:
    try:
        is_object = isinstance(json.loads(b"".join(parts)), dict)
    except (ValueError, RecursionError):
        is_object = False
    engine = FakeEngine()
    router = router_of({"v1": engine})

    async def run() -> tuple[Reply, Reply]:
        return await ask(router, parts=parts_of(*parts)), await ask(router, GOOD)

    hostile, honest = asyncio.run(run())
    assert hostile.status == (200 if is_object else 400)
    assert len(engine.asked) == 1 + is_object
    assert is_served(honest)


@given(chunks=st.lists(st.binary(min_size=1, max_size=60), max_size=8))
@settings(max_examples=200)
def test_chunks_of_an_engine_that_are_no_events_pass_as_they_are(chunks: list[bytes]) -> None:
    broken = FakeEngine(items=(None, (200, SSE), *chunks))
    router = router_of({"v1": broken})

    async def run() -> Reply:
        return await ask(router, GOOD)

    reply = asyncio.run(run())
    assert (reply.status, reply.chunks) == (200, chunks)
    (record,) = router.requests(0)["records"]
    assert record["output_tokens_from"] in ("usage", "chunks")
    json.dumps(router.requests(0))


@pytest.mark.parametrize(
    "items",
    [
        (None, (200, SSE), b"data: {", EngineNotRunning("b", "gone")),
        (None, (200, SSE), b'data: {"usage": {"completion_tokens": "9"}}\n\n', DONE),
        (None, (200, SSE), b'data: {"usage": [1]}\n\n', b'data: {"usage": {}}\n\n', DONE),
        (None, (200, SSE), b"data: " + b"[" * 100_000 + b"\n\n", DONE),
        (None, (200, SSE), b"\xff\xfe\x00" * 50_000),
        (None, (200, SSE)),
    ],
)
def test_engine_that_breaks_its_stream_holds_no_place(items: Items) -> None:
    router = router_of({"v1": FakeEngine(items=items)}, limits={"max_streams": 1})

    async def run() -> list[Reply]:
        replies = []
        for _ in range(3):
            try:
                replies.append(await ask(router, GOOD))
            except EngineNotRunning:  # Serve's to cut the connection for
                replies.append(Reply(status=200))
        return replies

    assert [reply.status for reply in asyncio.run(run())] == [200, 200, 200]


BROKEN = [
    *(b"", b"{", b"[]", b"null", b"\xff", b'{"data": 1}', b'{"data": [1]}', b'{"data": [{}]}'),
    *(b'{"data": null}', b"[" * 100_000, b'{"data": [{"id": {"a": 1}, "id2": 2}'),
]


@pytest.mark.parametrize("body", BROKEN)
def test_models_of_an_engine_that_are_no_list_are_503(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"no list of models|Expecting|decode|delimiter"):
        without_boot_names(body)
    router = router_of({"v1": FakeEngine(items=(None, (200, {}), body))})

    reply = asyncio.run(ask(router, path="/v1/models"))

    assert reply.status == 503
    assert reply.error["message"] == "v1 gave no list of models"


async def dripping(may_end: asyncio.Event):  # type: ignore[no-untyped-def]  # an asynchronous generator
    yield b"{"
    await may_end.wait()
    yield b"}"


@pytest.mark.parametrize("patience_s", [0.05, 60.0])
def test_place_of_a_client_that_drips_goes_to_one_that_asks(
    patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_apps.router.limits.PATIENCE_S", patience_s)
    monkeypatch.setattr("serve_apps.router.deployment.PLACE_WITHIN_S", 10.0)
    limits = {"max_streams": 3, "body_timeout_s": 30.0}

    async def run() -> tuple[list[Reply], list[Reply]]:
        router, may_end = router_of({"v1": FakeEngine()}, limits=limits), asyncio.Event()
        drips = [
            asyncio.create_task(ask(router, parts=dripping(may_end)))
            for _ in range(limits["max_streams"])  # type: ignore[call-overload]  # an int
        ]
        await asyncio.sleep(0.2)
        honest = [await ask(router, GOOD) for _ in range(2)]
        may_end.set()
        return honest, await asyncio.gather(*drips)

    honest, drips = asyncio.run(run())
    is_patient = patience_s > 1
    assert [reply.status for reply in honest] == ([503, 503] if is_patient else [200, 200])
    ended = [reply.status for reply in drips].count(408)
    assert ended == (0 if is_patient else 1), "the place that it left is free again"


def test_client_that_asks_waits_for_the_place_of_one_that_has_just_begun_to_drip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve_apps.router.limits.PATIENCE_S", 0.3)

    async def run() -> tuple[list[Reply], list[Reply]]:
        router, may_end = (
            router_of({"v1": FakeEngine()}, limits={"max_streams": 2}),
            asyncio.Event(),
        )
        drips = [asyncio.create_task(ask(router, parts=dripping(may_end))) for _ in range(2)]
        await asyncio.sleep(0)
        honest = await asyncio.gather(*(ask(router, GOOD) for _ in range(2)))
        may_end.set()
        return honest, await asyncio.gather(*drips)

    honest, drips = asyncio.run(run())
    assert [reply.status for reply in honest] == [200, 200]
    assert 408 in [reply.status for reply in drips]
