"""Which conclusion depends on which premise: a table, with a reason in every place.

A changed premise makes exactly the conclusions stale that stand on it. What is in doubt counts as
depending: a conclusion that is asked again for nothing costs boots, one that is believed for
nothing costs clients. Four places are less plain than they look.

- Losslessness depends on the kind of node and not on the workload or the load's sampling. The rules
  are the same everywhere, but what computes the probabilities is not: other kernels, another
  sampler. The proof has prompts of its own, samples at temperature 1 with nothing cut off whatever
  the load does, and bets on each token's own distribution, whatever the context.
- KV capacity does not depend on the draft rule or the rejection rule: the same weights and layers
  are loaded for all of them. It depends on the depth, by which the engine's steps grow.
- The version of specpilot counts where its own instruments made the number: load, window, estimate,
  tests, judges. What the engine says of itself, and how long a boot took, it only reads.
- A rule's effect does not depend on that rule, which is what is compared, but on the other one and
  on the depth: two keys may each lose alone and win together, and move the best depth.

The last three premises are the arm's own keys. They change where the study's space has no arm with
the value that was served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Conclusion(StrEnum):
    """What a study concludes of the arm that it chose."""

    SPEED = "speed"
    DRAFT_RULE = "draft_rule"
    REJECTION_RULE = "rejection_rule"
    KV = "kv"
    LOSSLESS = "lossless"
    ANSWERS = "answers"
    PROMISE = "promise"
    OUTAGE = "outage"


MEANING = {
    Conclusion.SPEED: "which arm is fastest in each cell, and at which depth",
    Conclusion.DRAFT_RULE: "what one draft rule gains over another",
    Conclusion.REJECTION_RULE: "what one rejection rule gains over another",
    Conclusion.KV: "how many tokens and requests the KV cache holds",
    Conclusion.LOSSLESS: "that the output follows the target's distribution",
    Conclusion.ANSWERS: "canaries and scored tasks beside the control",
    Conclusion.PROMISE: "step time and acceptance that production is held to",
    Conclusion.OUTAGE: "how long a boot takes, and with it an outage",
}


@dataclass(frozen=True, slots=True)
class Link:
    """One place of the table."""

    depends: bool
    reason: str


def _on(reason: str) -> Link:
    return Link(depends=True, reason=reason)


def _not(reason: str) -> Link:
    return Link(depends=False, reason=reason)


_MEASURED = {
    "engine_build": _on("builds draft, verify and step differently"),
    "engine_args_digest": _on("batch limits, graphs and cache types change the steps"),
    "target_digest": _on("its size makes the step, its distribution what is accepted"),
    "draft_digest": _on("what is accepted is how well draft and target agree"),
    "remote_code": _on("the model's own code takes the place of vLLM's in every step"),
    "node_kind": _on("step times are those of the board"),
    "workload_digest": _on("other texts are drafted better or worse"),
    "sampling": _on("what is cut off from the distributions changes how often they agree"),
    "step_time": _on("measured and modelled times are two different claims"),
    "board_model": _on("modelled times are made of its coefficients"),
    "specpilot_version": _on("load, window and estimate are its own"),
}
"""Of everything that is a speed."""

TABLE: Mapping[Conclusion, Mapping[str, Link]] = {
    Conclusion.SPEED: {
        **_MEASURED,
        "num_speculative_tokens": _not("depths are what is ranked"),
        "draft_sample_method": _on("the best depth moves with the draft rule"),
        "rejection_sample_method": _on("the best depth moves with the rejection rule"),
    },
    Conclusion.DRAFT_RULE: {
        **_MEASURED,
        "num_speculative_tokens": _on("its gain differs by depth"),
        "draft_sample_method": _not("draft rules are what is compared"),
        "rejection_sample_method": _on("its gain is another under another rejection rule"),
    },
    Conclusion.REJECTION_RULE: {
        **_MEASURED,
        "num_speculative_tokens": _on("its gain differs by depth"),
        "draft_sample_method": _on("its gain is another under another draft rule"),
        "rejection_sample_method": _not("rejection rules are what is compared"),
    },
    Conclusion.KV: {
        "engine_build": _on("each build plans its memory in its own way"),
        "engine_args_digest": _on("they state the memory, the cache's type and the context"),
        "target_digest": _on("its weights leave the rest, and its layers fill it"),
        "draft_digest": _on("its weights and layers take their share"),
        "remote_code": _on("the model's own code lays out its layers and their cache"),
        "node_kind": _on("the memory is the board's"),
        "workload_digest": _not("the cache is laid out before the first request"),
        "sampling": _not("the cache is laid out before the first request"),
        "step_time": _not("it is no time"),
        "board_model": _not("it is no time, and the engine itself says it"),
        "specpilot_version": _not("the engine itself says it"),
        "num_speculative_tokens": _on("deeper steps take larger buffers and graphs"),
        "draft_sample_method": _not("both draft rules load the same weights and layers"),
        "rejection_sample_method": _not("all rejection rules load the same weights and layers"),
    },
    Conclusion.LOSSLESS: {
        "engine_build": _on("a rule can be right in one build and wrong in the next"),
        "engine_args_digest": _on("types, kernels and batching change the probabilities"),
        "target_digest": _on("its distribution is what the output must follow"),
        "draft_digest": _on("a wrong rule shows where draft and target disagree"),
        "remote_code": _on("the model's own code computes the probabilities"),
        "node_kind": _on("another kind has other kernels and another sampler"),
        "workload_digest": _not("the proof has prompts of its own, and bets hold in any context"),
        "sampling": _not("the proof samples at temperature 1 with nothing cut off"),
        "step_time": _not("nothing is timed in a proof boot"),
        "board_model": _not("nothing is timed in a proof boot"),
        "specpilot_version": _on("the text test and the audit are its own"),
        "num_speculative_tokens": _on("positions that were not drafted were not seen"),
        "draft_sample_method": _on("it decides with what the drafts are verified"),
        "rejection_sample_method": _on("it decides what is emitted"),
    },
    Conclusion.ANSWERS: {
        "engine_build": _on("each build has its own parsers and kernels"),
        "engine_args_digest": _on("they name parsers, template and context"),
        "target_digest": _on("the answers are the target's"),
        "draft_digest": _on("they were asked with this draft beside the target"),
        "remote_code": _on("the model's own code makes the answers"),
        "node_kind": _on("another kind rounds differently, and an answer may turn on it"),
        "workload_digest": _not("canaries and tasks bring their own prompts"),
        "sampling": _not("they are asked at temperature 0, whatever the load does"),
        "step_time": _not("nothing is timed in a proof boot"),
        "board_model": _not("nothing is timed in a proof boot"),
        "specpilot_version": _on("questions and judges come with it"),
        "num_speculative_tokens": _on("they were asked at this depth"),
        "draft_sample_method": _on("they were asked under this draft rule"),
        "rejection_sample_method": _on("it decides what is emitted"),
    },
    Conclusion.PROMISE: {
        **_MEASURED,
        "num_speculative_tokens": _on("the depth makes step and acceptance"),
        "draft_sample_method": _on("the draft rule makes step and acceptance"),
        "rejection_sample_method": _on("the rejection rule makes the acceptance"),
    },
    Conclusion.OUTAGE: {
        "engine_build": _on("builds compile and capture in their own time"),
        "engine_args_digest": _on("they say what is compiled and captured"),
        "target_digest": _on("its weights are loaded"),
        "draft_digest": _on("its weights are loaded"),
        "remote_code": _on("the model's own code is loaded and compiled"),
        "node_kind": _on("disk, processor and board make the time"),
        "workload_digest": _not("a boot ends with one short completion"),
        "sampling": _not("a boot ends with one short completion"),
        "step_time": _not("boots are timed whatever the steps' source"),
        "board_model": _not("boots are timed whatever the steps' source"),
        "specpilot_version": _not("it is the engine that takes the time"),
        "num_speculative_tokens": _on("larger steps are captured"),
        "draft_sample_method": _not("both draft rules load the same weights"),
        "rejection_sample_method": _not("all rejection rules load the same weights"),
    },
}
"""By conclusion and premise."""

OWN = (
    *(Conclusion.KV, Conclusion.LOSSLESS, Conclusion.ANSWERS, Conclusion.PROMISE),
    Conclusion.OUTAGE,
)
"""Conclusions about the arm alone. Without speculation it has no draft that could change; the
others compare it with arms that have one."""
