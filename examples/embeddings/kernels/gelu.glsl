// x / 2 * (1 + erf(x / sqrt(2))); erf by Abramowitz and Stegun 7.1.26 is off by 1.5e-7 at most.
vec4 gelu(vec4 x) {
    const vec4 z = abs(x) * 0.70710678118654752;
    const vec4 t = 1 / (1 + 0.3275911 * z);
    const vec4 tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    const vec4 half_erfc = 0.5 * tail * exp(-z * z);
    return x * mix(half_erfc, 1 - half_erfc, greaterThanEqual(x, vec4(0)));
}
