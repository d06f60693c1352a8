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

#endif
