//! Damage for the robustness tests: truncation and deterministic byte flips.

/// A small generator (splitmix64), so that a failure can be repeated.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Gives `read` every prefix of `valid` (in steps of `step`) and `rounds` copies with a few bytes changed,
/// most of them within the first `header` bytes. `read` must return; what it returns does not matter.
pub(crate) fn survives(
    valid: &[u8],
    header: usize,
    step: usize,
    rounds: usize,
    read: impl Fn(Vec<u8>) -> Result<(), crate::WeightError>,
) {
    read(valid.to_vec()).expect("the undamaged file is valid");
    for len in (0..valid.len()).step_by(step) {
        // The error must print, too.
        let _ = read(valid[..len].to_vec()).map_err(|e| e.to_string());
    }
    let mut random = Random::new(0x0a7e);
    for _ in 0..rounds {
        let mut damaged = valid.to_vec();
        for _ in 0..=random.below(4) {
            let area = if random.below(8) == 0 { damaged.len() } else { header.min(damaged.len()) };
            let at = random.below(area);
            damaged[at] = match random.below(4) {
                0 => 0xff,
                1 => 0,
                2 => damaged[at] ^ (1 << random.below(8)),
                _ => random.next() as u8,
            };
        }
        let _ = read(damaged).map_err(|e| e.to_string());
    }
}
