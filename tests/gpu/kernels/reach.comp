#version 450
// Reads and writes wherever it is told to, and tells what it read.
layout(local_size_x = 64) in;
layout(push_constant) uniform Constants { uint first; uint count; uint mode; };
layout(set = 0, binding = 0) buffer Data { uint data[]; };
layout(set = 0, binding = 1) uniform Block { uvec4 block[4]; };
layout(set = 0, binding = 2) buffer Result { uint result[]; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= count) return;
    uint place = first + i;
    if (mode == 0) result[i] = data[place];
    else if (mode == 1) data[place] = 0xdeadbeef;
    else result[i] = block[place].x;
}
