#version 450
// Writes its specialization constants.
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x_id = 9) in;
layout(constant_id = 0) const int whole = -5;
layout(constant_id = 1) const uint natural = 5;
layout(constant_id = 2) const float real = 0.5;
layout(constant_id = 3) const bool flag = false;
layout(constant_id = 4) const int64_t large = -5;
layout(constant_id = 5) const double fine = 0.25;
layout(set = 0, binding = 0, std430) writeonly buffer O { int i; uint u; float f; uint b; int64_t l; double d; uint size; } o;
void main() {
    o.i = whole; o.u = natural; o.f = real; o.b = flag ? 1 : 0; o.l = large; o.d = fine; o.size = gl_WorkGroupSize.x;
}
