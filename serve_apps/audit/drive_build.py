"""The draft-sampling and verification code of one engine build, callable without an engine.

A speculator of the build's own class is made without its constructor and given a Markov model
(`drive_markov`) in place of the draft's network. It prepares its inputs, samples and caches draft
logits by the build's own code, so that positions, seeds and noise are those of an engine. What a
build asks for beyond what the builds read so far do (0.28.0, 0.29.0, 0.32.0, 0.33.0) ends in
`CannotDriveError`.
"""

# mypy: disable-error-code="import-untyped,import-not-found,no-any-return"

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from serve_apps.audit.attach import signature_fault
from serve_apps.audit.drive_markov import Chain

Tensor = Any
"""A torch.Tensor; torch is not installed where types are checked."""

_GPU = "vllm.v1.worker.gpu"
_REJECTION = f"{_GPU}.spec_decode.rejection_sampler_utils"
_GUMBEL = f"{_GPU}.sample.gumbel"
_DFLASH = f"{_GPU}.spec_decode.dflash.speculator"
_DFLASH2 = f"{_GPU}.spec_decode.dflash2.speculator"
DRAFTERS = {
    "dflash2": (_DFLASH2, "DFlash2Speculator"),
    "dflash": (_DFLASH, "DFlashSpeculator"),
}
_VERIFIED = (
    *("target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "pos", "idx_mapping"),
    *("expanded_idx_mapping", "expanded_local_pos", "temperature", "seed"),
    "num_speculative_steps",
)
_DRAWN = ("logits", "expanded_idx_mapping", "temperature", "seed", "pos", "apply_temperature")
_BLOCK_SIZE = 16
_MAX_LENGTH = 1 << 20


class CannotDriveError(RuntimeError):
    """This build's sampling code is not as known; the text says in one clause what differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """What the engine keeps by request slot."""

    temperature: Tensor
    """[num_slots] float32"""
    seeds: Tensor
    """[num_slots] int64"""
    last_sampled: Tensor
    """[num_slots, 1] int64"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one step: of every request its last token and then its drafts."""

    slots: Tensor
    """[num_requests] int32"""
    tokens: Tensor
    """[num_rows] int64"""
    positions: Tensor
    """[num_rows] int64, of these tokens in the text."""
    starts: Tensor
    """[num_requests + 1] int32"""
    num_rows: Any
    """[num_requests] int32, a NumPy array: 1 + drafts."""

    @property
    def row_slots(self) -> Tensor:
        """[num_rows] int32: the slot of each row."""
        return self.slots.repeat_interleave(torch.from_numpy(self.num_rows).long())

    @property
    def offsets(self) -> Tensor:
        """[num_rows] int32: the number of each row within its request."""
        counts = torch.from_numpy(self.num_rows).long()
        first = self.starts[:-1].long().repeat_interleave(counts)
        return (torch.arange(len(self.tokens)) - first).int()


class Sampling:
    """Temperature, plain sampling and verification by the build's functions."""

    def __init__(self) -> None:
        """Find the functions.

        Raises:
            CannotDriveError: One is missing, takes other arguments, or is not interpreted.
        """
        self._rejection_sample = _function(_REJECTION, "rejection_sample", _VERIFIED)
        self._gumbel_sample = _function(_GUMBEL, "gumbel_sample", _DRAWN)
        self._apply_temperature = _function(
            _GUMBEL, "apply_temperature", ("logits", "expanded_idx_mapping", "temperature")
        )
        # Up to 0.28 there is one stream of noise; later builds salt the draft's.
        self._salted = "is_drafting" in inspect.signature(self._gumbel_sample).parameters
        kernel = getattr(_module(_REJECTION), "_rejection_kernel", None)
        if not isinstance(kernel, _module("triton.runtime.interpreter").InterpretedFunction):
            raise CannotDriveError(f"{_REJECTION}._rejection_kernel is no interpreted kernel here")

    def scaled(self, logits: Tensor, batch: Batch, slots: Slots) -> Tensor:
        """Return a copy of [num_rows, V] logits with each row's temperature applied."""
        scaled = logits.clone()
        self._apply_temperature(scaled, batch.row_slots, slots.temperature)
        return scaled

    def sample(self, logits: Tensor, batch: Batch, slots: Slots) -> Tensor:
        """Return one token a row, as of requests without drafts; logits are scaled already."""
        more = {"is_drafting": False} if self._salted else {}
        return self._gumbel_sample(
            logits, batch.row_slots, slots.temperature, slots.seeds, batch.positions,
            apply_temperature=False, **more,
        )  # fmt: skip

    def verify(
        self,
        logits: Tensor,
        draft_logits: Tensor | None,
        batch: Batch,
        slots: Slots,
        *,
        depth: int,
        block: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return emitted tokens [num_requests, depth + 1] and how many of each; logits scaled."""
        return self._rejection_sample(
            logits, draft_logits, batch.tokens, batch.starts, batch.positions, batch.slots,
            batch.row_slots, batch.offsets, slots.temperature, slots.seeds, depth,
            use_block_verification=block,
        )  # fmt: skip


class Drafter:
    """A speculator of the build with the chain in place of its network."""

    def __init__(self, name: str, chain: Chain, *, num_slots: int, probabilistic: bool) -> None:
        """Make the speculator.

        Args:
            name: A key of `DRAFTERS`.
            chain: The model.
            num_slots: Requests that the engine may hold.
            probabilistic: Whether drafts are drawn, and their logits kept for the verification.

        Raises:
            CannotDriveError: The build has no such speculator.
        """
        module, class_name = DRAFTERS[name]
        found = getattr(_module(module), class_name, None)
        if found is None or not hasattr(found, "_generate_draft"):
            raise CannotDriveError(f"this build has no {module}.{class_name}._generate_draft")
        self._prepare = _function(_DFLASH, "prepare_dflash_inputs", ("input_buffers",))
        self._num_slots = num_slots
        self._queries = 1 + chain.depth
        self._speculator = object.__new__(found)
        attributes = _attributes(chain, num_slots)
        attributes["model"] = _Model(chain)
        attributes["_run_model"] = self._hidden_states
        for attribute, value in attributes.items():
            setattr(self._speculator, attribute, value)
        self._speculator.draft_logits = None
        if probabilistic:
            config = SimpleNamespace(model_config=SimpleNamespace(head_dtype=torch.float32))
            kind, fill = self._speculator.draft_logits_spec(config)
            shape = (num_slots, chain.depth, chain.vocabulary)
            self._speculator.draft_logits = torch.full(shape, fill, dtype=kind)
        self._add_candidate_sampler(module, chain)

    @property
    def draft_logits(self) -> Tensor | None:
        """[num_slots, K, V], before temperature; None for greedy drafts."""
        return self._speculator.draft_logits

    def draft(self, batch: Batch, num_sampled: Tensor, slots: Slots) -> Tensor:
        """Return the next drafts of a step's requests, [num_requests, K].

        Args:
            batch: The step that was sampled.
            num_sampled: [num_requests] int32, tokens that it emitted of each request.
            slots: With the last of those tokens.

        Raises:
            CannotDriveError: The build's speculator is made of other parts than those known.
        """
        self._prepare(**self._prepare_arguments(batch, num_sampled, slots))
        count = len(batch.slots)
        try:
            self._speculator._generate_draft(count, count * self._queries, None, None, None)  # noqa: SLF001
        except AttributeError as fault:
            raise CannotDriveError(f"its speculator needs more than is known: {fault}") from fault
        return self._speculator.draft_tokens[:count].clone()

    def _add_candidate_sampler(self, module: str, chain: Chain) -> None:
        """Where the walk over candidates is an object of its own, as in 0.32, make it."""
        sampler = getattr(_module(module), "CandidateSampler", None)
        if sampler is not None:
            self._speculator.candidate_sampler = sampler(
                self._num_slots, chain.depth, chain.candidates.shape[2], torch.device("cpu")
            )

    def _hidden_states(self, num_tokens: int, *_: Any) -> Tensor:
        """Stand in for the network: of every query its anchor's token and its own offset."""
        anchors = self._speculator.input_buffers.input_ids[: num_tokens : self._queries].long()
        anchors = anchors.repeat_interleave(self._queries)
        return torch.stack([anchors, torch.arange(num_tokens) % self._queries], dim=1)

    def _prepare_arguments(self, batch: Batch, num_sampled: Tensor, slots: Slots) -> dict[str, Any]:
        own = self._speculator
        values = {
            "input_buffers": own.input_buffers,
            "query_slot_mapping": own.query_slot_mapping,
            "context_positions": own.context_positions,
            "context_slot_mapping": own.context_slot_mapping,
            "sample_indices": own.sample_indices,
            "sample_pos": own.sample_pos,
            "sample_idx_mapping": own.sample_idx_mapping,
            "temperature": own.temperature,
            "seeds": own.seeds,
            "input_batch": SimpleNamespace(
                num_reqs=len(batch.slots),
                num_scheduled_tokens=batch.num_rows,
                positions=batch.positions,
                query_start_loc=batch.starts,
                idx_mapping=batch.slots,
            ),
            "num_sampled": num_sampled,
            "num_rejected": torch.from_numpy(batch.num_rows) - num_sampled,
            "last_sampled": slots.last_sampled,
            "next_prefill_tokens": torch.zeros(self._num_slots, dtype=torch.int32),
            "input_temperature": slots.temperature,
            "input_seeds": slots.seeds,
            "block_table": own.block_table,
            "block_size": _BLOCK_SIZE,
            # Of context parallelism, off here.
            "cp_rank": 0,
            "cp_size": 1,
            "cp_interleave": 1,
            "parallel_drafting_token_id": own.parallel_drafting_token_id,
            "num_query_per_req": self._queries,
            "num_speculative_steps": own.num_speculative_steps,
            # How far buffers are padded for CUDA graphs: not at all.
            "max_num_reqs": len(batch.slots),
            "max_num_tokens": len(batch.slots) * self._queries,
            "max_model_len": _MAX_LENGTH,
            "sample_from_anchor": False,
        }
        wanted = inspect.signature(self._prepare).parameters.values()
        strange = [p.name for p in wanted if p.name not in values and p.default is p.empty]
        if strange:
            raise CannotDriveError(f"prepare_dflash_inputs takes {', '.join(strange)}")
        return {p.name: values[p.name] for p in wanted if p.name in values}


class _Model:
    """The draft's network: what speculators ask of it, answered from the chain."""

    def __init__(self, chain: Chain) -> None:
        self._candidates = torch.from_numpy(chain.candidates)
        self._scores = torch.from_numpy(chain.scores)
        self._logits = torch.from_numpy(chain.position_logits)
        self.model = SimpleNamespace(candidate_selector=self.candidate_selector)

    def compute_candidates(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        anchor, offset = hidden_states.unbind(1)
        found = self._candidates[anchor, offset - 1]
        return found, torch.zeros(found.shape)

    def candidate_selector(
        self, candidates: Tensor, unary: Tensor, hidden_states: Tensor, anchors: Tensor
    ) -> Tensor:
        del candidates, unary, hidden_states  # the anchor decides all of them
        return self._scores[anchors.long()]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        anchor, offset = hidden_states.unbind(1)
        return self._logits[anchor, offset - 1]


def _attributes(chain: Chain, num_slots: int) -> dict[str, Any]:
    """Return what the constructors of the builds' speculators set and their sampling reads."""
    depth, num_candidates = chain.depth, chain.candidates.shape[2]
    num_tokens, num_samples = num_slots * (depth + 1), num_slots * depth
    return {
        "num_speculative_steps": depth,
        "num_query_per_req": depth + 1,
        "max_num_reqs": num_slots,
        "max_num_tokens": num_tokens,
        "parallel_drafting_token_id": chain.vocabulary,
        "use_fp64_gumbel": False,
        "use_local_argmax_reduction": False,
        "enable_adaptive_verification": False,
        "acceptance_estimator": None,
        "draft_watermarker": None,
        "input_buffers": SimpleNamespace(
            input_ids=torch.zeros(num_tokens, dtype=torch.int32),
            positions=_integers(num_tokens),
            is_padding=torch.zeros(num_tokens, dtype=torch.bool),
            query_start_loc=torch.zeros(num_slots + 1, dtype=torch.int32),
            seq_lens=torch.zeros(num_slots, dtype=torch.int32),
        ),
        "query_slot_mapping": _integers(num_tokens),
        "context_positions": _integers(num_tokens),
        "context_slot_mapping": _integers(num_tokens),
        # One block for every position: no attention reads what lies in it.
        "block_table": torch.ones((num_slots, 1), dtype=torch.int32),
        "temperature": torch.zeros(num_slots),
        "seeds": _integers(num_slots),
        "draft_tokens": _integers(num_slots, depth),
        "sample_indices": _integers(num_samples),
        "sample_pos": _integers(num_samples),
        "sample_idx_mapping": _integers(num_samples) - 1,
        "sample_col": torch.arange(depth, dtype=torch.int32).repeat(num_slots),
        "selector_top_k": num_candidates,
        "top_k": num_candidates,
        "_anchor_indices": torch.arange(num_slots) * (depth + 1),
        "_selector_scores": torch.empty((num_slots, depth, num_candidates)),
        "_cached_candidate_ids": _integers(num_slots, depth, num_candidates),
    }


def _integers(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as fault:
        raise CannotDriveError(f"{name} does not import here: {fault}") from fault


def _function(module: str, name: str, leading: tuple[str, ...]) -> Callable[..., Any]:
    found = getattr(_module(module), name, None)
    if found is None:
        raise CannotDriveError(f"this build has no {module}.{name}")
    fault = signature_fault(found, leading, None)
    if fault is not None:
        raise CannotDriveError(f"{module}.{name} {fault}")
    return found
