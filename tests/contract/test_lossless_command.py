"""``lossless`` as people run it, against servers whose distributions are known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.fakes.openai import SseServer, serving
from orchestrator.fakes.openai.markov import MarkovSettings, markov_server
from orchestrator.load.scoring import PROBE
from serve_apps.engine.sockets import free_port

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def control() -> Iterator[SseServer]:
    with serving(markov_server()) as server:
        yield server


@pytest.fixture
def cold() -> Iterator[SseServer]:
    """Return a server that samples at 0.9 of the temperature that it is asked for."""
    with serving(markov_server(MarkovSettings(temperature_factor=0.9))) as server:
        yield server


@pytest.fixture
def asked(workload_file: Path) -> list[str]:
    """Return what keeps a test short."""
    return [
        *("lossless", "--workload", str(workload_file), "--max-tokens", "50", "--seed", "7"),
        *("--tokens", "1600", "--concurrency", "8"),
    ]


def record_of(capsys: Capture, *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main([*arguments, "--json"])
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, record


def test_command_rejects_with_status_1_and_says_what_moved(
    control: SseServer, cold: SseServer, asked: list[str], capsys: Capture
) -> None:
    status = main([*asked, "--url", f"{cold.url}/v1", "--control-url", f"{control.url}/v1"])

    output = capsys.readouterr()
    assert status == 1
    last = output.out.splitlines()[-1]
    assert last.startswith("Rejected after ")
    assert "probability" in last
    assert f"control           {control.url}, model markov" in output.out.splitlines()
    assert output.err.startswith("arm: 400 tokens, p = ")
    assert "error" not in output.err


def test_command_that_needs_more_tokens_has_status_3_and_says_how_many(
    control: SseServer, asked: list[str], capsys: Capture
) -> None:
    status = main([*asked, "--url", control.url])

    lines = capsys.readouterr().out.splitlines()
    assert status == 3
    assert lines[-1].startswith("Cannot tell after 1,600 tokens")
    assert "tokens more" in lines[-1]
    assert any(line.startswith("note: the arm scores its own tokens") for line in lines)


def test_command_passes_with_status_0(
    control: SseServer, asked: list[str], capsys: Capture
) -> None:
    status = main([*asked, "--url", control.url, "--displacement", "0.15"])

    assert status == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Passed after ")


def test_record_has_the_documented_keys_and_counts(
    control: SseServer, asked: list[str], capsys: Capture
) -> None:
    status, record = record_of(
        capsys, *asked, "--url", control.url, "--control-url", control.url,
        "--control-samples", "400",
    )  # fmt: skip

    assert status == 3
    assert record.keys() == {
        *("schema", "rule", "arm", "control", "workload", "sampling", "token_budget", "settings"),
        "outcome",
    }
    assert (record["schema"], record["rule"]) == ("specpilot.lossless/1", "text")
    assert record["arm"] == {"url": control.url, "model": "markov", "builds": ["markov-1"]}
    assert record["sampling"] == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "ignore_eos": True,
        "max_tokens": 50,
        "seed": 7,
    }
    outcome = record["outcome"]
    assert outcome.keys() == {
        *("result", "control", "looks", "num_top", "num_requests", "num_cut", "num_impossible"),
        *("refused", "remarks"),
    }
    assert outcome["result"]["num_tokens"] == 1_600 == 50 * outcome["num_requests"]
    assert set(outcome["result"]["num_observations"].values()) == {1_600}
    assert outcome["control"]["result"]["num_tokens"] == 400
    assert outcome["looks"][-1]["p_value"] == outcome["result"]["p_value"]
    assert record["settings"]["floor"] == 0.0


def test_greedy_rule_compares_with_the_control(
    control: SseServer, asked: list[str], capsys: Capture
) -> None:
    with serving(markov_server(MarkovSettings(displaced=0.05))) as arm:
        status, record = record_of(
            capsys, *asked, "--url", arm.url, "--control-url", control.url, "--temperature", "0"
        )

    assert (status, record["rule"]) == (1, "greedy")
    assert record["outcome"]["result"]["control"]["num_disagreements"] == 0
    assert record["outcome"]["result"]["arm"]["num_disagreements"] > 10
    assert record["settings"].keys() == {"margin", "tolerance", "confidence"}


def test_seed_is_new_each_time_and_told(
    control: SseServer, asked: list[str], capsys: Capture
) -> None:
    unseeded = [part for part in asked if part not in ("--seed", "7")]
    seeds = {
        record_of(capsys, *unseeded, "--url", control.url, "--tokens", "50")[1]["sampling"]["seed"]
        for _ in range(2)
    }

    assert len(seeds) == 2


def test_prompts_that_are_refused_are_told(
    control: SseServer, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "mixed.jsonl"
    long = "word " * 2_000
    lines = [{"id": "short", "prompt": "a b"}, {"id": "long", "prompt": long}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    main(["lossless", "--url", control.url, "--workload", str(path), "--tokens", "500"])

    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: pro")]
    assert len(notes) == 1
    assert "long (the arm: HTTP 400: This model's maximum context length" in notes[0]


BAD = {
    "--tokens": ["--tokens", "0"],
    "--control-samples": ["--control-samples", "10"],
    "--max-tokens": ["--max-tokens", "0"],
    "--concurrency": ["--concurrency", "0"],
    "--score-concurrency": ["--score-concurrency", "-1"],
    "--prompt-logprobs": ["--prompt-logprobs", "0"],
    "--timeout": ["--timeout", "nan"],
    "--alpha": ["--alpha", "1"],
    "--displacement": ["--displacement", "0"],
    "--tolerance": ["--tolerance", "2"],
    "--workload": ["--workload", "tools"],
    "--model": ["--model", "other"],
    "--control-url": ["--temperature", "0"],
    "--api-key-env": ["--api-key-env", "SURELY_NOT_SET"],
}


@pytest.mark.parametrize("option", BAD)
def test_bad_argument_is_status_2_and_one_line_that_names_it(
    option: str, control: SseServer, asked: list[str], capsys: Capture
) -> None:
    status = main([*asked, "--url", control.url, *BAD[option]])

    output = capsys.readouterr()
    assert status == 2
    assert output.out == ""
    assert output.err.startswith(f"error: {option}: ")
    assert output.err.count("\n") == 1


def test_server_that_is_not_there_is_status_2(asked: list[str], capsys: Capture) -> None:
    status = main([*asked, "--url", f"http://127.0.0.1:{free_port()}"])

    assert status == 2
    assert capsys.readouterr().err.startswith("error: --url: ")


def test_control_that_cannot_score_is_status_2_before_any_token(
    control: SseServer, asked: list[str], capsys: Capture
) -> None:
    mute = MarkovSettings(garble=lambda body: body["choices"][0].pop("prompt_logprobs"))
    with serving(markov_server(mute)) as scorer:
        status = main([*asked, "--url", control.url, "--control-url", scorer.url])

    error = capsys.readouterr().err
    assert status == 2
    assert error.startswith("error: --control-url: cannot score tokens: the control: no prompt_log")
    assert error.count("\n") == 1
    assert control.num_requests == 0


def test_control_that_contradicts_itself_is_no_verdict(
    control: SseServer, asked: list[str], capsys: Capture
) -> None:
    def garble(body: dict[str, Any]) -> None:
        rows = body["choices"][0]["prompt_logprobs"] or ()
        if len(rows) > len(PROBE):
            for item in rows[-1].values():
                item["rank"] = 9_000

    with serving(markov_server(MarkovSettings(garble=garble))) as scorer:
        status = main([*asked, "--url", control.url, "--control-url", scorer.url])

    output = capsys.readouterr()
    assert status == 1
    assert output.out == ""
    assert output.err.startswith("error: the control: of token ")
    assert output.err.count("\n") == 1


def test_keys_are_sent_to_their_own_servers_and_shown_nowhere(
    asked: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARM_KEY", "sk-arm-planted-0123")
    monkeypatch.setenv("CONTROL_KEY", "sk-control-planted-0123")
    arm, control = markov_server(), markov_server()
    arm.keeps_requests = control.keeps_requests = True
    with serving(arm), serving(control):
        main(
            [
                *(*asked, "--url", arm.url, "--control-url", control.url, "--tokens", "100"),
                *("--api-key-env", "ARM_KEY", "--control-api-key-env", "CONTROL_KEY", "--json"),
            ]
        )

    output = capsys.readouterr()
    assert {h["Authorization"] for h in arm.headers} == {"Bearer sk-arm-planted-0123"}
    assert {h["Authorization"] for h in control.headers} == {"Bearer sk-control-planted-0123"}
    assert "planted" not in output.out + output.err
