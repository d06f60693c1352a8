// Sums over a workgroup of 128 threads, the same for all threads and in the same order in every run.
var<workgroup> partial: array<f32, 128>;

//@ if SUBGROUPS
fn total(x: f32, subgroup: u32, subgroups: u32, place: u32) -> f32 {
    let sum = subgroupAdd(x);
    workgroupBarrier();
    if place == 0u {
        partial[subgroup] = sum;
    }
    workgroupBarrier();
    var all = 0.0;
    for (var i = 0u; i < subgroups; i++) {
        all += partial[i];
    }
    return all;
}
//@ else
fn total(x: f32, lane: u32) -> f32 {
    workgroupBarrier();
    partial[lane] = x;
    for (var half = 64u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            partial[lane] += partial[lane + half];
        }
    }
    workgroupBarrier();
    return partial[0];
}
//@ end

//@ include divided
