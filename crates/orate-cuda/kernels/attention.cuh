// Operands of `attention.cu` and `attention_mma.cu`, and copies to shared memory.

struct Args {
    const float* q;
    const float* k;
    const float* v;
    const int* lens;
    const float* rel_key;
    const float* rel_value;
    const float* table;  // [B or 1, 2, Tq, D/2]: cosines and sines to rotate q by
    const int* first;    // null: `shift`
    const float* bias;   // [B, H, Tq, Tk], added to the scaled scores; or null
    float* out;
    int heads, d, tq, tk, kv_batch, window, causal, tables;
    float scale;
    int seen, group;    // seen 0: all; `group` heads of q share one head of k and v
    int shift, stream;  // stream: `first` counts rows before the queries
    int type;           // of `out`, as in `store_as`; 16 bits only where q, k and v have them
};

// Starts an asynchronous copy of 16 bytes to shared memory, or writes zeros.
DEVICE void start_copy(float* to, const float* from, bool is) {
#if __CUDA_ARCH__ >= 800
    u32 there = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(there), "l"(from), "r"(is ? 16 : 0) : "memory");
#else
    *(float4*)to = is ? *(const float4*)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
}

DEVICE void finish_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

