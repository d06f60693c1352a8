//! A long text is spoken in pieces: what families share of that.

/// Seed of a piece's random numbers: the given one for the first, another stream for each further one.
pub fn piece_seed(seed: u64, index: usize) -> u64 {
    seed ^ (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
