// Results of matmuls of many rows, as defined in `matmul.cu`. A thread stores the same four channels of many
// rows, so all that depends on channels only is read and decided once.

template <bool PARTS, bool HALVES>
struct Results {
    float4 bias, row;
    float* out;
    u16* rounded;  // or null
    const float* residual;
    int n, end, stride, activation;
    float slope;

    __device__ __forceinline__ Results(const Args& a, int n) : n(n), end(a.n) {
        Part part = part_of<PARTS>(a, n);
        bias = four(a.bias, n, end), residual = a.residual;
        row = four(a.row ? a.row + (size_t)min((u64)a.row_count - 1, *a.row_index) * end : 0, n, end);
        size_t at = (size_t)part.first * a.rows + (n - part.first);
        out = a.out + at, stride = part.width;
        rounded = HALVES && a.halves & 2 ? (u16*)a.out + at : 0;
        activation = n < a.first ? a.activation : NONE, slope = activation == PRELU ? *a.slope : 0.0f;
    }

    __device__ __forceinline__ void store(int r, float4 sum) const {
        float4 after = four(residual ? residual + (size_t)r * end : 0, n, end);
        add(sum, bias);
        float y[4] = {sum.x, sum.y, sum.z, sum.w};
        activate(activation, y, slope);
        add(after, row);
        y[0] += after.x, y[1] += after.y, y[2] += after.z, y[3] += after.w;
#if PRECISION >= 2 && __CUDA_ARCH__ >= 800
        if (HALVES && rounded) {
            *(uint2*)(rounded + (size_t)r * stride) = make_uint2(halves(y[0], y[1]), halves(y[2], y[3]));
            return;
        }
#endif
        store_four(out + (size_t)r * stride, y, end - n);
    }
};

// Stores the sums of a block, which has CHANNELS_OF_BLOCK channels by ROWS rows, of which those before `end`
// exist. `sums` is [GROUPS, ROWS, CHANNELS_OF_BLOCK + 4] in shared memory: neighboring rows are in other
// banks. Sums of groups are added in order. Waits until all threads of the block have written theirs.
template <int GROUPS, int CHANNELS_OF_BLOCK, int ROWS, int THREADS, bool PARTS, bool HALVES = false>
DEVICE void store_rows(const Args& a, const float* sums, int first_row, int end) {
    constexpr int WIDTH = CHANNELS_OF_BLOCK + 4, OF_ROW = CHANNELS_OF_BLOCK / 4;
    int n = blockIdx.x * CHANNELS_OF_BLOCK + threadIdx.x % OF_ROW * 4;
    Results<PARTS, HALVES> results(a, min(n, (a.n - 1) / 4 * 4));
    __syncthreads();
    if (n >= a.n) return;
    const float* sum = sums + threadIdx.x % OF_ROW * 4;
#pragma unroll 2
    for (int row = threadIdx.x / OF_ROW; row < end; row += THREADS / OF_ROW) {
        float4 all = *(const float4*)(sum + row * WIDTH);
#pragma unroll
        for (int i = 1; i < GROUPS; i++) add(all, *(const float4*)(sum + (i * ROWS + row) * WIDTH));
        results.store(first_row + row, all);
    }
}

