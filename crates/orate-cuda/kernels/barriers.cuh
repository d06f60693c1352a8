#if __CUDA_ARCH__ >= 900

// Barriers in shared memory, 8 bytes each: a phase ends when as many as are expected have arrived, and the
// bytes that one of them announced.
DEVICE void expect_arrivals(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}
DEVICE void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(barrier) : "memory");
}
DEVICE void announce(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
// Waits for the end of a phase, an even or an odd one.
DEVICE void wait_for_phase(u32 barrier, u32 odd) {
    asm volatile("{ .reg .pred p; LOOP: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra LOOP; }"
                 :: "r"(barrier), "r"(odd) : "memory");
}

// Writes 16 bytes to the shared memory of another block of the cluster, for a phase of its barrier.
DEVICE void send(float* shared, u32 barrier, u32 block, float4 v) {
    u32 here = (u32)__cvta_generic_to_shared(shared), there, its;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(block));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(its) : "r"(barrier), "r"(block));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];"
                 :: "r"(there), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(its) : "memory");
}

// Describes a tensor of three dimensions, of which the hardware copies boxes.
struct alignas(64) Tensor {
    u64 words[16];
};

// Copies a box to shared memory, for a phase of a barrier. What is beyond the tensor is zero.
DEVICE void copy_box(u32 to, const Tensor& from, int first, int second, int third, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 :: "r"(to), "l"(&from), "r"(first), "r"(second), "r"(third), "r"(barrier) : "memory");
}

#endif
