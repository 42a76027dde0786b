#version 450
// A row for each token: its word's vector plus its place's. A work group takes 64 quarters of 16 bytes.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer Ids { uint data[]; } ids;
layout(set = 0, binding = 1) readonly buffer Words { vec4 data[]; } words;    // [vocabulary, quarters]
layout(set = 0, binding = 2) readonly buffer Places { vec4 data[]; } places;  // [longest, quarters]
layout(set = 0, binding = 3) writeonly buffer Hidden { vec4 data[]; } hidden; // [rows, quarters]
layout(push_constant) uniform Scalars { uint rows; uint seq; uint quarters; uint vocabulary; };

void main() {
    uint at = gl_GlobalInvocationID.x, row = at / quarters, quarter = at % quarters;
    if (row >= rows) return;
    uint word = min(ids.data[row], vocabulary - 1);  // an id that is none must not read elsewhere
    hidden.data[at] = words.data[word * quarters + quarter] + places.data[(row % seq) * quarters + quarter];
}
