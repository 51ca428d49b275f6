"""Names and digests that are the same wherever they are computed."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.types import Arm


def digest(mapping: Mapping[str, object]) -> str:
    """Return 16 hex digits that identify plain JSON data, whatever the order of its keys.

    Raises:
        ConfigError: A value is no JSON type.
    """
    raise NotImplementedError


def slug(text: str) -> str:
    """Return ``text`` in lower-case letters, digits and single dashes."""
    raise NotImplementedError


def study_id(name: str, mapping: Mapping[str, object]) -> str:
    """Return the id of a study: its name and the digest of what it asks, ``name-1a2b3c4d``."""
    raise NotImplementedError


def trial_name(study: str, arm: Arm, *, replicate: int) -> str:
    """Return the id of one boot, valid in app names, file names and MLflow tags.

    Args:
        study: Id of the study.
        arm: Arm of the boot.
        replicate: Number of the boot among the arm's, from 0.
    """
    raise NotImplementedError
