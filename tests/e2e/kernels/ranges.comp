#version 450
// What the kernel sees of a range: its first word, its length behind the fixed part, and its last word.
layout(local_size_x = 1) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 head; uint tail[]; } x;
layout(set = 0, binding = 1, std430) buffer Y { uint seen[3]; } y;
void main() {
    uint n = x.tail.length();
    y.seen[0] = x.head.x;
    y.seen[1] = n;
    y.seen[2] = n > 0 ? x.tail[n - 1] : 0;
}
