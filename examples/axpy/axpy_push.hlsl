// y[i] += k * x[i], in HLSL with its scalars as push constants.
//
//   glslangValidator -D -V -S comp -e axpy --target-env vulkan1.1 axpy_push.hlsl -o axpy_push.spv
struct Scalars { uint n; float k; };
[[vk::push_constant]] ConstantBuffer<Scalars> scalars;
[[vk::binding(0)]] StructuredBuffer<float> x;
[[vk::binding(1)]] RWStructuredBuffer<float> y;

[numthreads(64, 1, 1)]
void axpy(uint3 id : SV_DispatchThreadID) {
    if (id.x < scalars.n) y[id.x] += scalars.k * x[id.x];
}
