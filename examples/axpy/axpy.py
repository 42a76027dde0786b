"""y + k * x by kernels from many compilers: GLSL, HLSL, Slang, OpenCL C, WGSL and TVM.

Shows how the call differs with what a compiler leaves in its module: names, push constants or a uniform block, a work
group that is set by specialization. docs/writing-kernels.md explains each; the sources lie beside this file, with the
command that compiles them.

    python examples/axpy/axpy.py [--describe]

It uses your daemon, and starts one if none runs. `--describe` prints what is known of each kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import vkqueue

HERE = Path(__file__).parent
N, K = 1000, 2.0

Vector = np.ndarray[Any, np.dtype[Any]]
Way = Callable[[vkqueue.Kernel, Vector, Vector], Any]


def by_names(axpy: vkqueue.Kernel, x: Vector, y: Vector) -> Any:
    """All names are there, so even the buffers can be given by them. `elements` is rounded up to work groups."""
    return axpy(x=x, y=y, n=len(x), k=K, elements=len(x))


def uniform_block(axpy: vkqueue.Kernel, x: Vector, y: Vector) -> Any:
    """The scalars are a uniform block, which is an argument: a dict by the names of its members."""
    return axpy({"a": K, "n": len(x)}, x, y, elements=len(x))


def opencl(axpy: vkqueue.Kernel, x: Vector, y: Vector) -> Any:
    """clspv leaves no names, so scalars go by place; and the work group is specialization constants 0, 1, 2."""
    return axpy(x, y, scalars=[len(x), K], specialization={0: 64}, elements=len(x))


def naga(axpy: vkqueue.Kernel, x: Vector, y: Vector) -> Any:
    """A uniform block without names: its members are called by their places, here in a struct in the block."""
    return axpy(x, y, {"m0.m0": len(x), "m0.m1": K}, elements=len(x))


def tint(axpy: vkqueue.Kernel, x: Vector, y: Vector) -> Any:
    """Dawn makes vectors of uint32 out of uniform blocks. Bytes will do for any of them."""
    block = np.zeros(1, [("n", "u4"), ("a", "f4"), ("pad", "u4", 2)])
    block["n"], block["a"] = len(x), K
    return axpy(x, y, block.tobytes(), elements=len(x))


def tvm(axpy: vkqueue.Kernel, x: Vector, y: Vector) -> Any:
    """Buffers in the order of TVM's; one launch value for each of its thread axes (`grid` would do as well).

    This one is for 256 half floats, and 2 is in the kernel.
    """
    x, y = x[:256].astype("float16"), y[:256].astype("float16")
    return axpy(x, y, vkqueue.out(256, "float16"), launch=[2, 32])


WAYS: dict[str, Way] = {
    "axpy.spv": by_names,  # axpy.comp, by glslc
    "axpy_push.spv": by_names,  # axpy_push.hlsl, by glslangValidator
    "axpy_cbuffer.spv": uniform_block,  # axpy_cbuffer.hlsl, by dxc
    "axpy_slang.spv": by_names,  # axpy.slang
    "axpy_opencl.spv": opencl,  # axpy.cl, by clspv
    "axpy_naga.spv": naga,  # axpy.wgsl
    "axpy_tint.spv": tint,  # axpy.wgsl
    "axpy_tvm.bin": tvm,  # axpy_tvm.py
}


def main(describe: bool = False) -> int:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-8, 8, N).astype("float32") for _ in range(2))  # such sums are exact, in halves too
    wrong = 0
    with vkqueue.connect(spawn=True) as gpu:
        for name, way in WAYS.items():
            axpy = gpu.load(HERE / name).kernel
            if axpy.unsupported:
                print(f"{name:18} cannot run here: {axpy.unsupported}")
                continue
            result = way(axpy, x, y)
            right = np.array_equal(result, (y + np.float32(K) * x)[: len(result)])
            wrong += not right
            print(f"{name:18} {'right' if right else 'WRONG'}")
            if describe:
                print(f"  {axpy}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main("--describe" in sys.argv[1:]))
