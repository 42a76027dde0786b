// Arguments of the products, see matmul.comp.
#ifndef RESULT_IS
#define RESULT_IS writeonly
#endif
layout(constant_id = 8) const uint GELU = 0;
layout(set = 0, binding = 0) readonly buffer A { vec4 data[]; } a;
layout(set = 0, binding = 1) readonly buffer Weight { vec4 data[]; } weight;
#ifdef NORM
layout(set = 0, binding = 2) readonly buffer Total { vec4 data[]; } total;
layout(set = 0, binding = 3) readonly buffer Shift { vec4 data[]; } shift;
layout(set = 0, binding = 4) writeonly buffer Stats { vec2 data[]; } stats;  // mean, 1 / standard deviation
layout(set = 0, binding = 5) RESULT_IS buffer Out { vec4 data[]; } result;
layout(push_constant) uniform Scalars { uint rows; uint columns; uint k; float epsilon; };
#else
layout(set = 0, binding = 2) readonly buffer Bias { vec4 data[]; } bias;
layout(set = 0, binding = 3) readonly buffer Residual { vec4 data[]; } residual;
layout(set = 0, binding = 4) readonly buffer Gain { vec4 data[]; } gain;
layout(set = 0, binding = 5) readonly buffer Stats { vec2 data[]; } stats;
layout(set = 0, binding = 6) RESULT_IS buffer Out { vec4 data[]; } result;
layout(push_constant) uniform Scalars { uint rows; uint columns; uint k; };
#endif

#include "gelu.glsl"

// Mean and 1 / standard deviation, of sums over a row of k values and over their squares.
vec2 deviation(float sum, float squares, float epsilon) {
    const float mean = sum / k;
    return vec2(mean, inversesqrt(max(squares / k - mean * mean, 0) + epsilon));
}

// Writes a quarter of the result from the sum of its products and the mean and deviation of its row.
void finish(uint row, uint column4, vec4 value, vec2 its) {
    const uint at = row * (columns / 4) + column4;
#ifdef NORM
    value = its.y * (value - its.x * total.data[column4]) + shift.data[column4];
    if (GELU != 0) value = gelu(value);
#else
    value += (residual.data[at] - its.x) * its.y * gain.data[column4] + bias.data[column4];
#endif
    result.data[at] = value;
}
