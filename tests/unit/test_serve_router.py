from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from serve_apps.apps import ROUTER_PROTOCOL, router, router_entry
from serve_apps.router.limits import MAX_CLIENT_STREAMS
from serve_apps.router.policy import (
    Refusal,
    checked_weights,
    error_body,
    order,
    refusal,
    upstream_headers,
    without_boot_names,
)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/health"),
    ],
)
def test_refusal_of_a_client_route_is_none(method: str, path: str) -> None:
    assert refusal(method, path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/server_info",
        "/metrics",
        "/reset_prefix_cache",
        "/v1/completions/../../metrics",
        "/",
        "/v1",
    ],
)
def test_refusal_of_anything_else_is_404(path: str) -> None:
    for method in ("GET", "POST"):
        found = refusal(method, path)
        assert found is not None
        assert found[0] == 404


def test_refusal_of_another_method_is_405() -> None:
    found = refusal("DELETE", "/v1/models")
    assert found is not None
    assert found[0] == 405


@pytest.mark.parametrize(("path", "allowed"), [("/v1/models", "GET"), ("/tokenize", "POST")])
def test_refusal_of_another_method_names_the_right_one(path: str, allowed: str) -> None:
    found = refusal("PATCH", path)
    assert found is not None
    assert found.headers == {"Allow": allowed}


def test_order_follows_the_weights_and_keeps_the_others_in_reserve() -> None:
    source = random.Random(1)
    drawn = [order({"a": 3.0, "b": 1.0, "off": 0.0}, None, source) for _ in range(2000)]
    assert all(sorted(each) == ["a", "b"] for each in drawn)
    assert 0.70 < Counter(each[0] for each in drawn)["a"] / 2000 < 0.80


def test_order_pinned_goes_there_or_nowhere() -> None:
    assert order({"a": 1.0}, "off", random.Random(1)) == ["off"]


def test_order_without_weights_is_empty() -> None:
    assert order({}, None, random.Random(1)) == []


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_weights_below_zero_or_nan_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match=r"weights\.a"):
        checked_weights({"a": weight})


def test_upstream_headers_keep_credentials_at_the_router() -> None:
    headers = {
        "authorization": "Bearer x",
        "x-specpilot-app": "a",
        "x-specpilot-token": "t",
        "content-type": "text/plain",
    }
    assert upstream_headers(headers) == {"content-type": "text/plain"}


def test_upstream_headers_name_no_coding_of_a_body_that_was_read_as_it_is() -> None:
    assert upstream_headers({"content-encoding": "deflate", "x-a": "b"}) == {"x-a": "b"}


def test_models_answer_hides_the_boots_names() -> None:
    body = {"object": "list", "data": [{"id": "m"}, {"id": "specpilot-boot-1"}]}
    assert json.loads(without_boot_names(json.dumps(body).encode()))["data"] == [{"id": "m"}]


def test_error_has_openais_shape() -> None:
    assert error_body(Refusal(503, "x"))["error"] == {
        "message": "x",
        "type": "service_unavailable_error",
        "param": None,
        "code": 503,
    }


def test_router_is_one_replica_that_lets_in_more_than_its_limit() -> None:
    args = router_entry("production", {})["args"]
    deployment = router(args)._bound_deployment
    assert deployment.num_replicas == 1
    assert deployment.max_ongoing_requests > MAX_CLIENT_STREAMS
    with pytest.raises(TypeError, match="num_replicas"):
        router({**args, "num_replicas": 2})


def test_declared_router_differs_from_one_of_another_protocol_so_that_serve_restarts_it() -> None:
    entry = router_entry("production", {"v1": 1.0}, args={"assign_timeout_s": 3.0})
    assert entry["args"] == {"protocol": ROUTER_PROTOCOL, "assign_timeout_s": 3.0}


@pytest.mark.parametrize("other", [{}, {"protocol": ROUTER_PROTOCOL + 1}])
def test_router_that_another_version_declares_is_refused_in_words(other: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="install the same specpilot"):
        router(other)
