#version 450
#extension GL_EXT_control_flow_attributes : require
// Softmax(q * k^T) * v of one head, for up to QUERIES rows of a sample. q is scaled already, heads are 4 * HEAD4 wide.
//
// Keys and values pass by in tiles of KEYS, in shared memory. SPLIT groups of QUERIES invocations each take another part
// of every tile, with a running maximum, sum of exponentials and weighted sum of values for their query, and are
// merged at the end. Keys from a sample's length on are left out, and so are tiles of queries: what rows behind the
// length hold is nobody's business, and is not even written.
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128;  // QUERIES * SPLIT
layout(constant_id = 1) const uint QUERIES = 32;
layout(constant_id = 2) const uint SPLIT = 4;
layout(constant_id = 3) const uint KEYS = 64;      // a multiple of SPLIT * 4
layout(constant_id = 4) const uint HEAD4 = 8;

layout(set = 0, binding = 0) readonly buffer Qkv { vec4 data[]; } qkv;           // [rows, 3, heads, HEAD4]
layout(set = 0, binding = 1) readonly buffer Lengths { int data[]; } lengths;
layout(set = 0, binding = 2) writeonly buffer Context { vec4 data[]; } context;  // [rows, heads, HEAD4]
layout(push_constant) uniform Scalars { uint seq; uint heads; };

shared vec4 keys[KEYS * HEAD4], values[KEYS * HEAD4];
shared vec2 most_and_sum[SPLIT * QUERIES];

const float LOWEST = -1e30;  // exp of what is that far below any score is 0

void main() {
    const uint lane = gl_LocalInvocationIndex, query = lane % QUERIES, part = lane / QUERIES;
    const uint head = gl_WorkGroupID.y, sample_row = gl_WorkGroupID.z * seq;
    const uint length = clamp(lengths.data[gl_WorkGroupID.z], 0, int(seq));
    const uint first = gl_WorkGroupID.x * QUERIES;
    if (first >= length) return;
    const uint stride = 3 * heads * HEAD4, mine = min(first + query, length - 1);

    vec4 q[HEAD4], sum[HEAD4];
    [[unroll]] for (uint i = 0; i < HEAD4; i++) {
        q[i] = qkv.data[(sample_row + mine) * stride + head * HEAD4 + i];
        sum[i] = vec4(0);
    }
    float most = LOWEST, total = 0;

    for (uint from = 0; from < length; from += KEYS) {
        barrier();
        const uint here = min(KEYS, length - from);
        for (uint at = lane; at < here * HEAD4; at += THREADS) {
            const uint source = (sample_row + from + at / HEAD4) * stride + (heads + head) * HEAD4 + at % HEAD4;
            keys[at] = qkv.data[source];
            values[at] = qkv.data[source + heads * HEAD4];
        }
        barrier();
        for (uint key = part * 4; key < here; key += SPLIT * 4) {  // four at a time: one maximum, one scaling
            vec4 score = vec4(LOWEST);
            [[unroll]] for (uint j = 0; j < 4; j++) {
                vec4 product = vec4(0);
                [[unroll]] for (uint i = 0; i < HEAD4; i++) product += q[i] * keys[min(key + j, here - 1) * HEAD4 + i];
                if (key + j < here) score[j] = product.x + product.y + product.z + product.w;
            }
            const float higher = max(max(max(score.x, score.y), max(score.z, score.w)), most);
            const float keep = exp(most - higher);
            const vec4 weight = exp(score - higher);
            most = higher;
            total = total * keep + weight.x + weight.y + weight.z + weight.w;
            [[unroll]] for (uint i = 0; i < HEAD4; i++) {
                sum[i] *= keep;
                [[unroll]] for (uint j = 0; j < 4; j++) sum[i] += weight[j] * values[min(key + j, here - 1) * HEAD4 + i];
            }
        }
    }

    if (SPLIT > 1) {
        most_and_sum[lane] = vec2(most, total);
        barrier();
        float highest = LOWEST;
        for (uint i = 0; i < SPLIT; i++) highest = max(highest, most_and_sum[i * QUERIES + query].x);
        total = 0;
        for (uint i = 0; i < SPLIT; i++) {
            const vec2 its = most_and_sum[i * QUERIES + query];
            total += its.y * exp(its.x - highest);
        }
        // One part after the other adds to `keys`, which holds QUERIES * HEAD4 of it: KEYS is at least QUERIES.
        const float keep = exp(most - highest);
        for (uint i = 0; i < SPLIT; i++) {
            if (part == i)
                for (uint j = 0; j < HEAD4; j++)
                    keys[j * QUERIES + query] = (i == 0 ? vec4(0) : keys[j * QUERIES + query]) + keep * sum[j];
            barrier();
        }
        for (uint j = part; j < HEAD4; j += SPLIT)
            if (first + query < length)
                context.data[(sample_row + mine) * heads * HEAD4 + head * HEAD4 + j] = keys[j * QUERIES + query] / total;
    } else if (first + query < length) {
        [[unroll]] for (uint j = 0; j < HEAD4; j++)
            context.data[(sample_row + mine) * heads * HEAD4 + head * HEAD4 + j] = sum[j] / total;
    }
}
