"""Canaries on servers that can do all, that cannot do some of it, and that are at fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from canary_scene import LIMIT, Capture, Spoil, canary, scholar, server_at

from orchestrator.canaries.run import NAMES, CanarySettings, run_canaries
from orchestrator.cli import main
from orchestrator.core.quality import CanaryFault, CanaryResult
from orchestrator.fakes.openai import Act, Script, SseServer, failure
from orchestrator.fakes.openai.scholar import Said, script_of
from serve_apps.engine.sockets import free_port

KEY = "sk-planted-0123456789"


def ask(fake: SseServer, *names: str, **settings: Any) -> dict[str, CanaryResult]:
    asked = CanarySettings(names=names or NAMES, max_tokens=100, **settings)
    return {result.name: result for result in run_canaries(server_at(fake), asked)}


def always(said: Said) -> Spoil:
    return lambda _script, body: script_of(body, said)


def test_canaries_model_that_can_do_all_passes_all() -> None:
    with scholar() as fake:
        results = ask(fake)

    assert {name: result.passed for name, result in results.items()} == dict.fromkeys(NAMES, True)
    assert {result.fault for result in results.values()} == {None}


def test_canaries_ask_at_temperature_0_with_a_limit_and_booleans() -> None:
    with scholar() as fake:
        ask(fake)

        assert {body["temperature"] for body in fake.bodies} == {0.0}
        assert all(0 < body["max_tokens"] <= 100 for body in fake.bodies)
        thinking = {body["chat_template_kwargs"]["enable_thinking"] for body in fake.bodies}
        assert thinking == {True, False}
        assert {body["stream"] for body in fake.bodies} == {True, False}


def test_long_context_prompt_comes_near_the_limit_and_not_beyond() -> None:
    with scholar() as fake:
        result = ask(fake, "long_context")["long_context"]

        words = [len(body["messages"][0]["content"].split()) for body in fake.bodies]
        assert 0.85 * LIMIT <= words[-1] + fake.bodies[-1]["max_tokens"] <= LIMIT
        assert f"of {LIMIT:,}" in result.reason


def test_long_context_given_a_length_stays_below_the_servers_own() -> None:
    with scholar(limit=4000) as fake:
        assert ask(fake, "long_context", max_model_len=LIMIT)["long_context"].passed

        words = [len(body["messages"][0]["content"].split()) for body in fake.bodies]
        assert max(words) <= LIMIT


def test_long_context_without_a_limit_is_not_applicable() -> None:
    with scholar() as fake:
        fake.engine.settings = fake.engine.settings.__class__(models=("target",))
        result = ask(fake, "long_context")["long_context"]

        assert (result.passed, fake.bodies) == (None, [])
        assert "max_model_len" in result.reason


def test_long_context_that_is_forgotten_fails() -> None:
    with scholar(spoil=always(Said(content="The log does not say."))) as fake:
        result = ask(fake, "long_context")["long_context"]

    assert (result.passed, result.fault) == (False, CanaryFault.WRONG)


TEXT = "The harbour was quiet on that morning, and nobody had come for the crates of copper yet. "


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (Said(content=""), CanaryFault.GARBAGE),
        (Said(content="17 " + "a " * 60), CanaryFault.GARBAGE),
        (Said(content="17 Paris hot " + TEXT * 9), CanaryFault.GARBAGE),
        (Said(content="17 Paris hot\0 and more"), CanaryFault.GARBAGE),
        (Said(content="17 Paris hot \ufffd"), CanaryFault.GARBAGE),
        (Said(content="17 Paris hot and so on", finish="length"), CanaryFault.TRUNCATED),
        (Said(content="I would rather speak of something else."), CanaryFault.WRONG),
    ],
)
def test_chat_canary_of_a_bad_answer_fails_with_its_fault(said: Said, fault: CanaryFault) -> None:
    with scholar(spoil=always(said)) as fake:
        result = ask(fake, "chat")["chat"]

    assert (result.passed, result.fault) == (False, fault)


def test_chat_canary_one_wrong_answer_of_three_passes_and_one_empty_does_not() -> None:
    def spoiled_by(said: Said) -> Spoil:
        def spoil(script: Script, body: Mapping[str, Any]) -> Script:
            is_second = "capital" in body["messages"][0]["content"]
            return script_of(body, said) if is_second else script

        return spoil

    with scholar(spoil=spoiled_by(Said(content="Lyon"))) as fake:
        assert ask(fake, "chat")["chat"].passed is True
    with scholar(spoil=spoiled_by(Said(content=""))) as fake:
        assert ask(fake, "chat")["chat"].passed is False


@pytest.mark.parametrize("name", ["tool_call", "tool_call_stream"])
@pytest.mark.parametrize(
    "calls",
    [
        (),
        (("get_forecast", '{"town": "Bergen", "days": 3'),),
        (("get_forecast", '{"town": "Bergen", "days": "3"}'),),
        (("get_tides", '{"town": "Bergen", "days": 3}'),),
        (("get_forecast", '{"town": "Bergen", "days": 3}'),) * 2,
        (("", '{"town": "Bergen", "days": 3}'),),
    ],
)
def test_tool_canary_of_a_broken_call_fails(name: str, calls: tuple[tuple[str, str], ...]) -> None:
    said = Said(content="" if calls else "I cannot know that.", calls=calls, finish="tool_calls")
    with scholar(spoil=always(said)) as fake:
        result = ask(fake, name)[name]

    assert (result.passed, result.fault) == (False, CanaryFault.WRONG)


def test_tool_canary_lost_piece_of_a_stream_fails_that_one_alone() -> None:
    def spoil(script: Script, body: Mapping[str, Any]) -> Script:
        if body["stream"] and "tools" in body:
            return Script(parts=(*script.parts[:5], *script.parts[6:]))
        return script

    with scholar(spoil=spoil) as fake:
        results = ask(fake, "tool_call", "tool_call_stream")

    assert results["tool_call"].passed is True
    assert results["tool_call_stream"].passed is False


@pytest.mark.parametrize(
    "content",
    [
        "It is red, small and not broken.",
        '{"colour": "red", "size": "small"}',
        '{"colour": "red", "size": "small", "broken": false, "note": ""}',
        '{"colour": "violet", "size": "small", "broken": false}',
        '{"colour": "red", "size": "small", "broken": 1}',
        '```json\n{"colour": "red", "size": "small", "broken": true}\n```',
    ],
)
def test_json_canary_departure_from_the_schema_fails(content: str) -> None:
    with scholar(spoil=always(Said(content=content))) as fake:
        result = ask(fake, "json")["json"]

    assert (result.passed, result.fault) == (False, CanaryFault.WRONG)


def test_reasoning_canary_without_reasoning_fails_and_with_tags_passes() -> None:
    with scholar(thinks=False) as fake:
        assert ask(fake, "reasoning")["reasoning"].passed is False
    tags = Said(content="<think>One after the other.</think> So it is 7, or 15, or 13.")
    with scholar(spoil=always(tags)) as fake:
        assert ask(fake, "reasoning")["reasoning"].passed is True


def test_unicode_canary_broken_character_fails() -> None:
    def spoil(script: Script, body: Mapping[str, Any]) -> Script:
        line = body["messages"][0]["content"].splitlines()[-1]
        broken = line.encode()[:-1].decode(errors="replace")
        return script_of(body, Said(content=broken + " and on"))

    with scholar(spoil=spoil) as fake:
        assert ask(fake, "unicode_stream")["unicode_stream"].passed is False


@pytest.mark.parametrize(
    ("spoiled", "fault"),
    [
        (failure(400, "not here"), CanaryFault.UNSUPPORTED),
        (failure(404, "not here"), CanaryFault.UNSUPPORTED),
        (failure(500, "broken"), CanaryFault.LOST),
        (failure(429, "busy"), CanaryFault.LOST),
        (failure(401, "who are you?"), CanaryFault.LOST),
        (Script(parts=(b"data: {\n\n",)), CanaryFault.LOST),
        (Script(parts=(b'data: {"error": {"message": "died"}}\n\n',)), CanaryFault.LOST),
        (Script(parts=(b'data: {"choices": []}\n\n',)), CanaryFault.TRUNCATED),
        (Script(parts=(b"{}",), content_type="application/json"), CanaryFault.LOST),
        (Script(parts=(b"[]",), content_type="application/json"), CanaryFault.LOST),
        (Script(parts=(b"\xff\xfe",), content_type="application/json"), CanaryFault.LOST),
        (Script(parts=(b'{"cho', Act.CLOSE), content_type="application/json"),
         CanaryFault.TRUNCATED),
        (Script(parts=(b'{"cho', Act.RESET), content_type="application/json"), CanaryFault.LOST),
    ],
)  # fmt: skip
def test_canary_without_an_answer_fails_and_says_how(spoiled: Script, fault: CanaryFault) -> None:
    with scholar(spoil=lambda _script, _body: spoiled) as fake:
        result = ask(fake, "chat")["chat"]

        assert (result.passed, result.fault) == (False, fault)
        assert len(fake.bodies) == 1, "a server that refuses is not asked again"


def test_canary_server_that_hangs_is_given_up() -> None:
    hangs = Script(parts=(b"{", Act.HANG), content_type="application/json")
    with scholar(spoil=lambda _script, _body: hangs) as fake:
        (result,) = run_canaries(server_at(fake, timeout_s=0.3), CanarySettings(names=("chat",)))

    assert (result.passed, result.fault) == (False, CanaryFault.LOST)


def test_command_two_able_servers_pass_with_status_0(capsys: Capture) -> None:
    with scholar() as arm, scholar() as control:
        status, record = canary(capsys, arm.url, control.url)

    assert (status, record["gate"]["passed"]) == (0, True)
    assert [item["name"] for item in record["canaries"]] == ["context_length", *NAMES]
    assert all(item["passed"] for item in record["canaries"])


def test_command_arm_that_refuses_what_the_control_takes_fails(capsys: Capture) -> None:
    with scholar(calls_tools=False) as arm, scholar() as control:
        status, record = canary(capsys, arm.url, control.url)

    found = {item["name"]: item["passed"] for item in record["canaries"]}
    assert status == 1
    assert found == dict.fromkeys(found, True) | {"tool_call": False, "tool_call_stream": False}


def test_command_what_both_lack_says_nothing_and_the_rest_passes(capsys: Capture) -> None:
    lacks: dict[str, Any] = {"calls_tools": False, "takes_images": False, "thinks": False}
    with scholar(**lacks) as arm, scholar(**lacks) as control:
        status, record = canary(capsys, arm.url, control.url)

    silent = [item["name"] for item in record["canaries"] if item["passed"] is None]
    assert status == 0
    assert silent == ["tool_call", "tool_call_stream", "reasoning", "image"]
    assert all(name in record["gate"]["reason"] for name in silent)


def test_command_both_answer_garbage_is_never_a_pass(capsys: Capture) -> None:
    loops = always(Said(content="a " * 80))
    with scholar(spoil=loops) as arm, scholar(spoil=loops) as control:
        status, record = canary(capsys, arm.url, control.url, "--canaries", "chat,json")

    asked = [item for item in record["canaries"] if item["name"] != "context_length"]
    assert {item["passed"] for item in asked} == {None}
    assert (status, record["gate"]["passed"]) == (3, None)


def test_command_shorter_context_than_the_controls_fails_and_both_are_asked_alike(
    capsys: Capture,
) -> None:
    with scholar(limit=600) as arm, scholar(limit=LIMIT) as control:
        status, record = canary(capsys, arm.url, control.url, "--canaries", "long_context")

        assert [body["messages"] for body in arm.bodies] == [
            body["messages"] for body in control.bodies
        ]
    found = {item["name"]: item["passed"] for item in record["canaries"]}
    assert status == 1
    assert found == {"context_length": False, "long_context": True}


def test_command_prints_a_table_and_the_gate(capsys: Capture) -> None:
    with scholar(calls_tools=False) as arm, scholar() as control:
        status = main(["canary", "--url", arm.url, "--control-url", control.url])

    out, told = capsys.readouterr()
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert status == 1
    assert rows["chat"].split()[1:3] == ["passed", "passed"]
    assert rows["tool_call"].split()[1:3] == ["failed", "passed"]
    assert "FAILED" in rows["canaries:"]
    assert "control chat: passed" in told


def test_command_key_goes_to_its_server_and_is_never_shown(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARM_KEY", KEY)

    def repeats(_script: Script, _body: Mapping[str, Any]) -> Script:
        return failure(401, f"the key {KEY} is wrong")

    with scholar(spoil=repeats) as arm, scholar() as control:
        arguments = ("--canaries", "chat", "--api-key-env", "ARM_KEY")
        main(["canary", "--url", arm.url, "--control-url", control.url, *arguments])

        assert {head["Authorization"] for head in arm.headers} == {f"Bearer {KEY}"}
        assert all("Authorization" not in head for head in control.headers)
    shown = capsys.readouterr()
    assert KEY not in shown.out + shown.err


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["--canaries", "chat,song"], "--canaries"),
        (["--canaries", ","], "--canaries"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--timeout", "0"], "--timeout"),
        (["--model", "other"], "--model"),
        (["--control-model", "other"], "--control-model"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "--api-key-env"),
        (["--tasks", "poetry"], "--tasks"),
        (["--tasks", "arithmetic,arithmetic"], "--tasks"),
        (["--tokenizer", "/no/such/folder"], "--tokenizer"),
        (["--items", "0"], "--items"),
        (["--concurrency", "0"], "--concurrency"),
        (["--points", "0"], "--points"),
        (["--confidence", "1"], "--confidence"),
        (["--normal", "arithmetic=0.8"], "--normal"),
        (["--tasks", "arithmetic", "--normal", "arithmetic=82"], "--normal"),
    ],
)
def test_command_bad_input_is_named_and_nothing_is_asked(
    capsys: Capture, arguments: list[str], where: str
) -> None:
    with scholar() as arm, scholar() as control:
        status = main(["canary", "--url", arm.url, "--control-url", control.url, *arguments])

        assert arm.bodies == control.bodies == []
    assert status == 2
    assert capsys.readouterr().err.startswith(f"error: {where}:")


def test_command_no_server_or_the_arm_twice_is_bad_input(capsys: Capture) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with scholar() as arm:
        assert main(["canary", "--url", arm.url, "--control-url", nobody]) == 2
        assert "--control-url" in capsys.readouterr().err
        assert main(["canary", "--url", arm.url, "--control-url", f"{arm.url}/v1"]) == 2
        assert "the arm itself" in capsys.readouterr().err


def test_record_is_json_without_numbers_that_are_none(capsys: Capture) -> None:
    with scholar() as arm, scholar() as control:
        main(["canary", "--url", arm.url, "--control-url", control.url, "--json"])

    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail)["schema"] == "specpilot.canary/1"
