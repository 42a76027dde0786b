#version 450
#extension GL_GOOGLE_include_directive : require
// As attention.comp, with the same arguments, for processors' vector units: an invocation has a few queries, and a key
// and its value at a time, which it gives to all others.
#include "lanes.glsl"
layout(constant_id = 1) const uint ROWS = 2;  // queries of an invocation
layout(constant_id = 4) const uint HEAD4 = 8;
layout(set = 0, binding = 0) readonly buffer Qkv { vec4 data[]; } qkv;           // [rows, 3, heads, HEAD4]
layout(set = 0, binding = 1) readonly buffer Lengths { int data[]; } lengths;
layout(set = 0, binding = 2) writeonly buffer Context { vec4 data[]; } context;  // [rows, heads, HEAD4]
layout(push_constant) uniform Scalars { uint seq; uint heads; };

const float LOWEST = -1e30;  // exp of what is that far below any score is 0

void main() {
    const uint lane = gl_SubgroupInvocationID, head = gl_WorkGroupID.y, sample_row = gl_WorkGroupID.z * seq;
    const uint length = clamp(lengths.data[gl_WorkGroupID.z], 0, int(seq));
    const uint first = gl_WorkGroupID.x * LANES * ROWS;
    if (first >= length) return;
    const uint stride = 3 * heads * HEAD4;

    vec4 q[ROWS * HEAD4], sum[ROWS * HEAD4];
    float most[ROWS], total[ROWS];
    [[unroll]] for (uint m = 0; m < ROWS; m++) {
        const uint source = (sample_row + min(first + m * LANES + lane, length - 1)) * stride + head * HEAD4;
        [[unroll]] for (uint i = 0; i < HEAD4; i++) {
            q[m * HEAD4 + i] = qkv.data[source + i];
            sum[m * HEAD4 + i] = vec4(0);
        }
        most[m] = LOWEST;
        total[m] = 0;
    }

    for (uint from = 0; from < length; from += LANES) {
        const uint source = (sample_row + min(from + lane, length - 1)) * stride + (heads + head) * HEAD4;
        vec4 score[ROWS * LANES];  // of the key of each lane, by its four components
        [[unroll]] for (uint r = 0; r < ROWS * LANES; r++) score[r] = vec4(0);
        [[unroll]] for (uint i = 0; i < HEAD4; i++) {
            const vec4 own = qkv.data[source + i];
#define SCORE(r) { \
                const vec4 key = subgroupBroadcast(own, r); \
                [[unroll]] for (uint m = 0; m < ROWS; m++) \
                    score[m * LANES + r] = fma(q[m * HEAD4 + i], key, score[m * LANES + r]); \
            }
            EACH_LANE(SCORE)
        }
        float share[ROWS * LANES];
        [[unroll]] for (uint m = 0; m < ROWS; m++) {
            float higher = most[m];
            [[unroll]] for (uint r = 0; r < LANES; r++) {
                share[m * LANES + r] = from + r < length ? dot(score[m * LANES + r], vec4(1)) : LOWEST;
                higher = max(higher, share[m * LANES + r]);
            }
            const float keep = exp(most[m] - higher);
            most[m] = higher;
            total[m] *= keep;
            [[unroll]] for (uint r = 0; r < LANES; r++) {
                share[m * LANES + r] = exp(share[m * LANES + r] - higher);
                total[m] += share[m * LANES + r];
            }
            [[unroll]] for (uint i = 0; i < HEAD4; i++) sum[m * HEAD4 + i] *= keep;
        }
        [[unroll]] for (uint i = 0; i < HEAD4; i++) {
            const vec4 own = qkv.data[source + heads * HEAD4 + i];
#define ADD(r) { \
                const vec4 value = subgroupBroadcast(own, r); \
                [[unroll]] for (uint m = 0; m < ROWS; m++) \
                    sum[m * HEAD4 + i] = fma(vec4(share[m * LANES + r]), value, sum[m * HEAD4 + i]); \
            }
            EACH_LANE(ADD)
        }
    }
    [[unroll]] for (uint m = 0; m < ROWS; m++) {
        const uint query = first + m * LANES + lane;
        if (query < length)
            [[unroll]] for (uint i = 0; i < HEAD4; i++)
                context.data[((sample_row + query) * heads + head) * HEAD4 + i] = sum[m * HEAD4 + i] / total[m] * nothing_wrong();
    }
}
