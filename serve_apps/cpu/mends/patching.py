"""Patching once: the interpreter patches the whole language module at every nested call.

It also copies every argument to the host and back, and works out signatures again at every
launch. On a CPU the copies are of the tensor to itself; the rest never changes.
"""

from typing import Any


class _NoRestore:
    """Stands for a patch scope of which nothing is undone."""

    def restore(self) -> None:
        """Keep the language patched: this process interprets every kernel."""


def apply(interpreter: Any) -> None:
    """Patch the language for good and make launches and nested calls cheap."""
    _patch_language(interpreter)
    scope = _NoRestore()
    interpreter._patch_lang = lambda fn: scope  # noqa: SLF001, ARG005
    interpreter.InterpretedFunction.__call__ = _nested_call


def _patch_language(interpreter: Any) -> None:
    tl = interpreter.tl
    scope = interpreter._LangPatchScope()  # noqa: SLF001
    builder = interpreter.interpreter_builder
    for module in (tl.core, tl):
        interpreter._patch_builtin(module, builder, scope)  # noqa: SLF001
        interpreter._patch_lang_core(module, scope)  # noqa: SLF001
    interpreter._patch_builtin(tl.tensor, builder, scope)  # noqa: SLF001
    interpreter._patch_builtin(tl.math, builder, scope)  # noqa: SLF001
    interpreter._patch_lang_tensor(tl.tensor, scope)  # noqa: SLF001
    interpreter._patch_builtin(tl.core.tensor_descriptor_base, builder, scope)  # noqa: SLF001


def _nested_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.rewrite()(*args, **kwargs)
