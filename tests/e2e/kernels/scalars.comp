#version 450
// Writes its push constants, each as it came, behind one another: what was packed, to the bit.
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 1) in;
layout(push_constant) uniform P {
    int8_t i8; uint8_t u8; int16_t i16; uint16_t u16; int i32; uint u32; int64_t i64; uint64_t u64;
    float16_t f16; float f32; double f64; vec3 v; int a[3];
} p;
layout(set = 0, binding = 0, std430) writeonly buffer O {
    int8_t i8; uint8_t u8; int16_t i16; uint16_t u16; int i32; uint u32; int64_t i64; uint64_t u64;
    float16_t f16; float f32; double f64; vec3 v; int a[3];
} o;
void main() {
    o.i8 = p.i8; o.u8 = p.u8; o.i16 = p.i16; o.u16 = p.u16; o.i32 = p.i32; o.u32 = p.u32; o.i64 = p.i64; o.u64 = p.u64;
    o.f16 = p.f16; o.f32 = p.f32; o.f64 = p.f64; o.v = p.v; o.a = p.a;
}
