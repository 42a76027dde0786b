#version 450
// counts[v]++ for each byte v of data (four to a word), gathered per work group in shared memory first.
layout(local_size_x = 256) in;
layout(set = 0, binding = 0) readonly buffer Data { uint data[]; };
layout(set = 0, binding = 1) buffer Counts { uint counts[256]; };
layout(push_constant) uniform P { uint words; };
shared uint bins[256];
void main() {
    uint l = gl_LocalInvocationID.x;
    bins[l] = 0;
    barrier();
    for (uint i = gl_GlobalInvocationID.x; i < words; i += gl_NumWorkGroups.x * 256) {
        uint w = data[i];
        for (uint s = 0; s < 32; s += 8) atomicAdd(bins[(w >> s) & 255], 1);
    }
    barrier();
    if (bins[l] > 0) atomicAdd(counts[l], bins[l]);
}
