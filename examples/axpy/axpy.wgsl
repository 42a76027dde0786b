// y[i] += a * x[i], in WGSL. It has no push constants, so the scalars are in a uniform buffer. axpy_naga.spv is made of
// this by naga (`naga axpy.wgsl axpy_naga.spv`), axpy_tint.spv by Dawn's tint.
struct P { n: u32, a: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(1) @binding(1) var<uniform> p: P;
@compute @workgroup_size(8)
fn axpy(@builtin(global_invocation_id) g: vec3<u32>) { if (g.x < p.n) { y[g.x] = p.a * x[g.x] + y[g.x]; } }
