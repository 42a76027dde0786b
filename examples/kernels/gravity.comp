#version 450
// The pull of all bodies on each, in tiles: a work group loads 64 bodies into shared memory once, then all of its
// invocations go over them there. Bodies are (x, y, z, mass); a body of mass 0 pulls nobody, so the last tile is padded.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer Bodies { vec4 data[]; } bodies;
layout(set = 0, binding = 1) writeonly buffer Pull { vec4 data[]; } pull;  // acceleration, and the potential
layout(push_constant) uniform Scalars { uint count; float softening; };

shared vec4 tile[64];

void main() {
    uint self = gl_GlobalInvocationID.x, lane = gl_LocalInvocationID.x;
    vec3 here = self < count ? bodies.data[self].xyz : vec3(0);
    vec4 sum = vec4(0);
    for (uint first = 0; first < count; first += 64) {
        tile[lane] = first + lane < count ? bodies.data[first + lane] : vec4(0);
        barrier();
        for (uint i = 0; i < 64; i++) {
            vec3 way = tile[i].xyz - here;
            float inverse = inversesqrt(dot(way, way) + softening * softening);
            sum.xyz += tile[i].w * inverse * inverse * inverse * way;
            if (first + i != self) sum.w -= tile[i].w * inverse;
        }
        barrier();
    }
    if (self < count) pull.data[self] = sum;
}
