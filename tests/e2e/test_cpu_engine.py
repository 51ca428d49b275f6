"""One boot of the real engine on the CPU: V2, DFlash2, probabilistic drafts, block verification."""

import json
from collections.abc import Iterator

import pytest
from cpu_engine import NEEDS_ENGINE, TARGET, Engine, booted

pytestmark = NEEDS_ENGINE


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    if request.param == "float32":
        yield request.getfixturevalue("speculating_engine")
        return
    with booted(tmp_path_factory.mktemp("engine"), dtype=str(request.param)) as started:
        yield started


def test_engine_runs_v2_and_drafts(engine: Engine) -> None:
    before = engine.counter("vllm:spec_decode_num_drafts_total")
    answer = engine.complete(
        prompt="def parse(line):\n", max_tokens=48, temperature=1.0, seed=3, ignore_eos=True
    )
    assert answer["usage"]["completion_tokens"] == 48
    drafts = engine.counter("vllm:spec_decode_num_drafts_total") - before
    assert 6 <= drafts <= 48
    assert engine.counter("vllm:spec_decode_num_accepted_tokens_total") > 0
    log = engine.log.read_text()
    assert "Using V2 Model Runner" in log
    assert "interpreted serially" not in log
    assert "RuntimeWarning" not in log


def test_seeded_completion_repeats_itself(engine: Engine) -> None:
    body = {"prompt": "class Reader:\n", "max_tokens": 24, "temperature": 1.0, "seed": 11}
    texts = {engine.complete(**body)["choices"][0]["text"] for _ in range(2)}
    assert len(texts) == 1


def test_prompt_logprobs_rank_within_the_vocabulary(engine: Engine) -> None:
    vocabulary = json.loads((TARGET / "config.json").read_text())["vocab_size"]
    answer = engine.complete(
        prompt="import os\n\n\ndef main() -> None:\n    print(os.getcwd())\n",
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=3,
    )
    scored = [entry for entry in answer["choices"][0]["prompt_logprobs"] if entry is not None]
    assert len(scored) > 5
    for entry in scored:
        ranks = sorted(token["rank"] for token in entry.values())
        assert ranks[:3] == [1, 2, 3]
        assert ranks[-1] <= vocabulary
        best = min(entry.values(), key=lambda token: token["rank"])
        assert best["logprob"] == max(token["logprob"] for token in entry.values())
