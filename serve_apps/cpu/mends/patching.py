"""Patching once: the interpreter patches the whole language module at every nested call.

It also copies every argument to the host and back, and works out signatures again at every
launch. On a CPU the copies are of the tensor to itself; the rest never changes.
"""

import inspect
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
    interpreter.GridExecutor.__call__ = _launcher(interpreter)
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


def _launcher(interpreter: Any) -> Any:
    parameters: dict[Any, Any] = {}

    def call(self: Any, *args_dev: Any, **kwargs: Any) -> None:
        spec = parameters.get(self.fn)
        if spec is None:
            spec = parameters[self.fn] = inspect.signature(self.fn)
        known = {name: value for name, value in kwargs.items() if name in spec.parameters}
        for hook in self.pre_run_hooks:
            hook(*args_dev, **known)
        bound = spec.bind(*args_dev, **known)
        bound.apply_defaults()
        convert = interpreter._implicit_cvt  # noqa: SLF001
        args = {
            name: value if name in self.constexprs else convert(value)
            for name, value in bound.arguments.items()
        }
        grid = self.grid(args) if callable(self.grid) else self.grid
        run_grid(interpreter, self.fn, args, tuple(grid))

    return call


def run_grid(interpreter: Any, fn: Any, args: dict[str, Any], grid: tuple[int, ...]) -> None:
    """Run every program instance of a launch, one after another.

    Args:
        interpreter: Triton's interpreter module.
        fn: The rewritten kernel.
        args: Its arguments, converted.
        grid: Up to three dimensions.
    """
    full = grid + (1,) * (3 - len(grid))
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(*full)
    for x in range(full[0]):
        for y in range(full[1]):
            for z in range(full[2]):
                builder.set_grid_idx(x, y, z)
                fn(**args)
