// What the kernels for processors' vector units share: a work group is one subgroup of LANES invocations, each of which
// loads another part, and takes the others' from their registers. lavapipe loads for one invocation after the other,
// whether from a buffer or from shared memory, so nothing is loaded twice, and nobody waits at a barrier.
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8;  // 4 or 8, and at most the device's subgroup

// DO(lane) for each lane; a broadcast's lane has to be written as a number.
#define EACH_LANE(DO) \
    DO(0u) DO(1u) DO(2u) DO(3u) \
    if (LANES > 4) { DO(4u) DO(5u) DO(6u) DO(7u) }

// Results become this where the device's subgroups are too small, so that nobody takes them for right.
float nothing_wrong() { return gl_NumSubgroups == 1 ? 1.0 : uintBitsToFloat(0x7fc00000u); }
