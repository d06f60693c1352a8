// Matmuls of few channels to one: a thread for each row, whose weights all threads share.
//
//   x [rows, K], weight [K] → out [rows], with bias, activation and the element of a row that is added

struct Args {
    const float* x;
    const float* weight;
    const float* bias;   // or null
    const float* slope;
    const float* row;    // or null: [row_count]; the one that `index` selects is added at the end
    const u64* index;
    float* out;
    int rows, k, activation, row_count;
};

extern "C" __global__ void __launch_bounds__(256) dot(const Args a) {
    float bias = a.bias ? *a.bias : 0.0f, slope = a.activation == PRELU ? *a.slope : 0.0f;
    wait_for_previous();
    let_next_start();
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= a.rows) return;
    const float* x = a.x + (size_t)r * a.k;
    float sum = 0.0f;
#pragma unroll 8
    for (int k = 0; k < a.k; k++) sum = fmaf(x[k], a.weight[k], sum);
    float y = activate(a.activation, sum + bias, slope);
    if (a.row) y += a.row[min(*a.index, (u64)a.row_count - 1)];
    a.out[r] = y;
}
