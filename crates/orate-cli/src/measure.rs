//! Small measurements: medians, and the memory of this process.

/// The middle value; the mean of the middle two where their number is even. NaN without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    match (v.len(), v.len() / 2) {
        (0, _) => f64::NAN,
        (n, i) if n % 2 == 1 => v[i],
        (_, i) => (v[i - 1] + v[i]) / 2.0,
    }
}

/// Most memory that was resident so far, in MB (10⁶ bytes). `None` where the system does not tell.
pub fn peak_rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_memory() {
        assert!(peak_rss_mb().expect("Linux tells") > 0.5);
    }
}
