"""The fingerprint of a trial: everything that a number of it depends on, in one comparable record.

It holds digests instead of contents, no path, no time and no secret. What could not be found out is
None and differs from everything that could.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields

from orchestrator.core.engine_config import reduced_arguments, reduced_config
from orchestrator.core.identity import canonical, sha256_of
from orchestrator.core.node_state import NodeState
from orchestrator.core.secrecy import scrub
from orchestrator.core.types import EngineFacts
from orchestrator.errors import ConfigError

_SHOWN = 80
_ABSENT = object()

# What `build` says of the machine; the rest of it is of the engine.
_PLATFORM = ("driver", "kernel", "machine", "gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDigests:
    """Digests of the contents of model folders; None where there is no such thing."""

    target: str
    draft: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    generation_config: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInputs:
    """What a study has every boot do; the arm is told by the engine."""

    engine_args: Mapping[str, object]
    """As the study states them, with digests in place of the files that ``CONTENTS`` name."""
    models: ModelDigests
    """Of the folders on the trial's own node: a copy elsewhere may be another."""
    workload_digest: str
    sampling: Mapping[str, object]
    """What every request carries: temperatures, top_p, top_k, max_tokens, ignore_eos, ..."""
    specpilot_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a trial ran on and with, by section; plain JSON data throughout."""

    engine: Mapping[str, object]
    """Version, runner, launcher, digest of the wheel or image, packages, CUDA, Python."""
    arguments: Mapping[str, object]
    """What was asked of the engine; see ``engine_config.reduced_arguments``."""
    speculation: Mapping[str, object]
    """The arm, as the engine says it is in force."""
    resolved_config: Mapping[str, object]
    """What the engine made of its arguments; see ``engine_config.reduced_config``."""
    models: Mapping[str, object]
    """``ModelDigests``, and whether code from the folders may run."""
    load: Mapping[str, object]
    """Digest of the workload, sampling, version of specpilot."""
    environment: Mapping[str, object]
    """Variables of the engine that change graphs or kernels."""
    platform: Mapping[str, object]
    """Kind of node, driver, kernel, architecture, GPUs."""
    node: Mapping[str, object]
    """Which node of that kind: id and hostname."""

    @property
    def digest(self) -> str:
        """SHA-256 over everything, 64 hex digits."""
        return sha256_of(self.to_dict())

    @property
    def sections(self) -> dict[str, str]:
        """SHA-256 of each section by its name; ``core.comparable`` says which must agree."""
        return {name: sha256_of(section) for name, section in self.to_dict().items()}

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON types."""
        return {item.name: dict(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Fingerprint:
        """Return the fingerprint of ``to_dict``.

        Raises:
            ConfigError: A section is missing or unknown: another version wrote the record.
        """
        names = {item.name for item in fields(cls)}
        if set(data) != names or not all(isinstance(data[name], Mapping) for name in names):
            odd = ", ".join(sorted(set(data) ^ names)) or "a section is no mapping"
            raise ConfigError(
                "fingerprint", f"missing or unknown: {odd}", "measure again with this version"
            )
        return cls(**dict(data))  # type: ignore[arg-type]  # all are mappings


def trial_fingerprint(facts: EngineFacts, node: NodeState, inputs: StudyInputs) -> Fingerprint:
    """Return the fingerprint of one boot.

    Args:
        facts: What the engine says, with its whole ``resolved_config`` and ``build``.
        node: State of the node that the engine runs on, at any moment.
        inputs: What the study has the boot do.
    """
    build = {name: facts.build[name] for name in facts.build if name != "environment"}
    return Fingerprint(
        engine=_clean(
            {
                "version": facts.engine_version,
                "model_runner": facts.model_runner,
                "max_model_len": facts.max_model_len,
                **{name: value for name, value in build.items() if name not in _PLATFORM},
            }
        ),
        arguments=reduced_arguments(inputs.engine_args),
        speculation={
            "num_speculative_tokens": facts.num_speculative_tokens,
            "draft_sample_method": facts.draft_sample_method,
            "rejection_sample_method": facts.rejection_sample_method,
            "draft_architecture": facts.draft_architecture,
        },
        resolved_config=reduced_config(facts.resolved_config),
        models={
            **asdict(inputs.models),
            "trust_remote_code": _trusts_remote_code(facts, inputs.engine_args),
        },
        load=_clean(
            {
                "workload": inputs.workload_digest,
                "sampling": dict(inputs.sampling),
                "specpilot": inputs.specpilot_version,
            }
        ),
        environment=_clean(facts.build.get("environment") or {}),
        platform=_clean({"kind": node.kind, **{name: build.get(name) for name in _PLATFORM}}),
        node={"node_id": node.node_id, "hostname": node.hostname},
    )


def differences(a: Fingerprint, b: Fingerprint) -> tuple[str, ...]:
    """Return one sentence for each thing that differs, by section and name.

    Args:
        a: The earlier one.
        b: The later one.
    """
    found: list[str] = []
    for section, before in a.to_dict().items():
        old, new = dict(_leaves(before)), dict(_leaves(b.to_dict()[section]))
        for path in sorted({*old, *new}):
            was, now = old.get(path, _ABSENT), new.get(path, _ABSENT)
            if _shape(was) != _shape(now):
                found.append(f"{section}{path} was {_shown(was)} and is {_shown(now)}")
    return tuple(found)


def _clean(data: object) -> dict[str, object]:
    plain = scrub(data)
    return dict(plain) if isinstance(plain, Mapping) else {}


def _trusts_remote_code(facts: EngineFacts, engine_args: Mapping[str, object]) -> bool:
    model = facts.resolved_config.get("model_config")
    if isinstance(model, Mapping) and "trust_remote_code" in model:
        return bool(model["trust_remote_code"])
    return reduced_arguments(engine_args).get("trust_remote_code") is True


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted paths, each with a dot in front, and what stands there; lists are leaves."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}")
    else:
        yield path, value


def _shape(value: object) -> str | None:
    return None if value is _ABSENT else canonical(value)


def _shown(value: object) -> str:
    if value is _ABSENT:
        return "not there"
    if value is None:
        return "none"
    text = value if isinstance(value, str) else canonical(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
