"""docs/router.openapi.json beside what the router does."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping

import pytest
from router_scene import FakeEngine, Reply, ask, router_of

from infra.fuzz.router_app import SPEC
from serve_apps.engine.errors import EngineError
from serve_apps.router.policy import error_body, refusal

PATHS = json.loads(SPEC.read_text(encoding="utf-8"))["paths"]
JSON = {"content-type": "application/json"}


def test_spec_has_what_passes_and_nothing_else() -> None:
    others = ["/", "/metrics", "/server_info", "/v1/chat", "/reset_prefix_cache", "/openapi.json"]
    for path, method in itertools.product([*PATHS, *others], ["get", "post", "put", "delete"]):
        assert (refusal(method.upper(), path) is None) == (method in PATHS.get(path, {}))


def test_refusal_is_printable_whatever_the_path() -> None:
    for path in ("/a\u2028b", "/\ud800", "/\x1b[2J"):
        found = refusal("GET", path)
        assert found is not None
        assert found.message.isprintable()
        json.dumps(error_body(found), ensure_ascii=False).encode()


def answered(engine: FakeEngine, path: str, headers: Mapping[str, str] | None = None) -> Reply:
    body = {"prompt": "x"} if "completions" in path else None
    return asyncio.run(ask(router_of({"v1": engine}), body, path=path, headers=headers))


@pytest.mark.parametrize(
    "items",
    [
        [b"{"],
        [b"[]"],
        [b'{"data": null}'],
        [b'{"data": [3]}'],
        [b'{"data": [{"id": 3}]}'],
        [b"[" * 100_000],
        [],
        [b'{"data"', EngineError("gone")],
    ],
)
def test_list_of_models_that_is_none_is_no_error_of_the_router(items: list[object]) -> None:
    reply = answered(FakeEngine((None, (200, JSON), *items)), "/v1/models")

    assert reply.status == 503
    assert reply.error["message"] == "v1 gave no list of models"


def test_declared_length_of_thousands_of_digits_is_too_long() -> None:
    engine = FakeEngine()

    assert answered(engine, "/v1/completions", {"content-length": "9" * 5_000}).status == 413
    assert not engine.asked


@pytest.mark.parametrize("host", ["[", "a]b:c", ""])
def test_malformed_host_does_not_matter(host: str) -> None:
    assert answered(FakeEngine(), "/v1/completions", {"host": host}).status == 200
