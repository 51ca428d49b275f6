"""The engine of a study's configuration, and the other builds of it that the study compares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from orchestrator.config_places import require, require_seconds
from orchestrator.core.secrecy import require_no_secret
from serve_apps.engine.spec import argument_fault, variable_fault

_BUILD = re.compile(r"\d+\.\d+\.\d+(\+[a-zA-Z0-9]+([._-][a-zA-Z0-9]+)*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """Another build of the engine; what it does not state is as in ``engine``."""

    build: str
    """Version of vLLM, with a name of your own where a study has two of one version:
    ``0.32.0+patched``. The version is what must answer, the name only tells them apart."""
    python: str | None = None
    """Interpreter of the build's environment."""
    launcher: str | None = None
    model_runner: Literal["v2", "v1"] | None = None
    env: dict[str, str] = field(default_factory=dict)
    """Over the variables of ``engine.env``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The engine build and the arguments that all arms have in common."""

    build: str
    """Version of the engine build, for example ``0.32.0``, or with a name as ``0.32.0+patched``."""
    platform: Literal["cuda", "cpu"]
    model_runner: Literal["v2", "v1"] = "v2"
    """Runner that the build uses on this platform; V1 has neither DFlash2 nor ``block``."""
    python: str | None = None
    """Interpreter of the build's environment; None is the one that runs specpilot."""
    launcher: str = "vllm.entrypoints.cli.main"
    """Module that behaves like the ``vllm`` command."""
    builds: list[BuildConfig] = field(default_factory=list)
    """Other builds that the study compares with this one: each gets the same arms."""
    served_model_name: str = "specpilot"
    """Name under which clients know the model; production never changes it."""
    args: dict[str, Any] = field(default_factory=dict)
    """Engine arguments by vLLM's names with underscores, for example ``max_model_len``."""
    env: dict[str, str] = field(default_factory=dict)
    boot_timeout_s: float = 1200.0
    boot_silence_s: float = 900.0
    """How long the log of a boot may stand still before the boot is given up as stalled; kernels
    compile for minutes without a line."""
    stop_timeout_s: float = 30.0
    expected_boot_s: float = 420.0
    """What a boot is known to take, for plans and for the first estimate of the time left."""

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ConfigError: A value is out of range, a key is specpilot's own, or two builds are one.
        """
        for name in ("boot_timeout_s", "boot_silence_s", "stop_timeout_s", "expected_boot_s"):
            require_seconds(f"engine.{name}", getattr(self, name))
        _check_build("engine", self.build, self.env)
        for key, value in self.args.items():
            fault = argument_fault(str(key), value)
            require(fault is None, f"engine.args.{key}", str(fault), "remove or correct it")
        require_no_secret("engine.args", self.args)
        for index, other in enumerate(self.builds):
            _check_build(f"engine.builds[{index}]", other.build, other.env)
        self._check_apart()

    def _check_apart(self) -> None:
        """Check that no two builds have one name or are one engine."""
        seen: dict[str, tuple[object, ...]] = {self.build: (self.python, self.launcher, self.env)}
        for index, other in enumerate(self.builds):
            where = f"engine.builds[{index}]"
            require(
                other.build not in seen,
                f"{where}.build",
                f"{other.build} stands there twice",
                f"give each build a name of its own, as in {other.build}+patched",
            )
            engine = (
                other.python or self.python,
                other.launcher or self.launcher,
                {**self.env, **other.env},
            )
            same = next((build for build, known in seen.items() if known == engine), None)
            require(
                same is None,
                where,
                f"{other.build} would boot the same engine as {same}",
                "give the python of its environment, or a launcher or env of its own",
            )
            seen[other.build] = engine

    @property
    def build_names(self) -> tuple[str, ...]:
        """All builds of the study, ``build`` first."""
        return (self.build, *(other.build for other in self.builds))

    def of(self, build: str) -> EngineConfig:
        """Return the engine of one of the builds alone."""
        alone = replace(self, builds=[])
        if build == self.build:
            return alone
        (other,) = (item for item in self.builds if item.build == build)
        return replace(
            alone,
            build=build,
            python=other.python or self.python,
            launcher=other.launcher or self.launcher,
            model_runner=other.model_runner or self.model_runner,
            env={**self.env, **other.env},
        )


def _check_build(where: str, build: str, env: Mapping[str, object]) -> None:
    require(
        bool(_BUILD.fullmatch(build)),
        f"{where}.build",
        f"'{build}' is not a version of vLLM",
        "write it as in 0.32.0, with a name of your own as in 0.32.0+patched",
    )
    require_no_secret(f"{where}.env", env)
    for key, value in env.items():
        text = f"{value!r} is not a text"
        require(isinstance(value, str), f"{where}.env.{key}", text, "give a text")
        fault = variable_fault(str(key), value)
        require(fault is None, f"{where}.env.{key}", str(fault), "remove or correct it")
