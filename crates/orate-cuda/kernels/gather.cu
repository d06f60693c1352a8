// Rows of a table, selected by ids or by a scalar, and sums of rows of several tables.
//
//   gather          ids [rows], table [V, C] → out [rows, C]; id −1 is the last row; tables may be 16-bit
//   row_at          x [B, N, C], index [B] → out [B, 1, C], clamped to the last row
//   embedding_sum   ids [rows, N], tables [Q, V, C] → out [rows, C]: Σ tables[q, ids[first + q]]
//
// Ids outside of the table are clamped, so that nothing is read out of bounds; the caller checks ids.

struct Args {
    const char* table;
    const int* ids;       // one per row of the output
    const u64* scalar;    // or one id for all
    float* out;
    int len, c, table_rows;
    int type;             // of the table, see `Cache`
};

extern "C" __global__ void gather(const Args a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.len) return;
    long long id;
    if (a.scalar) {
        id = (long long)min(*a.scalar, (u64)a.table_rows - 1);
    } else {
        id = a.ids[i / a.c];
        if (id < 0) id += a.table_rows;
        id = min(max(id, 0ll), (long long)a.table_rows - 1);
    }
    size_t at = (size_t)id * a.c + i % a.c;
    a.out[i] = element(a.table, a.type, at);
}

struct SumArgs {
    const float* tables;
    const int* ids;
    float* out;
    int len, c, table_rows, count, ids_per_row, first;
};

extern "C" __global__ void embedding_sum(const SumArgs a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.len) return;
    const int* ids = a.ids + (size_t)(i / a.c) * a.ids_per_row + a.first;
    const float* table = a.tables + i % a.c;
    float sum = 0.0f;
#pragma unroll 4
    for (int q = 0; q < a.count; q++) {
        int id = min(max(ids[q], 0), a.table_rows - 1);
        sum += table[((size_t)q * a.table_rows + id) * a.c];
    }
    a.out[i] = sum;
}

struct RowArgs {
    const float* x;
    const int* index;
    float* out;
    int len, c, rows;
};

extern "C" __global__ void row_at(const RowArgs a) {
    wait_for_previous();
    let_next_start();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.len) return;
    int b = i / a.c, row = min(max(a.index[b], 0), a.rows - 1);
    a.out[i] = a.x[((size_t)b * a.rows + row) * a.c + i % a.c];
}
