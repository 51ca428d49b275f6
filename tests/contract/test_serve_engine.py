"""What every engine process must do: the stand-in always, the real engine where marked."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import infra.tiny_models
from orchestrator.adapters.serve_engine import facts_from_plain
from serve_apps.engine import procfs
from serve_apps.engine.boot_watch import BootProgress
from serve_apps.engine.errors import BootFailure, EngineBootError, EngineNotRunning
from serve_apps.engine.facts import EngineFacts
from serve_apps.engine.http import HttpError
from serve_apps.engine.spec import BOOT_ID_VARIABLE, CPU_LAUNCHER, FAKE_LAUNCHER, EngineSpec
from serve_apps.engine.supervisor import EngineProcess

_MODELS = Path(infra.tiny_models.__file__).parent
_DEPTH = 4


def _speculation(draft: Path) -> dict[str, Any]:
    return {
        "method": "dflash",
        "model": str(draft),
        "num_speculative_tokens": _DEPTH,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    }


def _fake_spec(logs: Path, **knobs: str) -> EngineSpec:
    return EngineSpec(
        model="/models/target",
        served_model_name="served",
        log_path=str(logs / "{boot_id}.log"),
        launcher=FAKE_LAUNCHER,
        speculative_config=_speculation(Path("/models/draft")),
        args={"max_model_len": 512, "max_num_seqs": 4},
        env={f"SPECPILOT_FAKE_{name}": value for name, value in knobs.items()},
        boot_timeout_s=30.0,
        stop_timeout_s=1.0,
    )


def _real_spec(logs: Path) -> EngineSpec:
    if not (_MODELS / "target" / "config.json").exists():
        pytest.skip("the tiny models are not there: see infra/tiny_models")
    from serve_apps.cpu import environment  # noqa: PLC0415 -- needs the CPU build

    return EngineSpec(
        model=str(_MODELS / "target"),
        served_model_name="served",
        log_path=str(logs / "{boot_id}.log"),
        launcher=CPU_LAUNCHER,
        speculative_config=_speculation(_MODELS / "draft"),
        args={"max_model_len": 512, "max_num_seqs": 4, "enforce_eager": True, "dtype": "float32"},
        env={**environment(), "VLLM_CPU_KVCACHE_SPACE": "1"},
        boot_timeout_s=240.0,
    )


def _members(engine: EngineProcess) -> list[int]:
    return procfs.members(None, f"{BOOT_ID_VARIABLE}={engine.boot_id}")


def _folders(engine: EngineProcess) -> list[Path]:
    """Return the folders of the boot's sockets that are there."""
    return list(Path(tempfile.gettempdir()).glob(f"specpilot-{engine.boot_id}-*"))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(_fake_spec, id="fake"),
        pytest.param(_real_spec, id="real", marks=[pytest.mark.e2e, pytest.mark.timeout(300)]),
    ],
)
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineSpec:
    made: EngineSpec = request.param(tmp_path_factory.mktemp("engine"))
    return made


class Up:
    """An engine that is up, and the loop that its connections live in."""

    def __init__(self, spec: EngineSpec) -> None:
        self.runner = asyncio.Runner()
        self.engine = EngineProcess(spec)
        self.progress: list[BootProgress] = []
        self.engine.start()
        self.facts: EngineFacts = self.runner.run(self.engine.wait_ready(self.progress.append))

    def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        answer = self.runner.run(self.engine.http.request("POST", path, timeout_s=120.0, body=body))
        return answer.status, json.loads(answer.body)

    def stream(self, path: str, **body: Any) -> list[bytes]:
        async def read() -> list[bytes]:
            headers = {"Content-Type": "application/json"}
            async with self.engine.http.stream(
                "POST", path, headers=headers, body=json.dumps({**body, "stream": True}).encode()
            ) as (status, _, chunks):
                assert status == 200
                return [chunk async for chunk in chunks]

        return self.runner.run(read())

    def counter(self, name: str) -> float:
        text = self.runner.run(self.engine.metrics_text())
        found = re.findall(rf"^{name}_total{{.*}} (\S+)$", text, re.MULTILINE)
        assert found, name
        return sum(map(float, found))

    def down(self) -> None:
        self.runner.run(self.engine.close())
        self.runner.close()


@pytest.fixture(scope="module")
def up(spec: EngineSpec) -> Iterator[Up]:
    found = Up(spec)
    yield found
    found.down()
    assert not _members(found.engine)


class TestEngineProcess:
    """One boot serves all of these; the last one ends it."""

    def test_facts_say_what_is_in_force(self, up: Up) -> None:
        facts = up.facts
        assert facts.boot_id == up.engine.boot_id
        assert facts.model_runner == "v2"
        assert facts.draft_architecture == "DFlash2DraftModel"
        assert (facts.speculative_method, facts.num_speculative_tokens) == ("dflash", _DEPTH)
        assert facts.draft_sample_method == "probabilistic"
        assert facts.rejection_sample_method == "block"
        assert facts.max_model_len == 512
        assert re.match(r"\d+\.\d+", facts.engine_version or "")
        assert facts.resolved_config is not None
        assert facts.resolved_config["scheduler_config"]["max_num_seqs"] == 4

    def test_facts_capacity_of_gauge_and_log_agree(self, up: Up) -> None:
        facts = up.facts
        assert facts.kv_cache_tokens is not None
        assert facts.kv_cache_tokens_log is not None
        assert facts.kv_cache_tokens == pytest.approx(facts.kv_cache_tokens_log, rel=0.01)
        assert facts.kv_max_concurrency == pytest.approx(facts.kv_max_concurrency_log, rel=0.01)
        assert facts.kv_cache_tokens == pytest.approx(
            (facts.kv_max_concurrency or 0) * 512, rel=0.01
        )

    def test_facts_survive_json(self, up: Up) -> None:
        assert json.loads(json.dumps(up.facts.to_dict())) == up.facts.to_dict()

    def test_facts_cross_to_the_trial_with_the_build_and_both_capacities(self, up: Up) -> None:
        facts = facts_from_plain(up.facts.to_dict())
        assert facts.build["launcher"] == up.engine.spec.launcher
        assert facts.build["python"] == ".".join(map(str, sys.version_info[:3]))
        assert facts.build["machine"]
        assert facts.kv_cache_tokens_log == up.facts.kv_cache_tokens_log
        assert facts.kv_max_concurrency_log == up.facts.kv_max_concurrency_log
        assert "hf_token" not in facts.resolved_config.get("model_config", {})  # type: ignore[operator]

    def test_boot_reports_progress(self, up: Up) -> None:
        assert up.progress
        assert all(each.elapsed_s >= each.idle_s >= 0 for each in up.progress)

    def test_whole_completion_carries_the_served_name_and_usage(self, up: Up) -> None:
        before = up.counter("vllm:generation_tokens")
        status, answer = up.post(
            "/v1/completions", model="served", prompt="def f", max_tokens=12, ignore_eos=True
        )
        assert status == 200
        assert answer["model"] == "served"
        assert answer["usage"]["completion_tokens"] == 12
        assert answer["choices"][0]["finish_reason"] == "length"
        assert up.counter("vllm:generation_tokens") - before == 12

    def test_stream_chunks_are_single_events_and_end_with_usage(self, up: Up) -> None:
        chunks = up.stream(
            "/v1/completions",
            model="served",
            prompt="def f",
            max_tokens=12,
            ignore_eos=True,
            stream_options={"include_usage": True},
        )
        assert all(c.startswith(b"data: ") and c.count(b"\n\n") == 1 for c in chunks)
        assert chunks[-1] == b"data: [DONE]\n\n"
        usage = json.loads(chunks[-2].removeprefix(b"data: "))
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 12

    def test_stream_without_asking_has_no_usage(self, up: Up) -> None:
        chunks = up.stream("/v1/completions", model="served", prompt="x", max_tokens=2)
        assert not json.loads(chunks[-2].removeprefix(b"data: ")).get("usage")

    def test_greedy_answers_repeat(self, up: Up) -> None:
        body = {"model": "served", "prompt": "import", "max_tokens": 6, "temperature": 0}
        first, second = up.post("/v1/completions", **body), up.post("/v1/completions", **body)
        assert first[1]["choices"] == second[1]["choices"]

    def test_probe_of_an_engine_that_answers_finds_nothing_wrong(self, up: Up) -> None:
        assert up.runner.run(up.engine.probe(timeout_s=120.0)) is None
        assert up.engine.post_mortem() is None

    def test_unknown_model_is_404(self, up: Up) -> None:
        status, answer = up.post("/v1/completions", model="other", prompt="x", max_tokens=1)
        assert (status, answer["error"]["code"]) == (404, 404)

    def test_speculation_counters_add_up(self, up: Up) -> None:
        up.post(
            "/v1/completions",
            model="served",
            prompt="def g",
            max_tokens=30,
            ignore_eos=True,
        )
        drafts = up.counter("vllm:spec_decode_num_drafts")
        accepted = up.counter("vllm:spec_decode_num_accepted_tokens")
        assert drafts > 0
        assert accepted <= up.counter("vllm:spec_decode_num_draft_tokens") <= drafts * _DEPTH
        assert up.counter("vllm:spec_decode_num_accepted_tokens_per_pos") == accepted

    def test_stop_leaves_no_process_and_answers_are_refused(self, up: Up) -> None:
        assert _members(up.engine)
        assert _folders(up.engine)
        report = up.runner.run(up.engine.close())
        assert report.left == ()
        assert up.engine.stop() == report
        assert not _members(up.engine)
        assert not _folders(up.engine)
        with pytest.raises(EngineNotRunning):
            up.engine.facts()
        with pytest.raises(EngineNotRunning):
            up.runner.run(up.engine.metrics_text())


def _boot(spec: EngineSpec) -> EngineBootError:
    engine = EngineProcess(spec)
    engine.start()
    with pytest.raises(EngineBootError) as caught:
        asyncio.run(engine.wait_ready())
    assert not _members(engine)
    assert not _folders(engine)
    return caught.value


@pytest.mark.parametrize(
    ("fail", "kind", "says"),
    [
        ("exit", BootFailure.EXITED, "the draft's weights do not fit"),
        ("out_of_memory", BootFailure.OUT_OF_MEMORY, "CUDA out of memory"),
        ("bad_arguments", BootFailure.BAD_ARGUMENTS, "unrecognized arguments"),
        ("wrong_identity", BootFailure.IDENTITY, "somebody-else"),
        ("startup_check", BootFailure.STARTUP_CHECK, "less than desired GPU memory"),
        ("kv_cache", BootFailure.KV_CACHE, "No available memory for the cache blocks"),
        ("empty_completions", BootFailure.NO_COMPLETION, "without tokens"),
    ],
)
def test_boot_failure_has_its_kind_and_cause(
    tmp_path: Path, fail: str, kind: BootFailure, says: str
) -> None:
    error = _boot(_fake_spec(tmp_path, FAIL=fail))
    assert error.kind is kind
    assert says in str(error)


@pytest.mark.parametrize(
    ("fail", "kind"),
    [
        ("hang", BootFailure.TIMEOUT),
        ("hang_completions", BootFailure.NO_COMPLETION),
        ("unhealthy", BootFailure.TIMEOUT),
    ],
)
def test_boot_that_hangs_ends_at_its_deadline(
    tmp_path: Path, fail: str, kind: BootFailure, replaced: Callable[..., EngineSpec]
) -> None:
    error = _boot(replaced(_fake_spec(tmp_path, FAIL=fail), boot_timeout_s=3.0))
    assert error.kind is kind


def test_boot_whose_log_stands_still_is_given_up_as_stalled(
    tmp_path: Path, replaced: Callable[..., EngineSpec]
) -> None:
    error = _boot(replaced(_fake_spec(tmp_path, FAIL="hang"), boot_silence_s=2.0))
    assert error.kind is BootFailure.BOOT_STALLED


def test_out_of_memory_in_the_first_request_is_told_apart(tmp_path: Path) -> None:
    error = _boot(_fake_spec(tmp_path, OOM_AT_REQUEST="1"))
    assert error.kind is BootFailure.OOM_FIRST_REQUEST
    assert error.cause.startswith("torch.OutOfMemoryError")


@pytest.fixture
def replaced() -> Callable[..., EngineSpec]:
    def replace(spec: EngineSpec, **changes: Any) -> EngineSpec:
        return EngineSpec.from_dict({**spec.to_dict(), **changes})

    return replace


def test_core_that_ignores_sigterm_and_left_the_group_is_ended(tmp_path: Path) -> None:
    found = Up(_fake_spec(tmp_path, STUBBORN_CHILD="1"))
    assert len(_members(found.engine)) >= 3
    found.down()
    assert not _members(found.engine)


def test_engine_that_dies_under_load_is_not_running(tmp_path: Path) -> None:
    # The readiness completion is the first request.
    found = Up(_fake_spec(tmp_path, DIE_AFTER_REQUESTS="2"))
    assert found.post("/v1/completions", model="served", prompt="x", max_tokens=2)[0] == 200
    while found.engine.is_alive():
        found.runner.run(asyncio.sleep(0.05))
    with pytest.raises(EngineNotRunning, match="exited"):
        found.engine.facts()
    assert found.runner.run(found.engine.close()).exit_status == 1
    found.down()


def test_engine_without_memory_under_load_tells_how_it_ended(tmp_path: Path) -> None:
    found = Up(_fake_spec(tmp_path, OOM_AT_REQUEST="2"))
    assert found.engine.post_mortem() is None
    with pytest.raises(HttpError):
        found.post("/v1/completions", model="served", prompt="x", max_tokens=2)
    while found.engine.is_alive():
        found.runner.run(asyncio.sleep(0.05))

    ended = found.engine.post_mortem()

    assert ended is not None
    assert ended.kind is BootFailure.OOM_UNDER_LOAD
    assert ended.cause.startswith("torch.OutOfMemoryError")
    assert "status 1 after it was ready" in ended.reason
    found.down()


def test_engine_that_is_killed_is_no_victim_of_the_kernel_unless_its_counter_says_so(
    tmp_path: Path,
) -> None:
    found = Up(_fake_spec(tmp_path))
    os.kill(found.engine.pid, signal.SIGKILL)
    while found.engine.is_alive():
        found.runner.run(asyncio.sleep(0.05))

    ended = found.engine.post_mortem()

    assert ended is not None
    assert ended.kind is BootFailure.EXITED
    assert "(signal 9)" in ended.reason
    found.down()


def test_engine_that_hangs_is_healthy_and_fails_its_probe(tmp_path: Path) -> None:
    """E13: /health says 200 and every completion hangs."""
    found = Up(_fake_spec(tmp_path, HANG_AFTER_REQUESTS="2"))
    assert found.runner.run(found.engine.probe(timeout_s=20.0)) is None

    problem = found.runner.run(found.engine.probe(timeout_s=0.5))

    assert problem is not None
    assert "no completion came" in problem
    assert found.runner.run(found.engine.is_healthy(timeout_s=5.0))
    found.down()


def test_key_that_the_engine_ignores_shows_in_the_facts(tmp_path: Path) -> None:
    found = Up(
        _fake_spec(
            tmp_path, OVERRIDE_SPECULATION='{"draft_sample_method": "greedy"}', MODEL_RUNNER="v1"
        )
    )
    assert found.facts.draft_sample_method == "greedy"
    assert found.facts.model_runner == "v1"
    found.down()


def test_unknown_knob_of_the_stand_in_is_refused(tmp_path: Path) -> None:
    assert "TYPO" in str(_boot(_fake_spec(tmp_path, TYPO="1")))


@pytest.mark.parametrize("who", ["engine", "guard"])
def test_killed_boot_leaves_no_socket(tmp_path: Path, who: str) -> None:
    found = Up(_fake_spec(tmp_path))
    engine = found.engine
    (folder,) = _folders(engine)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.is_socket() for path in folder.iterdir()] == [True]

    os.kill(engine.pid if who == "engine" else os.getpgid(engine.pid), signal.SIGKILL)
    while engine.is_alive():
        found.runner.run(asyncio.sleep(0.05))
    found.down()

    assert not _folders(engine)
