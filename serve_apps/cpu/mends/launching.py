"""Launching: in lockstep where a kernel allows it, else one program instance after another.

The stock executor copies every argument to the host and back and works out signatures again
at every launch. On a CPU the copies are of the tensor to itself; the rest never changes.
"""

import ast
from collections.abc import Callable
from typing import Any

from serve_apps.cpu.lockstep import language
from serve_apps.cpu.lockstep.launch import Kernel, launch, report_serial
from serve_apps.cpu.lockstep.tape import Untraceable

_RANGE = "specpilot_kernel_range"


def apply(interpreter: Any) -> None:
    """Replace the launch of an interpreted kernel."""
    language.apply()
    setattr(interpreter, _RANGE, language.kernel_range)
    interpreter.FunctionRewriter.ast_transformer = _transformer(interpreter)
    interpreter.InterpretedFunction.run = _runner(interpreter)


def _transformer(interpreter: Any) -> ast.NodeTransformer:
    class RangeTransformer(interpreter.ASTTransformer):  # type: ignore[misc]
        """Sends a kernel's `range` to the one that knows lanes."""

        def visit_Name(self, node: ast.Name) -> ast.AST:  # noqa: N802  # ast's name
            if node.id == "range" and isinstance(node.ctx, ast.Load):
                return ast.copy_location(ast.Name(id=_RANGE, ctx=ast.Load()), node)
            return node

    return RangeTransformer()


def _runner(interpreter: Any) -> Callable[..., None]:
    kernels: dict[Any, Kernel] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if warmup:
            return
        kernel = kernels.get(self.fn)
        if kernel is None:
            kernel = kernels[self.fn] = Kernel(self.fn, self.rewrite())
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        values = kernel.bind(args, kwargs)
        if callable(grid):
            grid = grid(dict(zip(kernel.names, values, strict=True)))
        grid = tuple(int(size) for size in grid)
        if not kernel.is_serial:
            try:
                launch(kernel, values, grid)
            except Untraceable as reason:
                report_serial(kernel, reason)
            else:
                return
        run_serially(interpreter, kernel, values, grid)

    return run


def run_serially(
    interpreter: Any, kernel: Kernel, values: list[Any], grid: tuple[int, ...]
) -> None:
    """Run every program instance of a launch, one after another.

    Args:
        interpreter: Triton's interpreter module.
        kernel: The kernel.
        values: One value per parameter.
        grid: Up to three dimensions.
    """
    convert = interpreter._implicit_cvt  # noqa: SLF001
    args = {
        argument.name: value if argument.is_constexpr else convert(value)
        for argument, value in zip(kernel.arguments, values, strict=True)
    }
    full = grid + (1,) * (3 - len(grid))
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(*full)
    for x in range(full[0]):
        for y in range(full[1]):
            for z in range(full[2]):
                builder.set_grid_idx(x, y, z)
                kernel.fn(**args)
