#version 450
// y[i] += k * x[i], in GLSL. The scalars are push constants; the instances' names (x, y) become the bindings' names.
//
//   glslc --target-env=vulkan1.1 axpy.comp -o axpy.spv
//   glslangValidator -V --target-env vulkan1.1 axpy.comp -o axpy.spv
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float data[]; } x;
layout(set = 0, binding = 1) buffer Y { float data[]; } y;
layout(push_constant) uniform Scalars { uint n; float k; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n) y.data[i] += k * x.data[i];
}
