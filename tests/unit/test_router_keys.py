"""API keys of the router, and who may pin an engine."""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from pathlib import Path

import pytest
from router_scene import FakeEngine, Reply, ask, router_of

from serve_apps.router.deployment import Router
from serve_apps.router.keys import REREAD_S, KeyRing, KeysError, bearer

KEY = "sk-0123456789abcdef"
OTHER = "sk-fedcba9876543210"
BODY = {"prompt": "one"}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# who\n{KEY}  # a laptop\n\n{OTHER}\n")
    return path


def guarded(keys_file: Path, engine: FakeEngine | None = None) -> Router:
    return router_of({"v1": engine or FakeEngine()}, api_keys=f"file:{keys_file}")


def asked(router: Router, headers: dict[str, str], *, path: str = "/v1/completions") -> Reply:
    return asyncio.run(ask(router, BODY, headers=headers, path=path))


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_client_with_a_key_is_served_and_the_engine_never_sees_it(
    keys_file: Path, key: str
) -> None:
    engine = FakeEngine()
    reply = asked(guarded(keys_file, engine), {"Authorization": f"bearer {key}"})

    assert reply.status == 200
    assert "authorization" not in engine.asked[0][2]


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "Bearer",
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        "Bearer # who",
        "Bearer \xe4",
    ],
)
def test_client_without_a_key_gets_401_in_openai_shape_and_no_engine(
    keys_file: Path, shown: str | None
) -> None:
    engine = FakeEngine()
    reply = asked(guarded(keys_file, engine), {} if shown is None else {"authorization": shown})

    assert reply.status == 401
    assert reply.headers["www-authenticate"].startswith('Bearer realm="specpilot"')
    assert (reply.error["type"], reply.error["code"]) == (
        "invalid_request_error",
        "invalid_api_key",
    )
    assert KEY[:8] not in str(reply.error)
    assert engine.asked == []


def test_wrong_key_is_told_apart_from_a_missing_one(keys_file: Path) -> None:
    router = guarded(keys_file)
    wrong = asked(router, {"authorization": "Bearer nonsense"})
    missing = asked(router, {})

    assert wrong.headers["www-authenticate"].endswith('error="invalid_token"')
    assert "error=" not in missing.headers["www-authenticate"]


def test_health_is_open_and_cannot_be_pinned_by_a_client(keys_file: Path) -> None:
    v1, v2 = FakeEngine(), FakeEngine()
    router = router_of({"v1": v1, "v2": v2}, api_keys=f"file:{keys_file}")
    router.reconfigure({"weights": {"v1": 1.0, "v2": 0.0}, "api_keys": f"file:{keys_file}"})

    reply = asyncio.run(ask(router, path="/health", headers={"x-specpilot-app": "v2"}))

    assert reply.status == 200
    assert (len(v1.asked), len(v2.asked)) == (1, 0)


def test_pin_is_refused_to_a_client_even_with_a_key(keys_file: Path) -> None:
    engine = FakeEngine()
    router = guarded(keys_file, engine)
    headers = {"authorization": f"Bearer {KEY}", "x-specpilot-app": "v1"}

    assert asked(router, headers).status == 403
    assert asked(router, {**headers, "x-specpilot-token": "guess"}).status == 403
    assert asked(router, {"x-specpilot-app": "v1"}).status == 401
    assert engine.asked == []
    assert router.counts() == {}


def test_own_requests_need_no_key_and_are_counted_nowhere(keys_file: Path) -> None:
    engine = FakeEngine()
    router = guarded(keys_file, engine)
    own = {"x-specpilot-token": router.own_token(), "x-specpilot-app": "v1"}

    assert asked(router, own).status == 200
    assert asked(router, {"x-specpilot-token": router.own_token()}).status == 200
    assert "x-specpilot-token" not in engine.asked[0][2]
    assert router.counts()["v1"] == {"answered": 0, "failed": 0, "under_way": 0}
    assert router.requests(0)["records"] == []


def test_own_token_is_another_one_in_each_process() -> None:
    assert Router(1.0).own_token() != Router(1.0).own_token()


def test_pin_without_keys_reaches_an_engine_of_the_router_and_no_other() -> None:
    engines = {name: FakeEngine() for name in ("v1", "v2", "trial")}
    router = router_of({}, engines.__getitem__)
    router.reconfigure({"weights": {"v1": 1.0, "v2": 0.0}})

    assert asked(router, {"x-specpilot-app": "v2"}).status == 200
    refused = asked(router, {"x-specpilot-app": "trial"})
    assert (refused.status, refused.error["type"]) == (404, "invalid_request_error")
    assert [len(engine.asked) for engine in engines.values()] == [0, 1, 0]


def test_own_pin_reaches_an_engine_without_a_weight() -> None:
    engines = {name: FakeEngine() for name in ("v1", "v2")}
    router = router_of({}, engines.__getitem__)
    router.reconfigure({"weights": {"v1": 1.0}})

    own = {"x-specpilot-token": router.own_token(), "x-specpilot-app": "v2"}
    assert asked(router, own).status == 200
    assert [len(engine.asked) for engine in engines.values()] == [0, 1]


def test_keys_that_cannot_be_read_refuse_everybody_but_health(tmp_path: Path) -> None:
    router = guarded(tmp_path / "none")
    own = {"x-specpilot-token": router.own_token()}

    reply = asked(router, {"authorization": f"Bearer {KEY}"})

    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    assert asked(router, own).status == 503, "so that no promotion passes a route that serves none"
    assert asyncio.run(ask(router, path="/health")).status == 200


def test_keys_stay_with_other_weights_and_go_with_another_source(keys_file: Path) -> None:
    router = guarded(keys_file)
    router.reconfigure({"weights": {"v1": 0.5}, "api_keys": f"file:{keys_file}"})
    assert asked(router, {}).status == 401
    router.reconfigure({"weights": {"v1": 0.5}, "api_keys": "open"})
    assert asked(router, {}).status == 200


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_file_that_changes_is_read_again_within_seconds(keys_file: Path) -> None:
    clock = Clock()
    ring = KeyRing(f"file:{keys_file}", clock=clock)
    assert ring.holds(KEY)

    keys_file.write_text("another-key-that-is-long-enough\n")
    os.utime(keys_file, ns=(1, 1))
    assert ring.holds(KEY), "it is not looked at for every request"
    clock.now_s += REREAD_S
    assert not ring.holds(KEY)
    assert ring.holds("another-key-that-is-long-enough")

    aside = keys_file.rename(keys_file.with_suffix(".aside"))
    clock.now_s += REREAD_S
    with pytest.raises(KeysError):
        ring.holds("another-key-that-is-long-enough")

    aside.rename(keys_file)
    clock.now_s += REREAD_S
    assert ring.holds("another-key-that-is-long-enough")


def test_variable_holds_keys_with_commas_or_spaces_between() -> None:
    ring = KeyRing("env:CLIENT_KEYS", environ={"CLIENT_KEYS": f"{KEY}, {OTHER}"})
    assert ring.holds(KEY)
    assert ring.holds(OTHER)
    assert not ring.holds("CLIENT_KEYS")


def test_number_sign_inside_a_key_is_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"#{OTHER}\n{KEY}#tail\t# why\n  # {OTHER}\n")
    ring = KeyRing(f"file:{path}")
    assert ring.holds(f"{KEY}#tail")
    assert not any(ring.holds(key) for key in (KEY, OTHER, f"#{OTHER}"))
    assert KeyRing("env:KEYS", environ={"KEYS": f"{KEY}#tail"}).holds(f"{KEY}#tail")


def test_line_with_two_words_is_refused_by_its_number_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n{OTHER} the-laptop-of-the-lab\n")
    with pytest.raises(KeysError, match="line 2 has more than a key") as found:
        KeyRing(f"file:{path}").holds(KEY)
    assert "laptop" not in str(found.value)
    assert OTHER not in str(found.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "short", "sk-0123456789abcd\xe4f"])
def test_file_without_usable_keys_is_an_error_that_shows_none(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.INFO), pytest.raises(KeysError) as found:
        KeyRing(f"file:{path}").holds("short")
    for shown in (str(found.value), caplog.text):
        assert "short" not in shown
        assert "0123456789" not in shown


def test_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(KeysError, match="UTF-8"):
        KeyRing(f"file:{path}").holds(KEY)


def test_error_of_one_request_is_not_that_of_the_next(tmp_path: Path) -> None:
    ring = KeyRing(f"file:{tmp_path / 'none'}")
    with pytest.raises(KeysError) as first:
        ring.holds(KEY)
    depth = len(list(traceback.walk_tb(first.value.__traceback__)))
    with pytest.raises(KeysError) as second:
        ring.holds(OTHER)

    assert str(first.value) == str(second.value)
    assert first.value is not second.value
    assert len(list(traceback.walk_tb(first.value.__traceback__))) == depth


def test_nothing_logged_holds_a_key(keys_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        asked(guarded(keys_file), {"authorization": f"Bearer {KEY}"})
        asked(guarded(keys_file), {"authorization": "Bearer wrong-wrong-wrong"})
    assert "2 API keys" in caplog.text
    assert KEY not in caplog.text
    assert "wrong-wrong" not in caplog.text


def test_key_itself_as_source_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="not open") as found:
        KeyRing(KEY)
    assert KEY not in str(found.value)


def test_bearer_reads_the_scheme_in_any_case() -> None:
    assert bearer("BEARER  abc ") == "abc"
    assert bearer("Bearer ") is None
    assert bearer("abc") is None
    assert bearer(None) is None
