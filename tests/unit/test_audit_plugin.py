"""The audit beside an engine made of a few functions: what it records, and when it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serve_apps.audit import plugin
from serve_apps.audit.records import KINDS, attachment, read_folder

torch = pytest.importorskip("torch")
attach = pytest.importorskip("serve_apps.audit.attach")

VOCABULARY, DEPTH = 80, 2

VERIFIED_BY_VERSION = {
    "0.28.0": "",
    "0.29.0": "",
    "0.32.0": ", contexts=None, watermarking=None, watermarking_skip_mask=None, watermark_key=None",
    "0.33.0": ", contexts=None, watermarking=None, watermarking_skip_mask=None, watermark_key=None"
    ", fly_window_size=0, fly_entropy_threshold=0.3, fly_entropy_top_k=3",
}
"""What `rejection_sample` takes besides what it takes in all these builds."""
VERIFIED = (
    "target_logits, draft_logits, draft_sampled, cu_num_logits, pos, idx_mapping, "
    "expanded_idx_mapping, expanded_local_pos, temperature, seed, num_speculative_steps, "
    "synthetic_conditional_rates=None, use_fp64=False, use_block_verification=False"
)
DRAWN = "logits, expanded_idx_mapping, temperature, seed, pos, apply_temperature, use_fp64=False"


def function(parameters: str, body: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a function of these parameters."""
    names: dict[str, Any] = {"body": body}
    exec(f"def made({parameters}):\n    return body(locals())", names)
    return names["made"]


class Engine:
    """Modules of the names that the audit looks for; a step is one call of `sample`."""

    def __init__(self, patch: pytest.MonkeyPatch, version: str = "0.32.0") -> None:
        self.rng = np.random.default_rng(1)
        self.modules = {
            name: ModuleType(name)
            for name in (attach.RUNNER, attach.REJECTION, attach.SAMPLER, "vllm")
        }
        self.modules["vllm.distributed.parallel_state"] = ModuleType("parallel_state")
        for name, module in self.modules.items():
            patch.setitem(sys.modules, name, module)
        self.set("vllm", __version__=version)
        self.set("vllm.distributed.parallel_state", get_tensor_model_parallel_rank=lambda: 0)
        self.set(
            attach.REJECTION,
            rejection_sample=function(VERIFIED + VERIFIED_BY_VERSION[version], self.verify),
        )
        self.set(attach.SAMPLER, gumbel_sample=function(DRAWN, lambda _: self.drawn))
        self.set(attach.RUNNER, GPUModelRunner=self.runner_class())
        self.options: dict[str, Any] = {}
        self.drawn = torch.tensor([3, 4])
        self.counts = torch.tensor([2, 1])
        self.sampled = torch.tensor([[5, 6, 0], [7, 0, 0]])

    def set(self, name: str, **values: Any) -> None:
        for key, value in values.items():
            setattr(self.modules[name], key, value)

    def verify(self, given: dict[str, Any]) -> Any:
        assert given["target_logits"].shape == (2 * (DEPTH + 1), VOCABULARY)
        return self.sampled, self.counts

    def runner_class(self) -> type:
        engine = self

        class GPUModelRunner:
            batch_sharder: object | None = None
            vllm_config = SimpleNamespace(
                speculative_config=SimpleNamespace(
                    rejection_sample_method="standard", draft_sample_method="probabilistic"
                )
            )

            def sample(self, hidden_states: Any, input_batch: Any, grammar_output: object) -> Any:
                assert grammar_output is None
                return "output", engine.step(input_batch, drafted=hidden_states), None

        return GPUModelRunner

    def step(self, batch: Any, *, drafted: bool) -> Any:
        if not drafted:
            gumbel_sample: Any = vars(self.modules[attach.SAMPLER])["gumbel_sample"]
            logits = self.normal(2, VOCABULARY)
            gumbel_sample(logits, torch.tensor([4, 9]), torch.ones(10), None, None, False)
        else:
            rejection_sample: Any = vars(self.modules[attach.REJECTION])["rejection_sample"]
            rejection_sample(
                self.normal(2 * (DEPTH + 1), VOCABULARY),
                self.normal(10, DEPTH, VOCABULARY),
                torch.tensor([1, 5, 6, 1, 8, 9]),
                torch.tensor([0, 3, 6]),
                None,
                torch.tensor([4, 9]),
                None,
                None,
                torch.ones(10),
                None,
                DEPTH,
                **self.options,
            )
        return batch.num_sampled

    def normal(self, *shape: int) -> Any:
        return torch.tensor(self.rng.normal(size=shape), dtype=torch.float32)

    def run(
        self,
        *,
        drafted: bool = True,
        ids: tuple[str, str] = ("cmpl-1", "cmpl-2"),
        num_sampled: tuple[int, int] = (2, 1),
    ) -> Any:
        runner = vars(self.modules[attach.RUNNER])["GPUModelRunner"]()
        batch = SimpleNamespace(
            req_ids=list(ids),
            idx_mapping_np=np.array([4, 9]),
            num_sampled=torch.tensor(num_sampled),
        )
        return runner.sample(drafted, batch, None)


def kinds(folder: Path) -> dict[int, set[str]]:
    """Return the families of kinds that were recorded, by slot."""
    (records,) = read_folder(folder)
    found: dict[int, set[str]] = {}
    for row in records.rows:
        kind = KINDS[row["kind"]]
        family = kind.rpartition("_")[0] if "_rank_" in kind else kind
        found.setdefault(int(row["row"]), set()).add(family)
    return found


TOKEN_WISE = {"first_accepted", "emitted_rank", "recovered_rank", "recovered_in_candidates"}


@pytest.mark.parametrize("version", sorted(VERIFIED_BY_VERSION))
def test_verification_of_every_known_build_is_recorded(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch, version)
    attach.attach(tmp_path)
    output, counts, _ = engine.run()
    assert (output, counts.tolist()) == ("output", [2, 1])
    assert attachment(tmp_path).attached
    (records,) = read_folder(tmp_path)
    assert records.header.engine_version == version
    assert records.header.rejection_sample_method == "standard"
    assert records.header.draft_sample_method == "probabilistic"
    assert kinds(tmp_path) == {4: TOKEN_WISE, 9: TOKEN_WISE}


def test_steps_without_drafts_leave_ranks_of_emitted_tokens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch)
    attach.attach(tmp_path)
    for _ in range(3):
        engine.run(drafted=False, num_sampled=(1, 1))
    assert kinds(tmp_path) == {4: {"emitted_rank"}, 9: {"emitted_rank"}}
    assert sorted({int(step) for step in read_folder(tmp_path)[0].rows["step"]}) == [0, 1, 2]


def test_request_that_emits_nothing_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch)
    attach.attach(tmp_path)
    engine.run(num_sampled=(2, 0))
    assert set(kinds(tmp_path)) == {4}


@pytest.mark.parametrize("name", ["_warmup_0_", "_v2_mixed_warmup_decode_"])
def test_warm_up_is_not_recorded(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch)
    attach.attach(tmp_path)
    engine.run(ids=(name, name))
    assert not list(tmp_path.iterdir())
    engine.run()
    assert set(kinds(tmp_path)) == {4, 9}


def test_second_attachment_records_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch)
    for _ in range(2):
        attach.attach(tmp_path)
    engine.run(drafted=False)
    assert len(read_folder(tmp_path)[0].rows) == 2 * 5


@pytest.mark.parametrize("option", ["synthetic_conditional_rates", "fly_window_size"])
def test_rules_that_are_lossy_by_design_leave_the_first_token(
    option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch, "0.33.0")
    attach.attach(tmp_path)
    engine.options = {option: 3}
    engine.run()
    assert kinds(tmp_path) == {4: {"emitted_rank"}, 9: {"emitted_rank"}}


def test_unknown_option_of_the_verification_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch)
    strange = function(f"{VERIFIED}, lenience=0.0", engine.verify)
    engine.set(attach.REJECTION, rejection_sample=strange)
    attach.attach(tmp_path)
    engine.run()
    assert not read_folder(tmp_path)
    found = attachment(tmp_path)
    assert not found.attached
    assert "rejection_sample takes lenience" in found.why


@pytest.mark.parametrize(
    ("module", "name"),
    [("REJECTION", "rejection_sample"), ("SAMPLER", "gumbel_sample"), ("RUNNER", "GPUModelRunner")],
)
def test_build_without_a_known_function_is_refused(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch)
    delattr(engine.modules[getattr(attach, module)], name)
    attach.attach(tmp_path)
    assert name in attachment(tmp_path).why


def test_other_order_of_parameters_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch)
    engine.set(attach.SAMPLER, gumbel_sample=function("temperature, logits", lambda _: None))
    attach.attach(tmp_path)
    assert "takes (temperature, logits), not (logits, " in attachment(tmp_path).why


def test_watermarked_tokens_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = Engine(monkeypatch)
    attach.attach(tmp_path)
    engine.options = {"contexts": object()}
    for _ in range(2):
        engine.run()
    assert not read_folder(tmp_path)
    assert "watermarked" in attachment(tmp_path).why


def test_second_rank_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = Engine(monkeypatch)
    engine.set("vllm.distributed.parallel_state", get_tensor_model_parallel_rank=lambda: 1)
    attach.attach(tmp_path)
    engine.run()
    assert not list(tmp_path.iterdir())


def test_requests_shared_out_over_ranks_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch)
    attach.attach(tmp_path)
    vars(engine.modules[attach.RUNNER])["GPUModelRunner"].batch_sharder = object()
    engine.run()
    assert "over ranks" in attachment(tmp_path).why


def test_limit_of_rows_ends_recording_and_not_the_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine(monkeypatch)
    attach.attach(tmp_path, limit_rows=30)
    for _ in range(4):
        assert engine.run()[0] == "output"
    (records,) = read_folder(tmp_path)
    assert records.header.truncated
    assert len(records.rows) == 30


def test_file_of_an_earlier_process_of_the_same_number_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    earlier = tmp_path / f"audit-{os.getpid()}.rows"
    earlier.write_bytes(b"earlier")
    engine = Engine(monkeypatch)
    attach.attach(tmp_path)
    engine.run()
    assert earlier.read_bytes() == b"earlier"
    assert len(list(tmp_path.glob("*.rows"))) == 2


def test_boot_without_any_note_says_that_the_runner_was_not_seen(tmp_path: Path) -> None:
    found = attachment(tmp_path)
    assert not found.attached
    assert "V2 model runner" in found.why


def test_call_follows_an_import_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "late_module.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen: list[int] = []
    for _ in range(2):
        plugin.after_import("late_module", lambda module: seen.append(module.VALUE))
    assert not seen
    monkeypatch.delitem(sys.modules, "late_module", raising=False)
    __import__("late_module")
    assert seen == [7]
    plugin.after_import("late_module", lambda module: seen.append(module.VALUE))
    assert seen == [7, 7]


@pytest.mark.parametrize("folder", [None, "records"])
def test_plugin_loads_nothing_heavy_before_the_runner(folder: str | None, tmp_path: Path) -> None:
    code = (
        "import sys, json; from serve_apps.audit.plugin import register; register();"
        "print(json.dumps([m for m in ('torch', 'vllm', 'numpy') if m in sys.modules]))"
    )
    chosen = {} if folder is None else {plugin.AUDIT_DIR_VARIABLE: str(tmp_path / folder)}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "", **chosen},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == []
    assert not list(tmp_path.iterdir())
