"""Log excerpts are shortened from real logs of vLLM 0.32 on a CPU and of reports on GB10."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_apps.engine.enginelog import (
    BootLog,
    Phase,
    failure_kind,
    is_killed,
    names_error,
    parse_facts,
    root_cause,
)
from serve_apps.engine.errors import BootFailure
from serve_apps.engine.facts import parse_capacity, parse_speculation

_TEXTS = Path(__file__).parents[1] / "data/exposition"

_DFLASH = """\
(APIServer pid=50) INFO 11-29 21:23:27 [api_utils.py:347]  ▄▄ ▄█ █ █ █ ▀▄▀ █  version 0.32.0
(APIServer pid=50) INFO 11-29 21:23:42 [model.py:733] Resolved architecture: Qwen3ForCausalLM
(APIServer pid=50) INFO 11-29 21:23:56 [model.py:733] Resolved architecture: DFlash2DraftModel
(EngineCore pid=51) INFO 11-29 21:24:06 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with \
config: model='/m', speculative_config=SpeculativeConfig(method='dflash', model='/d', \
num_spec_tokens=7), tokenizer='/m'
(Worker pid=52) INFO 11-29 21:24:15 [cpu_worker.py:162] Using V2 Model Runner
(Worker pid=52) INFO 11-29 21:24:18 [model_runner.py:424] Model loading took 0.03 GiB memory and \
2.681983 seconds
(EngineCore pid=51) INFO 11-29 21:24:18 [kv_cache_utils.py:2327] CPU KV cache size: 349,440 \
tokens, Maximum concurrency for 1,024 tokens per request: 341.25x
"""
_TWO_LINES = """\
INFO 11-02 10:00:00 [kv_cache_utils.py:1087] GPU KV cache size: 319,232 tokens
INFO 11-02 10:00:00 [kv_cache_utils.py:1091] Maximum concurrency for 202,752 tokens per request: \
1.57x
"""
_V1 = """\
WARNING 11-02 10:00:00 [vllm.py:726] Model Runner V2 requires Triton; using the V1 model runner \
instead.
"""
_CORE_DIED = """\
(Worker pid=52) WARNING 11-29 21:25:04 [system_utils.py:255] Found ulimit of 20000: can cause \
`OSError: [Errno 24] Too many open files`.
(EngineCore pid=51) INFO 11-29 21:24:06 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with
(Worker pid=52) ERROR 11-29 21:27:01 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=52) ERROR 11-29 21:27:01 [multiproc_executor.py:1063]     raise RuntimeError(f"{n} x")
(Worker pid=52) ERROR 11-29 21:27:01 [multiproc_executor.py:1063] RuntimeError: 0 active drivers.
(EngineCore pid=51) ERROR 11-29 21:27:01 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=51) ERROR 11-29 21:27:01 [core.py:1512] RuntimeError: Worker failed with error '0 \
active drivers.', please check the stack trace above for the root cause
(APIServer pid=50) ERROR 11-29 21:27:01 [async_llm.py:906] \
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
_VALIDATION = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (4096) is greater than the derived max_model_len
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
_KV_TOO_SMALL = """\
(EngineCore pid=51) INFO 11-29 21:24:06 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with
(EngineCore pid=51) ERROR 11-29 21:28:01 [core.py:77] ValueError: To serve at least one request \
with the models's max seq len (202752), (12.1 GiB KV cache is needed, which is larger than the \
available KV cache memory (9.4 GiB).
"""
# The next four are worded as in the source of vLLM 0.28.0 and 0.32.0, with figures put in.
_NO_KV = """\
(EngineCore pid=51) ERROR 11-29 21:28:01 [core.py:77] ValueError: No available memory for the \
cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine (this flag also \
controls CPU memory reservation on the CPU backend, despite its name).
"""
_CHECK_0_28 = """\
(EngineCore pid=51) ERROR 11-29 21:28:01 [core.py:77] ValueError: Free memory on device cuda:0 \
(38.21/119.7 GiB) on startup is less than desired GPU memory utilization (0.8, 95.76 GiB). \
Decrease GPU memory utilization or reduce GPU memory used by other processes.
"""
_CHECK_CPU = """\
(EngineCore pid=51) ERROR 11-29 21:28:01 [core.py:77] ValueError: Available memory on node 0 \
(3.1/23.5 GiB) on kv cache allocation is less than requested memory for kv (8.0 GiB). Decrease \
--kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other processes.
"""
_WARM_UP = """\
(EngineCore pid=51) ERROR 11-29 21:28:01 [core.py:77] RuntimeError: CUDA out of memory occurred \
when warming up sampler with 16 dummy requests. Please try lowering `max_num_seqs`.
"""
_OOM_SERVING = """\
(APIServer pid=50) INFO 11-29 21:29:01 [launcher.py:46] Application startup complete.
(EngineCore pid=51) ERROR 11-29 21:30:01 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=51) ERROR 11-29 21:30:01 [core.py:1512] torch.OutOfMemoryError: CUDA out of \
memory. Tried to allocate 2.00 GiB.
(APIServer pid=50) ERROR 11-29 21:30:01 [async_llm.py:906] \
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace \
(above) for the root cause.
"""
_WORKER_KILLED = """\
(APIServer pid=50) INFO 11-29 21:29:01 [launcher.py:46] Application startup complete.
(EngineCore pid=51) ERROR 11-29 21:30:01 [multiproc_executor.py:316] Worker proc VllmWorker-0 died \
unexpectedly (exit code: -9), shutting down executor.
"""
# As vLLM 0.32.0 printed them for a folder that is not there and a context that is too long.
_NO_MODEL = """\
Traceback (most recent call last):
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: '/nowhere/target'.
Please verify the following requirements:
1. Provide a valid Hugging Face repository ID.
 [type=value_error, input_value=ArgsKwargs((), {'model': '/nowhere/target'}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
_TOO_LONG = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (999999) is greater than the derived max_model_len. \
[type=value_error, input_value=ArgsKwargs((), {'model': ...99, 'dtype': 'float32'}), \
input_type=ArgsKwargs]
"""
_REFUSED = """\
Traceback (most recent call last):
NotImplementedError: DFlash2 needs Model Runner V2
"""


def test_facts_of_a_v2_boot_with_a_draft() -> None:
    facts = parse_facts(_DFLASH)
    assert facts.engine_version == "0.32.0"
    assert facts.model_runner == "v2"
    assert facts.architectures == ("Qwen3ForCausalLM", "DFlash2DraftModel")
    assert (facts.kv_cache_tokens, facts.kv_max_concurrency) == (349_440, 341.25)
    assert facts.weights_gib == 0.03
    assert (facts.speculative_method, facts.num_speculative_tokens) == ("dflash", 7)


def test_facts_of_capacity_on_two_lines() -> None:
    facts = parse_facts(_TWO_LINES)
    assert (facts.kv_cache_tokens, facts.kv_max_concurrency) == (319_232, 1.57)


def test_facts_of_a_fall_back_to_v1() -> None:
    assert parse_facts(_V1).model_runner == "v1"


def test_facts_of_a_silent_log_are_none() -> None:
    facts = parse_facts("INFO nothing\n")
    assert facts.model_runner is None
    assert facts.kv_cache_tokens is None
    assert facts.architectures == ()


@pytest.mark.parametrize(
    ("text", "cause", "kind"),
    [
        (_CORE_DIED, "RuntimeError: 0 active drivers.", BootFailure.EXITED),
        (_VALIDATION, "User-specified max_model_len (4096)", BootFailure.BAD_ARGUMENTS),
        (_KV_TOO_SMALL, "larger than the available", BootFailure.KV_CACHE),
        (_NO_KV, "No available memory for the cache", BootFailure.KV_CACHE),
        (_CHECK_0_28, "less than desired", BootFailure.STARTUP_CHECK),
        (_CHECK_CPU, "less than requested memory", BootFailure.STARTUP_CHECK),
        (_WARM_UP, "warming up sampler", BootFailure.OUT_OF_MEMORY),
        (_NO_MODEL, "specified: '/nowhere/target'.", BootFailure.BAD_ARGUMENTS),
        (_TOO_LONG, "than the derived max_model_len.", BootFailure.BAD_ARGUMENTS),
        (_REFUSED, "NotImplementedError: DFlash2", BootFailure.BAD_ARGUMENTS),
        ("vllm serve: error: unrecognized arguments: --x", "--x", BootFailure.BAD_ARGUMENTS),
        ("torch.OutOfMemoryError: CUDA out of memory.", "CUDA", BootFailure.OUT_OF_MEMORY),
        ("(Worker pid=1) ERROR 11-29 21:27:01 [x.py:1] odd\nlast", "odd", BootFailure.EXITED),
        ("first\nlast\n", "last", BootFailure.EXITED),
        ("", "", BootFailure.EXITED),
    ],
)
def test_root_cause_is_found_and_says_how_to_react(
    text: str, cause: str, kind: BootFailure
) -> None:
    found = root_cause(text)
    assert cause in found
    assert failure_kind(text, found) is kind


@pytest.mark.parametrize("text", [_NO_MODEL, _TOO_LONG])
def test_cause_has_the_same_words_whatever_objects_pydantic_was_given(text: str) -> None:
    other = text.replace("{'model'", "{'speculative_config': <object at 0x7f05>, 'model'")

    assert root_cause(other) == root_cause(text)


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        (Phase.BOOT, BootFailure.OUT_OF_MEMORY),
        (Phase.FIRST_REQUEST, BootFailure.OOM_FIRST_REQUEST),
        (Phase.LOAD, BootFailure.OOM_UNDER_LOAD),
    ],
)
def test_allocation_that_failed_is_told_apart_by_how_far_the_boot_had_come(
    phase: Phase, kind: BootFailure
) -> None:
    """E14: out of memory under load is not out of memory at boot."""
    cause = root_cause(_OOM_SERVING)
    assert cause.startswith("torch.OutOfMemoryError")
    assert failure_kind(_OOM_SERVING, cause, phase=phase) is kind
    # What the log says outdoes what the kernel did meanwhile, to whomever.
    assert failure_kind(_OOM_SERVING, cause, phase=phase, is_oom_killed=True) is kind


@pytest.mark.parametrize("phase", Phase)
def test_kill_by_the_kernel_is_one_by_its_counter_and_never_by_the_log_alone(phase: Phase) -> None:
    cause = root_cause(_WORKER_KILLED)
    assert failure_kind(_WORKER_KILLED, cause, phase=phase) is BootFailure.EXITED
    killed = failure_kind(_WORKER_KILLED, cause, phase=phase, is_oom_killed=True)
    assert killed is BootFailure.OOM_KILLED


def test_refusal_is_one_of_the_boot_only() -> None:
    cause = root_cause(_REFUSED)
    assert failure_kind(_REFUSED, cause, phase=Phase.LOAD) is BootFailure.EXITED


@pytest.mark.parametrize(
    ("text", "status", "killed"),
    [
        ("", 137, True),
        ("", 143, False),
        ("", 1, False),
        ("", None, False),
        (_WORKER_KILLED, 1, True),
        ("RuntimeError: Engine core process EngineCore_DP0 died unexpectedly.", None, True),
        ("RuntimeError: Process ApiServer_0 (PID: 7) died with exit code -9", 1, True),
        ("RuntimeError: Process ApiServer_0 (PID: 7) died with exit code -11", 1, False),
        (_OOM_SERVING, 1, False),
    ],
)
def test_process_that_was_killed_is_known_by_status_or_log(
    text: str, status: int | None, killed: bool
) -> None:
    assert is_killed(text, status) is killed


def test_log_names_an_error_only_where_one_is_in_it() -> None:
    assert names_error(_OOM_SERVING)
    assert not names_error(_DFLASH)
    assert not names_error("")


def test_boot_log_shows_its_own_boot_only(tmp_path: Path) -> None:
    log = BootLog(tmp_path / "deep" / "engine.log")
    assert (log.text(), log.num_bytes()) == ("", 0)
    log.open().close()
    log.path.write_text("first boot\n")
    again = BootLog(log.path)
    with again.open() as file:
        file.write(b"one\ntwo\nthree\n")
    assert again.text() == "one\ntwo\nthree\n"
    assert again.tail(2) == "two\nthree"


def test_capacity_from_the_gauge_labels() -> None:
    text = (
        'vllm:cache_config_info{kv_cache_max_concurrency="1.57",kv_cache_size_tokens="319232",'
        'num_gpu_blocks="9",engine="0"} 1.0\n'
        'vllm:cache_config_info{kv_cache_max_concurrency="1.5",kv_cache_size_tokens="310000",'
        'num_gpu_blocks="9",engine="1"} 1.0\n'
    )
    capacity = parse_capacity(text)
    assert (capacity.kv_cache_tokens, capacity.kv_max_concurrency) == (310_000, 1.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        'vllm:cache_config_info{num_gpu_blocks="9",block_size="16"} 1.0\n',
        'vllm:cache_config_info{kv_cache_size_tokens="None",num_gpu_blocks="9"} 1.0\n',
        'vllm:cache_config_info{kv_cache_size_tokens="nan",num_gpu_blocks="9"} 1.0\n',
        'vllm:cache_config_info_created{kv_cache_size_tokens="9"} 1.0\n',
        'vllm:cache_config_info{kv_cache_size_tokens="3192',
        'vllm:cache_config_info{kv_cache_size_tokens="3192"',
    ],
)
def test_capacity_that_is_not_said_is_none(text: str) -> None:
    assert parse_capacity(text).kv_cache_tokens is None


@pytest.mark.parametrize(
    ("version", "tokens", "concurrency"),
    [
        ("0.28.0", 299_520, 292.5),
        ("0.32.0", 299_520, 292.50),
    ],
)
def test_capacity_of_a_real_engine_is_what_its_log_says(
    version: str, tokens: int, concurrency: float
) -> None:
    """The figures are those of the boots' logs."""
    capacity = parse_capacity((_TEXTS / f"vllm-{version}-after.txt").read_text(encoding="ascii"))
    assert (capacity.kv_cache_tokens, capacity.kv_max_concurrency) == (tokens, concurrency)


def test_speculation_from_config_and_log() -> None:
    config = {
        "speculative_config": {
            "method": "dflash",
            "num_speculative_tokens": 7,
            "draft_sample_method": "probabilistic",
            "rejection_sample_method": "block",
            "draft_model_config": {"model": "/d"},
        }
    }
    found = parse_speculation(config, parse_facts(_DFLASH))
    assert found.draft_architecture == "DFlash2DraftModel"
    assert (found.draft_sample_method, found.rejection_sample_method) == ("probabilistic", "block")


def test_speculation_without_server_info_comes_from_the_log_as_far_as_it_goes() -> None:
    found = parse_speculation(None, parse_facts(_DFLASH))
    assert (found.method, found.num_speculative_tokens) == ("dflash", 7)
    assert found.draft_sample_method is None


def test_speculation_off_has_no_draft() -> None:
    log = parse_facts("Resolved architecture: A\nResolved architecture: A\n")
    found = parse_speculation({"speculative_config": None}, log)
    assert (found.method, found.draft_architecture) == (None, None)
