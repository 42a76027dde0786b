// y[i] += k * x[i], in OpenCL C.
//
//   python -c "import pyclspv; open('axpy_opencl.spv', 'wb').write(pyclspv.compile(open('axpy.cl').read()))"
//
// clspv of its own project does the same by `clspv -pod-pushconstant axpy.cl -o axpy_opencl.spv`.
kernel void axpy(global const float *x, global float *y, uint n, float k) {
    uint i = get_global_id(0);
    if (i < n) y[i] += k * x[i];
}
