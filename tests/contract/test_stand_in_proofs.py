"""Losslessness and canaries on the booted stand-in: a right arm passes, a broken one does not."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lossless_contract import LosslessContract, ask, sample
from stand_in import MAX_MODEL_LEN, MODEL, booted

from orchestrator.canaries.check import QualitySettings, check_quality
from orchestrator.canaries.run import NAMES, CanarySettings, run_canaries
from orchestrator.canaries.wire import Server
from orchestrator.core.lossless.greedy import GreedySettings
from orchestrator.core.lossless.judge import LosslessSettings
from orchestrator.core.quality import CanaryFault
from orchestrator.load.scoring import TokenServer
from orchestrator.load.workload import Workload, load_workload
from orchestrator.lossless import FEW_RANKS, run_text_test
from orchestrator.lossless_answers import TextTest
from orchestrator.lossless_greedy import run_greedy_test

BROKEN = {"DISPLACED": "0.05", "ANSWERS": "garbage", "SEED": "7"}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with booted(tmp_path_factory.mktemp("right"), speculates=True) as url:
        yield url


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with booted(tmp_path_factory.mktemp("broken"), speculates=True, knobs=BROKEN) as url:
        yield url


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Boot the broken arm without its speculation, which is what breaks it."""
    with booted(
        tmp_path_factory.mktemp("control"), speculates=False, knobs=BROKEN, max_logprobs=64
    ) as url:
        yield url


def as_arm(url: str) -> TokenServer:
    return TokenServer(base_url=url, model=MODEL, name="the arm")


def as_control(url: str) -> TokenServer:
    return TokenServer(base_url=url, model=MODEL, name="the control")


@pytest.fixture
def workload(workload_file: Path) -> Workload:
    return load_workload(workload_file)


class TestStandIn(LosslessContract):
    @pytest.fixture
    def workload(self, workload_file: Path) -> Workload:
        return load_workload(workload_file)

    @pytest.fixture
    def server(self, right: str) -> TokenServer:
        return as_arm(right)

    def test_server_says_its_context(self, server: TokenServer) -> None:
        assert ask(server, lambda client: client.max_model_len()) == MAX_MODEL_LEN


def text_test(workload: Workload, **changes: Any) -> TextTest:
    asked = {"seed": 3, "token_budget": 6_000, "max_tokens": 100} | changes
    return TextTest(workload=workload, **asked)


def test_text_test_lossless_arm_passes(workload: Workload, right: str, control: str) -> None:
    judging = LosslessSettings(displacement=0.1)

    outcome = run_text_test(
        as_arm(right), as_control(control),
        text_test(workload, control_tokens=500, judging=judging),
    )  # fmt: skip

    assert outcome.result.kind == "passed"
    assert outcome.num_top == 64
    assert FEW_RANKS.format(64) not in outcome.remarks


def test_text_test_displaced_arm_is_rejected(workload: Workload, broken: str, control: str) -> None:
    outcome = run_text_test(as_arm(broken), as_control(control), text_test(workload))

    assert outcome.result.kind == "rejected"
    assert outcome.result.where.startswith("rank_5-16: more than expected")


def test_greedy_rule_tells_the_right_arm_from_the_broken_one(
    workload: Workload, right: str, broken: str, control: str
) -> None:
    test = text_test(workload, token_budget=2_000, max_tokens=50, temperature=0.0)
    settings = GreedySettings(tolerance=0.02)

    passed = run_greedy_test(as_arm(right), as_control(control), test, settings)
    rejected = run_greedy_test(as_arm(broken), as_control(control), test, settings)

    assert passed.result.kind == "passed"
    assert passed.result.arm.num_disagreements == 0
    assert rejected.result.kind == "rejected"


def test_boots_of_one_target_answer_a_seed_alike_and_displace_while_they_speculate(
    right: str, broken: str, control: str
) -> None:
    found = [sample(as_arm(url), seed=5).output_ids for url in (right, control, broken)]

    assert found[0] == found[1] != found[2]


def test_canaries_right_arm_passes_all(right: str) -> None:
    results = run_canaries(Server(base=right, model=MODEL))

    assert {result.name: result.passed for result in results} == dict.fromkeys(NAMES, True)


def test_canaries_garbage_of_an_arm_that_speculates_closes_the_gate(
    right: str, broken: str, control: str
) -> None:
    settings = QualitySettings(canaries=CanarySettings(max_tokens=200))
    arm, beside = Server(base=broken, model=MODEL), Server(base=control, model=MODEL)

    bad = check_quality(arm, beside, settings)
    good = check_quality(Server(base=right, model=MODEL), beside, settings)

    assert bad.gate.passed is False
    assert good.gate.passed is True
    faults = {result.fault for result in run_canaries(arm, settings.canaries)}
    assert faults == {CanaryFault.GARBAGE}


def post(url: str, path: str, **body: Any) -> tuple[int, bytes]:
    request = urllib.request.Request(
        url + path,
        data=json.dumps({"model": MODEL, **body}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def complete(url: str, **body: Any) -> dict[str, Any]:
    status, answer = post(url, "/v1/completions", **body)
    assert status == 200, answer
    found: dict[str, Any] = json.loads(answer)
    return found


def events(url: str, path: str, **body: Any) -> list[dict[str, Any]]:
    status, answer = post(url, path, stream=True, **body)
    assert status == 200, answer
    *told, done = answer.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(each.removeprefix("data: ")) for each in told]


PLAIN: dict[str, Any] = {"prompt": "def f", "max_tokens": 12, "seed": 1, "return_token_ids": True}


def test_ids_as_a_prompt_are_the_text_s_and_continue_it_alike(right: str) -> None:
    text = complete(right, **PLAIN)["choices"][0]
    ids = complete(right, **{**PLAIN, "prompt": text["prompt_token_ids"]})["choices"][0]
    _, told = post(right, "/tokenize", prompt="def f" + text["text"])

    assert ids == text
    assert json.loads(told)["tokens"] == [*text["prompt_token_ids"], *text["token_ids"]]


def test_stream_has_the_whole_answer_s_ids_text_and_logprobs(right: str) -> None:
    asked = {**PLAIN, "logprobs": 2}
    whole = complete(right, **asked)["choices"][0]
    choices = [event["choices"][0] for event in events(right, "/v1/completions", **asked)]

    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [i for choice in choices for i in choice["token_ids"]] == whole["token_ids"]
    assert choices[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    for key, values in whole["logprobs"].items():
        assert [v for choice in choices for v in choice["logprobs"][key]] == values
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]


def test_stream_of_a_chat_has_the_whole_answer_s_text(right: str) -> None:
    for asked in ({"content": "say something"}, {"content": "The capital of France?"}):
        body = {"messages": [{"role": "user", **asked}], "max_tokens": 9, "temperature": 0}
        _, answer = post(right, "/v1/chat/completions", **body)
        whole = json.loads(answer)["choices"][0]
        choices = [each["choices"][0] for each in events(right, "/v1/chat/completions", **body)]

        text = "".join(choice["delta"].get("content", "") for choice in choices)
        assert text == whole["message"]["content"]
        assert choices[-1]["finish_reason"] == whole["finish_reason"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": [1, 128]}, "Token id 128 is out of vocabulary"),
        ({"prompt": [1, -1]}, "Token id -1 is out of vocabulary"),
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [1] * MAX_MODEL_LEN}, f"maximum context length is {MAX_MODEL_LEN} tokens"),
        ({"prompt": [1, 2], "prompt_logprobs": 65}, "prompt logprobs of 65, .* max allowed: 64"),
        ({"prompt": [1, 2], "prompt_logprobs": -1}, "prompt logprobs of 128, .* max allowed: 64"),
        ({"prompt": [1, 2], "logprobs": 65}, "sample logprobs of 65, .* max allowed: 64"),
        ({"prompt": [1, 2], "prompt_logprobs": -2}, "must be a positive value or -1"),
        ({"prompt": [1, 2], "prompt_logprobs": 1, "stream": True}, "not available when `stream"),
        ({"prompt": [1, 2], "prompt_logprobs": "many"}, "bad request"),
        ({}, "bad request"),
    ],
)
def test_request_that_vllm_would_refuse_is_refused(
    control: str, body: dict[str, Any], says: str
) -> None:
    status, answer = post(control, "/v1/completions", **body)

    error = json.loads(answer)["error"]
    assert (status, error["code"], error["type"]) == (400, 400, "BadRequestError")
    with pytest.raises(ValueError, match=says):
        raise ValueError(error["message"])


def test_answer_ends_where_the_context_does(control: str) -> None:
    answer = complete(control, prompt=[1] * (MAX_MODEL_LEN - 5), max_tokens=50)

    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"
