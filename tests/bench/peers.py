"""The same small job through GPU libraries in the caller's own process, for comparison with `vkqueue bench`.

Run as ``python tests/bench/peers.py``; prints JSON: microseconds for one axpy of 64 threads alone (dispatched, and a
result read back, which is how these libraries wait) and each in a batch of 64, submitted and waited for together.
A library that is not installed is left out.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

N = 64
REPEATS = 200

WGSL = """
struct P { n: u32, k: f32 };
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: P;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < p.n) { y[id.x] = y[id.x] + p.k * x[id.x]; }
}
"""


def median_us(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median time of a call, after ten that are not counted."""
    for _ in range(10):
        run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - started) / 1000)
    return statistics.median(times)


def wgpu_py() -> dict[str, Any]:
    import numpy as np
    import wgpu

    adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    device = adapter.request_device_sync()
    storage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    x = device.create_buffer_with_data(data=np.arange(N, dtype="f4"), usage=storage)
    ys = [device.create_buffer_with_data(data=np.ones(N, "f4"), usage=storage) for _ in range(64)]
    constants = np.zeros(2, "u4")
    constants[0], constants[1:].view("f4")[0] = N, 0.5
    p = device.create_buffer_with_data(data=constants, usage=wgpu.BufferUsage.UNIFORM)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": device.create_shader_module(code=WGSL), "entry_point": "main"}
    )
    groups = [
        device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[
                {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}} for i, b in enumerate((x, y, p))
            ],
        )
        for y in ys
    ]

    def run(count: int) -> None:
        encoder = device.create_command_encoder()
        work = encoder.begin_compute_pass()
        work.set_pipeline(pipeline)
        for group in groups[:count]:
            work.set_bind_group(0, group)
            work.dispatch_workgroups(1)
        work.end()
        device.queue.submit([encoder.finish()])
        device.queue.read_buffer(ys[0], 0, 4)

    return {
        "version": wgpu.__version__,
        "device": adapter.info["device"],
        "alone_us": median_us(lambda: run(1)),
        "each_of_64_us": median_us(lambda: run(64)) / 64,
    }


def vkdispatch() -> dict[str, Any]:
    import numpy as np
    import vkdispatch as vd
    import vkdispatch.codegen as vc

    vd.make_context(device_ids=[0])  # without a list it takes no software device

    @vd.shader(
        exec_size=(N, 1, 1),
        local_size=(64, 1, 1),
        arg_type_annotations=[vc.Buff[vc.f32], vc.Buff[vc.f32], vc.Const[vc.f32]],
    )
    def axpy(y: Any, x: Any, k: Any) -> None:
        i = vc.global_invocation_id().x
        y[i] += k * x[i]

    x, y = vd.asbuffer(np.arange(N, dtype="f4")), vd.asbuffer(np.ones(N, "f4"))

    def run(count: int) -> None:
        for _ in range(count):
            axpy(y, x, 0.5)
        y.read(0)

    return {"alone_us": median_us(lambda: run(1)), "each_of_64_us": median_us(lambda: run(64), 20) / 64}


def main() -> None:
    report: dict[str, Any] = {}
    for peer in (wgpu_py, vkdispatch):
        try:
            report[peer.__name__] = peer()
        except ImportError:
            report[peer.__name__] = None
        except Exception as error:  # a peer that fails here is no fault of ours, and no reason to stop
            report[peer.__name__] = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
