"""Each mend of Triton's interpreter, and lockstep against one program instance at a time.

Run by test_cpu_kernels.py in a process of its own, for the reasons given there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from serve_apps.cpu import plugin

plugin.mend()

import triton  # noqa: E402  # kernels after the mend
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from serve_apps.cpu.lockstep.tape import Untraceable  # noqa: E402
from serve_apps.cpu.mends import launching  # noqa: E402
from serve_apps.cpu.mends.bfloat16 import narrow, widen  # noqa: E402
from serve_apps.cpu.triton_backend import compiler as backend_compiler  # noqa: E402
from serve_apps.cpu.triton_backend import driver as backend_driver  # noqa: E402


@contextmanager
def serially(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run launches one program instance at a time."""

    def refuse(*_: Any) -> None:
        raise Untraceable("asked for")

    with monkeypatch.context() as patch:
        patch.setattr(launching, "launch", refuse)
        patch.setattr(launching, "report_serial", lambda *_: None)
        yield


def both_ways(monkeypatch: pytest.MonkeyPatch, run: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return a launch's result after checking that both executions agree bit by bit."""
    together = run()
    with serially(monkeypatch):
        apart = run()
    torch.testing.assert_close(together, apart, rtol=0, atol=0, equal_nan=True)
    return together


def test_integer_masks_act_as_booleans() -> None:
    source, target = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    pointer = tl.pointer_type(tl.float32)
    steps = 4 * np.arange(4, dtype=np.uint64)
    builder = interpreter.interpreter_builder
    mask = interpreter.TensorHandle(np.array([1, 0, 2, 0], np.int32), tl.int32)
    other = interpreter.TensorHandle(np.full(4, -1, np.float32), tl.float32)
    read = interpreter.TensorHandle(np.uint64(source.ctypes.data) + steps, pointer)
    write = interpreter.TensorHandle(np.uint64(target.ctypes.data) + steps, pointer)
    loaded = builder.create_masked_load(read, mask, other, None, False)
    assert loaded.data.tolist() == [0.0, -1.0, 2.0, -1.0]
    builder.create_masked_store(write, other, mask, None)
    assert target.tolist() == [-1.0, 0.0, -1.0, 0.0]


@triton.jit
def _libdevice_kernel(x_ptr, log_ptr, nan_ptr, N: tl.constexpr):  # noqa: N803
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(log_ptr + at, libdevice.log1p(x))
    tl.store(nan_ptr + at, libdevice.isnan(x).to(tl.int32))


def test_libdevice_functions_mean_something(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([-0.5, 0.0, 1e-7, float("nan")])
    nan = torch.zeros(4, dtype=torch.int32)

    def run() -> torch.Tensor:
        out = torch.zeros(4)
        _libdevice_kernel[(1,)](x, out, nan, N=4)
        return out

    torch.testing.assert_close(both_ways(monkeypatch, run), torch.log1p(x), equal_nan=True)
    assert nan.tolist() == [0, 0, 0, 1]


@triton.jit
def _brain_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):  # noqa: N803
    at = tl.arange(0, N)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(out_ptr + at, (x < y).to(tl.float32))
    tl.store(out_ptr + N + at, (x + y).to(tl.float32))
    tl.store(out_ptr + 2 * N + at, (x * y).to(tl.float32))
    tl.store(out_ptr + 3 * N + at, tl.maximum(x, y).to(tl.float32))
    tl.store(out_ptr + 4 * N + at, (-x).to(tl.float32))
    tl.store(out_ptr + 5 * N + at, (x.to(tl.float32) * 1.001).to(tl.bfloat16).to(tl.float32))
    tl.store(out_ptr + 6 * N + at, x.to(tl.int32).to(tl.bfloat16).to(tl.float32))


def test_bfloat16_computes_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    x = (5 * torch.randn(128, generator=generator)).to(torch.bfloat16)
    y = (5 * torch.randn(128, generator=generator)).to(torch.bfloat16)

    def run() -> torch.Tensor:
        out = torch.zeros(7, 128)
        _brain_kernel[(1,)](x, y, out, N=128)
        return out

    expected = torch.stack([
        (x < y).float(), (x + y).float(), (x * y).float(), torch.maximum(x, y).float(),
        (-x).float(), (x.float() * 1.001).to(torch.bfloat16).float(),
        x.int().to(torch.bfloat16).float(),
    ])  # fmt: skip
    torch.testing.assert_close(both_ways(monkeypatch, run), expected, rtol=0, atol=0)


def test_bfloat16_rounding_equals_torch() -> None:
    bits = np.random.default_rng(2).integers(0, 1 << 32, 20000, dtype=np.uint32)
    values = torch.from_numpy(bits.view(np.float32).copy())
    rounded = torch.from_numpy(widen(narrow(values.numpy())))
    torch.testing.assert_close(
        rounded, values.to(torch.bfloat16).float(), rtol=0, atol=0, equal_nan=True
    )


@triton.jit
def _inner(x, TIMES: tl.constexpr):  # noqa: N803
    for _ in tl.static_range(TIMES):
        x = x + 1
    return x


@triton.jit
def _diverging_kernel(n_ptr, out_ptr, count_ptr, limit, N: tl.constexpr):  # noqa: N803
    pid = tl.program_id(0)
    n = tl.load(n_ptr + pid)
    seen = tl.load(count_ptr + pid)
    tl.store(count_ptr + pid, seen + 1)
    if n < 0:
        return
    total = 0.0
    for i in range(n):
        if (i + pid) % 2 == 0:
            total += tl.sum((tl.arange(0, N) * i).to(tl.float32))
        else:
            total -= i
    for j in range(pid, n, 3):
        total += _inner(j, 2)
    if total > limit and pid != 2:
        total = -total
    tl.store(out_ptr + pid, total)


def test_lanes_that_part_give_the_same_as_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    for turn in range(12):
        n = torch.from_numpy(rng.integers(-1, 9, 11).astype(np.int32))

        def run(n: torch.Tensor = n, turn: int = turn) -> torch.Tensor:
            out, count = torch.full((11,), 0.5), torch.zeros(11, dtype=torch.int32)
            _diverging_kernel[(11,)](n, out, count, 40 * turn, N=8)
            assert count.tolist() == [1] * 11
            return out

        both_ways(monkeypatch, run)


@triton.jit
def _wide_kernel(x_ptr, out_ptr, where_ptr, size, N: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    at = tl.arange(0, N)
    mask = at < size
    x = tl.load(x_ptr + row * size + at, mask=mask, other=float("-inf"))
    top, _place = tl.max(x, axis=0, return_indices=True)
    shifted = tl.exp(x - top)
    tl.store(out_ptr + row * 4, top)
    tl.store(out_ptr + row * 4 + 1, tl.sum(shifted))
    tl.store(out_ptr + row * 4 + 2, tl.sum(shifted + 1.0))
    tl.store(out_ptr + row * 4 + 3, tl.min(tl.where(mask, x, 3.0), axis=0))
    tl.store(where_ptr + row * size + at, x + 1.0, mask=mask)
    low = tl.argmin(tl.where(mask, x, -9.0), axis=0)
    tl.store(out_ptr + row * 4 + 3, low, mask=row == 1)


@pytest.mark.parametrize("size", [3, 700, 1024, 4095])
def test_trimmed_blocks_give_the_same_as_whole_ones(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    x = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    x[3] = float("-inf")

    def run() -> torch.Tensor:
        out, where = torch.zeros(5, 4), torch.zeros(5, size)
        _wide_kernel[(5,)](x, out, where, size, N=4096)
        return torch.cat([out.flatten(), where.flatten()])

    both_ways(monkeypatch, run)


@triton.jit
def _atomic_kernel(counts_ptr, keys_ptr, seen_ptr):
    pid = tl.program_id(0)
    tl.store(seen_ptr, tl.load(seen_ptr) + 1)
    tl.atomic_add(counts_ptr + tl.load(keys_ptr + pid), 1)


def test_untraceable_kernel_runs_serially_and_once() -> None:
    keys = torch.tensor([0, 1, 1, 2, 1, 0])
    for turn in range(1, 4):
        counts = torch.zeros(3, dtype=torch.int32)
        seen = torch.tensor([10 * turn])
        _atomic_kernel[(6,)](counts, keys, seen)
        assert counts.tolist() == [2, 3, 1]
        assert seen.tolist() == [10 * turn + 6]


@triton.jit
def _value_kernel(x_ptr, out_ptr, step, N: tl.constexpr):  # noqa: N803
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * step)


def test_argument_that_changes_every_launch_stays_right() -> None:
    x = torch.arange(16)
    for step in (1, 2, 3, 1, 4, 5, 6, 1 << 40, 7, 1 << 40):
        out = torch.zeros(16, dtype=torch.int64)
        _value_kernel[(1,)](x, out, step, N=16)
        assert torch.equal(out, x * step)


def test_backend_is_active_only_when_interpreting_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert backend_driver.CpuDriver.is_active()
    assert triton.runtime.driver.active.get_current_target().backend == "cpu"
    with monkeypatch.context() as patch:
        patch.setattr(backend_driver, "_GPU_DEVICE_NODES", ("/dev/null",))
        assert not backend_driver.CpuDriver.is_active()
    monkeypatch.delenv("TRITON_INTERPRET")
    assert not backend_driver.CpuDriver.is_active()


def test_backend_never_compiles() -> None:
    backend = backend_compiler.CpuBackend(backend_driver.CpuDriver().get_current_target())
    with pytest.raises(NotImplementedError, match="TRITON_INTERPRET=1"):
        backend.parse_options({})


def test_mend_refuses_an_unknown_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "99.0.0")
    with pytest.raises(plugin.UnknownTritonError, match=r"99\.0\.0.*3\.9\.0"):
        plugin.mend()
