#version 450
// One step of every body: its velocity by `kick` seconds of its pull, then its place by `drift` seconds of its velocity.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer Bodies { vec4 data[]; } bodies;
layout(set = 0, binding = 1) buffer Velocities { vec4 data[]; } velocities;
layout(set = 0, binding = 2) readonly buffer Pull { vec4 data[]; } pull;
layout(push_constant) uniform Scalars { uint count; float kick; float drift; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= count) return;
    vec3 velocity = velocities.data[i].xyz + kick * pull.data[i].xyz;
    velocities.data[i].xyz = velocity;
    bodies.data[i].xyz += drift * velocity;
}
