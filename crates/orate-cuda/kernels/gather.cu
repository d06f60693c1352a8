// Rows of a table, by ids or by a scalar.
//
// embedding: ids [rows], table [V, C] → out [rows, C]; id −1 is the last row. Ids beyond the table take its first or
// last row: whoever writes ids checks them, and here nothing is read that is not there.

struct Args {
    const float* table;
    const int* ids;       // one per row of the output
    const u64* scalar;    // or one id for all
    float* out;
    int len, c, table_rows;
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
    a.out[i] = a.table[(size_t)id * a.c + i % a.c];
}
