"""z = 2 * x + y of 256 half floats, in TVMScript (Apache TVM 0.26). axpy_tvm.bin is the device module's bytes.

A build of TVM with Vulkan makes it, which the packages of PyPI are not (`USE_VULKAN ON` in its config.cmake):

    target = {"kind": "vulkan", "supports_float16": True, "supports_16bit_buffer": True,
              "supports_storage_buffer_storage_class": True}
    built = tvm.compile(Module, target=tvm.target.Target(target))

An exported library (`built.export_library("axpy.so")`) can be loaded as it is: vkqueue takes what it embeds.
"""

from tvm.script import ir as I
from tvm.script import tirx as T


@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(s_tir=True)
    def hax(X: T.Buffer((256,), "float16"), Y: T.Buffer((256,), "float16"), Z: T.Buffer((256,), "float16")):
        T.func_attr({"tirx.noalias": True})
        for b0 in T.thread_binding(2, thread="blockIdx.x"):
            for t0 in T.thread_binding(32, thread="threadIdx.x"):
                for v in T.vectorized(4):
                    Z[b0 * 128 + t0 * 4 + v] = X[b0 * 128 + t0 * 4 + v] * T.float16(2) + Y[b0 * 128 + t0 * 4 + v]
