"""What is asked of a build's sampling code, with functions written here in the build's place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from serve_apps.audit.drive_markov import make_chain

torch = pytest.importorskip("torch")
drive_block = pytest.importorskip("serve_apps.audit.drive_block")
drive_build = pytest.importorskip("serve_apps.audit.drive_build")

REJECTION = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
GUMBEL = "vllm.v1.worker.gpu.sample.gumbel"
DFLASH = "vllm.v1.worker.gpu.spec_decode.dflash.speculator"
INTERPRETER = "triton.runtime.interpreter"


class Interpreted:
    """Stands for Triton's class of interpreted kernels."""


class Speculator:
    """Drafts the rows' numbers; keeps what its parts were given."""

    def draft_logits_spec(self, config: Any) -> tuple[Any, float]:
        return config.model_config.head_dtype, 0.5

    def _generate_draft(self, count: int, num_tokens: int, *_: Any) -> None:
        own: Any = self
        own.hidden = own._run_model(num_tokens)
        own.draft_tokens[:count] = torch.arange(count)[:, None]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Put a build's functions in the places where they are looked for; return them by name."""
    calls: dict[str, Any] = {}

    def rejection_sample(
        target_logits: Any, draft_logits: Any, draft_sampled: Any, cu_num_logits: Any, pos: Any,
        idx_mapping: Any, expanded_idx_mapping: Any, expanded_local_pos: Any, temperature: Any,
        seed: Any, num_speculative_steps: int, use_block_verification: bool = False,
    ) -> Any:  # fmt: skip
        calls["verified"] = {
            "slots": expanded_idx_mapping.tolist(), "offsets": expanded_local_pos.tolist(),
            "block": use_block_verification,
        }  # fmt: skip
        return "emitted", "counts"

    def gumbel_sample(
        logits: Any, expanded_idx_mapping: Any, temperature: Any, seed: Any, pos: Any,
        apply_temperature: bool, is_drafting: bool = True,
    ) -> Any:  # fmt: skip
        calls["drawn"] = (apply_temperature, is_drafting)

    def apply_temperature(logits: Any, expanded_idx_mapping: Any, temperature: Any) -> None:
        logits /= temperature[expanded_idx_mapping.long()][:, None]

    def prepare_dflash_inputs(input_buffers: Any, num_rejected: Any, last_sampled: Any) -> None:
        calls["rejected"] = num_rejected.tolist()
        input_buffers.input_ids[::4] = last_sampled[:, 0].repeat(2)[
            : len(input_buffers.input_ids[::4])
        ]

    modules = {
        REJECTION: {"rejection_sample": rejection_sample, "_rejection_kernel": Interpreted()},
        GUMBEL: {"gumbel_sample": gumbel_sample, "apply_temperature": apply_temperature},
        DFLASH: {"DFlashSpeculator": Speculator, "prepare_dflash_inputs": prepare_dflash_inputs},
        INTERPRETER: {"InterpretedFunction": Interpreted},
    }
    for name, content in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(content)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield calls
    torch.set_num_threads(threads)


def batch_and_slots() -> tuple[Any, Any]:
    """Return a step of two requests, in slots 2 and 0, with 1 and 0 drafts."""

    batch = drive_build.Batch(
        slots=torch.tensor([2, 0], dtype=torch.int32),
        tokens=torch.tensor([5, 6, 7]),
        positions=torch.tensor([10, 11, 4]),
        starts=torch.tensor([0, 2, 3], dtype=torch.int32),
        num_rows=np.array([2, 1], np.int32),
    )
    slots = drive_build.Slots(
        temperature=torch.tensor([0.5, 1.0, 2.0]),
        seeds=torch.tensor([1, 2, 3]),
        last_sampled=torch.tensor([[7], [8], [9]]),
    )
    return batch, slots


def test_sampling_rows_have_their_slot_temperature_and_offset(build: dict[str, Any]) -> None:

    batch, slots = batch_and_slots()
    sampling = drive_build.Sampling()
    logits = torch.ones((3, 2))
    scaled = sampling.scaled(logits, batch, slots)
    assert scaled.tolist() == [[0.5, 0.5], [0.5, 0.5], [2.0, 2.0]]
    assert logits.tolist() == [[1.0, 1.0]] * 3
    assert sampling.verify(scaled, None, batch, slots, depth=1, block=True) == ("emitted", "counts")
    assert build["verified"] == {"slots": [2, 2, 0], "offsets": [0, 1, 0], "block": True}
    sampling.sample(scaled, batch, slots)
    assert build["drawn"] == (False, False)


@pytest.mark.parametrize(
    ("module", "change", "problem"),
    [
        (REJECTION, {"rejection_sample": None}, "has no .*rejection_sample$"),
        (REJECTION, {"rejection_sample": lambda logits: logits}, r"takes \(logits\), not \("),
        (GUMBEL, {"gumbel_sample": lambda seed, pos: (seed, pos)}, "gumbel_sample takes"),
        (REJECTION, {"_rejection_kernel": object()}, "is no interpreted kernel here"),
    ],
)
def test_sampling_of_another_build_is_refused(
    build: dict[str, Any], module: str, change: dict[str, Any], problem: str
) -> None:

    vars(sys.modules[module]).update(change)
    with pytest.raises(drive_build.CannotDriveError, match=problem):
        drive_build.Sampling()


def drafter(*, probabilistic: bool = False) -> Any:

    chain = make_chain(seed=0, vocabulary=12, depth=3, num_candidates=4)
    return drive_build.Drafter("dflash", chain, num_slots=3, probabilistic=probabilistic)


def test_drafter_hands_on_rejections_and_returns_the_requests_drafts(build: dict[str, Any]) -> None:

    batch, slots = batch_and_slots()
    made = drafter(probabilistic=True)
    assert made.draft_logits.tolist() == [[[0.5] * 12] * 3] * 3
    found = made.draft(batch, torch.tensor([1, 1], dtype=torch.int32), slots)
    assert found.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert build["rejected"] == [1, 0]
    # Of each query its anchor's token and its own offset: what the network would have been asked.
    hidden = made._speculator.hidden
    assert hidden.tolist() == [[7, 0], [7, 1], [7, 2], [7, 3], [8, 0], [8, 1], [8, 2], [8, 3]]
    assert drafter().draft_logits is None


def _needs_more(self: Any, *_: Any) -> None:
    self.draft_tokens[:1] = self.a_new_part


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda module: setattr(module, "DFlashSpeculator", None),
            "has no .*DFlashSpeculator._generate_draft",
        ),
        (
            lambda module: setattr(
                module,
                "DFlashSpeculator",
                type("New", (Speculator,), {"_generate_draft": _needs_more}),
            ),
            "needs more than is known: .*a_new_part",
        ),
        (
            lambda module: setattr(
                module, "prepare_dflash_inputs", lambda input_buffers, salt: (input_buffers, salt)
            ),
            "prepare_dflash_inputs takes salt",
        ),
    ],
)
def test_drafter_of_another_build_is_refused(
    build: dict[str, Any], change: Callable[[Any], None], problem: str
) -> None:

    change(sys.modules[DFLASH])
    with pytest.raises(drive_build.CannotDriveError, match=problem):
        drafter().draft(batch_and_slots()[0], torch.tensor([1, 1]), batch_and_slots()[1])


class Uniforms:
    """Verifies the case of `drive_block` by hand, in NumPy, with uniforms by position or fresh."""

    def __init__(self, *, by_position: bool) -> None:
        self.by_position = by_position
        self.rng = np.random.default_rng(0)

    def verify(
        self, logits: Any, draft_logits: Any, batch: Any, slots: Any, *, depth: int, block: bool
    ) -> tuple[Any, Any]:

        assert block
        assert draft_logits is None
        assert (batch.tokens == 0).all()
        assert (logits == 0).all()
        count = len(batch.slots)
        u = self.rng.random((count, depth))
        if self.by_position:
            places = batch.positions.view(count, depth + 1)[:, 1:].numpy()
            kept = np.random.default_rng(7).random((len(slots.seeds), 5000))
            u = kept[batch.slots.numpy()[:, None], places]
        accepted = (u <= np.array([1 / 3, 1 / 4])).any(1)
        return torch.from_numpy(np.where(accepted, 0, 1)[:, None]), None


@pytest.mark.parametrize(("by_position", "share"), [(False, 1 / 2), (True, 1 / 3)])
def test_block_case_has_the_shares_that_were_worked_out(
    monkeypatch: pytest.MonkeyPatch, by_position: bool, share: float
) -> None:

    monkeypatch.setattr(drive_build, "Sampling", lambda: Uniforms(by_position=by_position))
    zeros, count = drive_block.second_tokens(4000, seed=1)
    assert abs(count - 2000) < 4 * np.sqrt(1000)
    assert abs(zeros - share * count) < 4 * np.sqrt(count * share * (1 - share))
