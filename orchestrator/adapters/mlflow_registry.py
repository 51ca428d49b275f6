"""MLflow as registry of serving configurations."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from orchestrator.adapters.mlflow_client import make_client, translated
from orchestrator.adapters.mlflow_names import legal_key, quoted
from orchestrator.core.secrecy import redact_text, require_no_secret
from orchestrator.errors import ConfigError
from orchestrator.ports import Version

MAX_VERSION = 2**31
"""Versions are 32-bit numbers in MLflow's own tables."""


class MlflowRegistry:
    """Registered serving configurations; implements ``ports.Registry``.

    Args:
        uri: Address that ``check`` returned.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._client = make_client(uri)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address only."""
        return MlflowRegistry, (self._uri,)

    def create_version(
        self, model_name: str, run_id: str, config: Mapping[str, object], tags: Mapping[str, str]
    ) -> Version:
        """Register one configuration with its evidence.

        The configuration is an artifact of the run, in a folder named by its digest: two versions
        from one run never share a file.

        Raises:
            ConfigError: There is a secret in it: without it production would serve something
                else, and with it everybody who reads the registry would know it.
        """
        require_no_secret("the serving configuration", config)
        text = json.dumps(config, indent=2, sort_keys=True)
        folder = f"serving_config/{sha256(text.encode()).hexdigest()[:16]}"
        with translated():
            self._client.log_text(run_id, text, f"{folder}/config.json")
            self._ensure_model(model_name)
            created = self._client.create_model_version(
                model_name,
                source=f"runs:/{run_id}/{folder}",
                run_id=run_id,
                tags={legal_key(key): redact_text(value) for key, value in tags.items()},
            )
            return self._version(created)

    def by_alias(self, model_name: str, alias: str) -> Version | None:
        """Return the version that the alias names, or None."""
        with translated():
            try:
                found = self._client.get_model_version_by_alias(model_name, alias)
            except MlflowException as error:
                _ignore_missing(error)
                return None
            return self._version(found)

    def by_number(self, model_name: str, version: int) -> Version | None:
        """Return one version, or None."""
        if not 0 < version < MAX_VERSION:
            return None  # a store that counts in fewer bits than the number has would complain
        with translated():
            try:
                found = self._client.get_model_version(model_name, str(version))
            except MlflowException as error:
                _ignore_missing(error)
                return None
            return self._version(found)

    def find(self, model_name: str, tags: Mapping[str, str]) -> Version | None:
        """Return the newest version that has all these tags, or None."""
        token: str | None = None
        with translated():
            while True:
                page = self._client.search_model_versions(
                    f"name={quoted(model_name)}", order_by=["version_number DESC"], page_token=token
                )
                for found in page:
                    if tags.items() <= found.tags.items():
                        return self._version(found)
                token = page.token
                if not token:
                    return None

    def set_alias(self, model_name: str, alias: str, version: int) -> None:
        """Point the alias to a version, in one atomic call."""
        with translated():
            self._client.set_registered_model_alias(model_name, alias, str(version))

    def delete_alias(self, model_name: str, alias: str) -> None:
        """Remove the alias; no error when it does not exist."""
        with translated():
            try:
                self._client.delete_registered_model_alias(model_name, alias)
            except MlflowException as error:
                _ignore_missing(error)

    def set_tag(self, model_name: str, version: int, key: str, value: str) -> None:
        """Set one tag of a version."""
        with translated():
            self._client.set_model_version_tag(model_name, str(version), key, redact_text(value))

    def _ensure_model(self, name: str) -> None:
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _version(self, found: ModelVersion) -> Version:
        match = re.fullmatch(r"runs:/([0-9a-f]+)/(.+)", found.source or "")
        if match is None or ".." in match[2].split("/") or match[2].startswith("/"):
            raise ConfigError(
                f"{found.name} version {found.version}",
                f"its source '{found.source}' is no serving configuration",
                "remove the alias from it or register the configuration by a study",
            )
        with tempfile.TemporaryDirectory() as folder:
            name = f"{match[2]}/config.json"
            path = self._fetched(found, match[1], name, folder)
            if not path.is_relative_to(Path(folder).resolve()):
                raise ConfigError(
                    f"{found.name} version {found.version}",
                    f"its {name} is a link that leads out of its folder",
                    "put the file itself there",
                )
            config = _serving_config(path, found)
        return Version(
            model_name=found.name,
            version=int(found.version),
            config=config,
            tags=dict(found.tags),
            run_id=found.run_id,
        )

    def _fetched(self, found: ModelVersion, run_id: str, name: str, folder: str) -> Path:
        """Return where an artifact of the version's run was put.

        Raises:
            ConfigError: It was deleted, or its run was. The version is there all the same: who
                took it for none would end the engine that serves it.
        """
        try:
            return Path(self._client.download_artifacts(run_id, name, folder)).resolve()
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise ConfigError(
                f"version {found.version} of '{found.name}'",
                f"its config.json is gone from the artifacts of run {run_id}",
                "put the file back there, or remove the version if it is not the champion",
            ) from error


def _serving_config(path: Path, found: ModelVersion) -> dict[str, Any]:
    """Return the serving configuration in a file.

    Raises:
        ConfigError: The file is damaged.
    """
    try:
        config = json.loads(path.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("it holds no mapping")
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"version {found.version} of '{found.name}'",
            f"its config.json is damaged ({error})",
            f"put the file back into the artifacts of run {found.run_id}, or remove the version",
        ) from error
    return config


def _ignore_missing(error: MlflowException) -> None:
    # The SQL store calls a missing alias an invalid parameter.
    if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
        raise error
