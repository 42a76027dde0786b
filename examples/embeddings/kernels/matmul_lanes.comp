#version 450
#extension GL_GOOGLE_include_directive : require
// As matmul.comp, with the same arguments, for processors' vector units. An invocation has ROWS rows of `a` in its
// registers, of which it gives all others their values, and sums for COLUMNS4 quarters of columns of all those rows.
#include "lanes.glsl"
layout(constant_id = 1) const uint ROWS = 4;
layout(constant_id = 2) const uint COLUMNS4 = 4;
#define RESULT_IS  // written twice: read between
#include "product.glsl"

#ifdef NORM
shared vec2 norm[LANES * ROWS];
#endif

void main() {
    const uint lane = gl_SubgroupInvocationID;
    const uint first_m = gl_WorkGroupID.y * LANES * ROWS, first_n4 = gl_WorkGroupID.x * LANES * COLUMNS4;
    const uint columns4 = columns / 4, k4 = k / 4;

    vec4 acc[LANES * ROWS * COLUMNS4];
    [[unroll]] for (uint i = 0; i < LANES * ROWS * COLUMNS4; i++) acc[i] = vec4(0);
#ifdef NORM
    vec4 sum[ROWS], squares[ROWS];
    [[unroll]] for (uint i = 0; i < ROWS; i++) sum[i] = squares[i] = vec4(0);
#endif
    uint from_a[ROWS], from_w[COLUMNS4];
    [[unroll]] for (uint i = 0; i < ROWS; i++) from_a[i] = min(first_m + i * LANES + lane, rows - 1) * k4;
    [[unroll]] for (uint j = 0; j < COLUMNS4; j++) from_w[j] = min(first_n4 + j * LANES + lane, columns4 - 1);

    for (uint step = 0; step < k4; step++) {
        vec4 w[4 * COLUMNS4];
        [[unroll]] for (uint l = 0; l < 4; l++)
            [[unroll]] for (uint j = 0; j < COLUMNS4; j++)
                w[l * COLUMNS4 + j] = weight.data[(4 * step + l) * columns4 + from_w[j]];
        [[unroll]] for (uint i = 0; i < ROWS; i++) {
            const vec4 mine = a.data[from_a[i] + step];
#ifdef NORM
            sum[i] += mine;
            squares[i] = fma(mine, mine, squares[i]);
#endif
#define MULTIPLY(r) { \
            const vec4 its = subgroupBroadcast(mine, r); \
            [[unroll]] for (uint j = 0; j < COLUMNS4; j++) \
                [[unroll]] for (uint l = 0; l < 4; l++) { \
                    const uint at = (i * LANES + r) * COLUMNS4 + j; \
                    acc[at] = fma(vec4(its[l]), w[l * COLUMNS4 + j], acc[at]); \
                } \
            }
            EACH_LANE(MULTIPLY)
        }
    }

    // The sums go through memory, for a loop that is none for the compiler's patience: unrolled it would be 512 loads.
#define LEAVE(r) [[unroll]] for (uint i = 0; i < ROWS; i++) { \
        const uint row = first_m + i * LANES + r; \
        [[unroll]] for (uint j = 0; j < COLUMNS4; j++) { \
            const uint column4 = first_n4 + j * LANES + lane; \
            if (row < rows && column4 < columns4) result.data[row * columns4 + column4] = acc[(i * LANES + r) * COLUMNS4 + j]; \
        } \
    }
    EACH_LANE(LEAVE)
#ifdef NORM
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint m = i * LANES + lane;
        norm[m] = nothing_wrong() * deviation(dot(sum[i], vec4(1)), dot(squares[i], vec4(1)), epsilon);
        if (gl_WorkGroupID.x == 0 && first_m + m < rows) stats.data[first_m + m] = norm[m];
    }
    barrier();
#endif
    for (uint m = 0; m < min(LANES * ROWS, rows - first_m); m++)
        for (uint j = 0; j < COLUMNS4; j++) {
            const uint row = first_m + m, column4 = first_n4 + j * LANES + lane;
            if (column4 < columns4) {
                const vec4 value = result.data[row * columns4 + column4];
#ifdef NORM
                finish(row, column4, value, norm[m]);
#else
                finish(row, column4, value, nothing_wrong() * stats.data[row]);
#endif
            }
        }
}
