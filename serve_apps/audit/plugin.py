"""The `vllm.general_plugins` entry point of the audit: inert unless a folder is named.

With `SPECPILOT_AUDIT_DIR=<folder>` the process that loads vLLM's V2 model runner attaches the audit
to its sampling and writes `audit-<pid>.rows` there (`records`), and beside it `audit-<pid>.json`,
which says whether it attached and if not, why. A process that never loads that runner writes
nothing: the audit does not know the older runner's sampling.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

AUDIT_DIR_VARIABLE = "SPECPILOT_AUDIT_DIR"
LIMIT_ROWS_VARIABLE = "SPECPILOT_AUDIT_LIMIT_ROWS"
RUNNER_MODULE = "vllm.v1.worker.gpu.model_runner"


def register() -> None:
    """Attach the audit when the engine loads its model runner; do nothing without a folder."""
    folder = os.environ.get(AUDIT_DIR_VARIABLE)
    if not folder:
        return
    limit = os.environ.get(LIMIT_ROWS_VARIABLE)

    def attach(_: ModuleType) -> None:
        from serve_apps.audit import attach  # noqa: PLC0415  # torch and vLLM, in this boot only

        attach.attach(Path(folder), limit_rows=None if limit is None else int(limit))

    after_import(RUNNER_MODULE, attach)


def after_import(name: str, call: Callable[[ModuleType], None]) -> None:
    """Call with a module as soon as it is imported, at once where it already is.

    Importing it here instead would load the runner in processes that never run it.
    """
    module = sys.modules.get(name)
    if module is not None:
        call(module)
    elif not any(isinstance(f, _Finder) and f.name == name for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would, once, and has its import followed by a call."""

    def __init__(self, name: str, call: Callable[[ModuleType], None]) -> None:
        self.name = name
        self._call = call

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  # the protocol's
        target: ModuleType | None = None,  # noqa: ARG002  # the protocol's
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's spec with a loader that calls back; None for other modules."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._call)
        return spec


class _Loader(importlib.abc.Loader):
    """Another loader, followed by a call."""

    def __init__(self, loader: importlib.abc.Loader, call: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._call = call

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._call(module)
