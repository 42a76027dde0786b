#version 450
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) readonly buffer Data { uint data[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };

void main() { result[0] = data.length(); }
