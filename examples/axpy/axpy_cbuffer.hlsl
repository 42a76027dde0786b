// y[i] += a * x[i], in HLSL with its scalars in a constant buffer, which is a uniform buffer. The order of the bindings
// is that of the registers' numbers, shifted by the kind of register.
//
//   dxc -spirv -T cs_6_2 -E saxpy -fvk-t-shift 1024 0 -fvk-u-shift 2048 0 axpy_cbuffer.hlsl -Fo axpy_cbuffer.spv
struct Cfg { float a; uint n; };
ConstantBuffer<Cfg> cfg : register(b0);
StructuredBuffer<float> x : register(t1);
RWStructuredBuffer<float> y : register(u2);
[numthreads(32, 1, 1)]
void saxpy(uint3 t : SV_DispatchThreadID) { if (t.x < cfg.n) y[t.x] = cfg.a * x[t.x] + y[t.x]; }
