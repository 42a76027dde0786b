#version 450
// Looks only at the length of what is bound at 0.
layout(local_size_x = 1) in;
layout(set = 0, binding = 0, std430) buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uint y; };
void main() { y = x.length(); }
