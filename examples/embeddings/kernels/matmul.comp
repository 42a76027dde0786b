#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
// out = epilogue(a * weight), where a has rows of k values and the weight is stored [k, columns].
//
// A work group makes a tile of TILE_M rows and TILE_N columns. Its invocations are SPLIT groups, each of which goes over
// another part of every TILE_K values of k with a block of BLOCK_M by 4 * BLOCK_N4 sums in registers for each
// invocation; the groups' sums are added at the end. So few rows still fill a device: a small tile, many groups.
//
// Two modules are made of this file:
//   NORM      a is what a layer norm is taken of. With the norm's gain in the weight (w'), its bias in `shift`, and
//             total[n] the sum of column n of w', the result is
//                 deviation[m] * (a * w' - mean[m] * total[n]) + shift[n]
//             so mean and deviation are gathered while a passes by, and no launch is spent on the norm. They are left
//             in `stats` for the launch that adds the same rows as a residual. With GELU, the result goes through it.
//   (without) adds a bias and the layer norm of `residual`, by the stats that were left.
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 256;  // TILE_M / BLOCK_M * TILE_N / (4 * BLOCK_N4) * SPLIT
layout(constant_id = 1) const uint TILE_M = 64;
layout(constant_id = 2) const uint TILE_N = 64;
layout(constant_id = 3) const uint TILE_K = 32;    // k is a multiple of it
layout(constant_id = 4) const uint BLOCK_M = 4;    // a multiple of 4
layout(constant_id = 5) const uint BLOCK_N4 = 1;
layout(constant_id = 6) const uint SPLIT = 1;
layout(constant_id = 7) const uint SHARED4 = 1024; // of 16 bytes, for all that is in `tile` at one time or another
layout(constant_id = 9) const uint UNROLL = 8;     // a divisor of TILE_K / SPLIT
#include "product.glsl"

const uint M4 = TILE_M / 4, N4 = TILE_N / 4, K4 = TILE_K / 4;
const uint A_BLOCKS = (M4 * K4 + THREADS - 1) / THREADS;      // of 4 by 4 values that an invocation loads
const uint W_QUADS = (TILE_K * N4 + THREADS - 1) / THREADS;   // of 4 values
const uint ACROSS = N4 / BLOCK_N4, DOWN = TILE_M / BLOCK_M;
const uint GROUP = ACROSS * DOWN;
const uint BLOCK_M4 = BLOCK_M / 4;
const uint STEPS = TILE_K / SPLIT;

// [TILE_K, M4] of a, transposed, then [TILE_K, N4] of the weight. What is next to each other along k is stored by
// invocations at the same time, and lies in other banks by SWIZZLE. Behind the loop: sums for mean and deviation
// (2 * M4 * K4, then a vector for each invocation), then the groups' sums (SPLIT * TILE_M * N4).
shared vec4 tile[SHARED4];
const uint SWIZZLE = (M4 - 1) & 7;  // M4 is a power of two
#ifdef NORM
shared vec2 norm[TILE_M];
const uint PARTS = THREADS > TILE_M ? THREADS / TILE_M : 1;
#endif

void main() {
    const uint lane = gl_LocalInvocationIndex;
    const uint first_m = gl_WorkGroupID.y * TILE_M, first_n4 = gl_WorkGroupID.x * N4;
    const uint columns4 = columns / 4, k4 = k / 4;
    const uint group = lane / GROUP, m4 = lane % GROUP / ACROSS * BLOCK_M4, n4 = lane % ACROSS * BLOCK_N4;

    vec4 acc[BLOCK_M * BLOCK_N4];
    [[unroll]] for (uint i = 0; i < BLOCK_M * BLOCK_N4; i++) acc[i] = vec4(0);
    vec4 next_a[A_BLOCKS * 4], next_w[W_QUADS];
#ifdef NORM
    vec4 sum[A_BLOCKS], square[A_BLOCKS];
    [[unroll]] for (uint i = 0; i < A_BLOCKS; i++) sum[i] = square[i] = vec4(0);
#endif

    for (uint from = 0; from <= k; from += TILE_K) {
        if (from > 0) {  // what was loaded before
            barrier();
            [[unroll]] for (uint i = 0; i < A_BLOCKS; i++) {
                const uint block = lane + i * THREADS;
                if (block < M4 * K4) {
                    const uint at = block / K4, step = block % K4;
                    const mat4 turned = transpose(mat4(next_a[4 * i], next_a[4 * i + 1], next_a[4 * i + 2], next_a[4 * i + 3]));
                    [[unroll]] for (uint j = 0; j < 4; j++) {
                        tile[(4 * step + j) * M4 + (at ^ (step & SWIZZLE))] = turned[j];
#ifdef NORM
                        sum[i] += turned[j];
                        square[i] = fma(turned[j], turned[j], square[i]);
#endif
                    }
                }
            }
            [[unroll]] for (uint i = 0; i < W_QUADS; i++) {
                const uint quad = lane + i * THREADS;
                if (quad < TILE_K * N4) tile[TILE_K * M4 + quad] = next_w[i];
            }
            barrier();
        }
        if (from < k) {  // on its way while the tile is worked on
            [[unroll]] for (uint i = 0; i < A_BLOCKS; i++) {
                const uint block = lane + i * THREADS;
                const uint row = first_m + block / K4 * 4, step = from / 4 + block % K4;
                if (block < M4 * K4)
                    [[unroll]] for (uint j = 0; j < 4; j++) next_a[4 * i + j] = a.data[min(row + j, rows - 1) * k4 + step];
            }
            [[unroll]] for (uint i = 0; i < W_QUADS; i++) {
                const uint quad = lane + i * THREADS;
                if (quad < TILE_K * N4)
                    next_w[i] = weight.data[(from + quad / N4) * columns4 + min(first_n4 + quad % N4, columns4 - 1)];
            }
        }
        if (from > 0) {
            for (uint base = group * STEPS; base < (group + 1) * STEPS; base += UNROLL)
                [[unroll]] for (uint step = base; step < base + UNROLL; step++) {
                    const uint swizzle = step / 4 & SWIZZLE;
                    vec4 w[BLOCK_N4];
                    [[unroll]] for (uint j = 0; j < BLOCK_N4; j++) w[j] = tile[TILE_K * M4 + step * N4 + n4 + j];
                    [[unroll]] for (uint i = 0; i < BLOCK_M4; i++) {
                        const vec4 four = tile[step * M4 + ((m4 + i) ^ swizzle)];
                        [[unroll]] for (uint l = 0; l < 4; l++)
                            [[unroll]] for (uint j = 0; j < BLOCK_N4; j++)
                                acc[(4 * i + l) * BLOCK_N4 + j] = fma(vec4(four[l]), w[j], acc[(4 * i + l) * BLOCK_N4 + j]);
                    }
                }
        }
    }
    barrier();

#ifdef NORM
    [[unroll]] for (uint i = 0; i < A_BLOCKS; i++) {
        const uint block = lane + i * THREADS;
        if (block < M4 * K4) {
            tile[block] = sum[i];
            tile[M4 * K4 + block] = square[i];
        }
    }
    barrier();
    for (uint at = lane; at < TILE_M * PARTS; at += THREADS) {
        const uint m = at % TILE_M;
        vec2 both = vec2(0);
        for (uint i = m / 4 * K4 + at / TILE_M; i < (m / 4 + 1) * K4; i += PARTS)
            both += vec2(tile[i][m % 4], tile[M4 * K4 + i][m % 4]);
        tile[2 * M4 * K4 + at].xy = both;
    }
    barrier();
    for (uint m = lane; m < TILE_M; m += THREADS) {
        vec2 both = vec2(0);
        for (uint part = 0; part < PARTS; part++) both += tile[2 * M4 * K4 + part * TILE_M + m].xy;
        norm[m] = deviation(both.x, both.y, epsilon);
        if (gl_WorkGroupID.x == 0 && first_m + m < rows) stats.data[first_m + m] = norm[m];
    }
    barrier();
#endif

    // The groups' sums, then each invocation finishes its share of the tile.
    if (SPLIT > 1) {
        [[unroll]] for (uint i = 0; i < BLOCK_M; i++)
            [[unroll]] for (uint j = 0; j < BLOCK_N4; j++)
                tile[group * TILE_M * N4 + (4 * m4 + i) * N4 + n4 + j] = acc[i * BLOCK_N4 + j];
        barrier();
    }
    const uint mine = SPLIT > 1 ? (TILE_M * N4 + THREADS - 1) / THREADS : BLOCK_M * BLOCK_N4;
    [[unroll]] for (uint i = 0; i < mine; i++) {
        uint m = 4 * m4 + i / BLOCK_N4, n = n4 + i % BLOCK_N4;
        vec4 value = vec4(0);
        if (SPLIT > 1) {
            const uint at = lane + i * THREADS;
            if (at >= TILE_M * N4) break;
            m = at / N4;
            n = at % N4;
            for (uint part = 0; part < SPLIT; part++) value += tile[part * TILE_M * N4 + at];
        } else {
            value = acc[i];
        }
        const uint row = first_m + m, column4 = first_n4 + n;
        if (row < rows && column4 < columns4)
#ifdef NORM
            finish(row, column4, value, norm[m]);
#else
            finish(row, column4, value, stats.data[row]);
#endif
    }
}
