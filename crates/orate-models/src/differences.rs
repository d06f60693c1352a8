//! How the tensors of a file differ from those that networks need.

use orate_files::quoted;
use std::fmt;

/// How a file's tensors differ from those that the networks need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Names that are not there.
    pub missing: Vec<String>,
    /// Name, shape in the file, shape needed.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Name and element type of those that hold no floats.
    pub not_floats: Vec<(String, String)>,
    /// Names that no network reads.
    pub unknown: Vec<String>,
}

impl Differences {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Differences::default()
    }
}

/// Most tensors of a kind that are named.
const NAMED: usize = 4;

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = |n: usize| if n == 1 { "1 tensor".to_owned() } else { format!("{n} tensors") };
        let list = |count: usize, verb: [&str; 2], names: Vec<String>| -> Option<String> {
            let more = if count > NAMED { ", …" } else { "" };
            let verb = verb[usize::from(count != 1)];
            (count > 0).then(|| format!("{} {verb}: {}{more}", tensors(count), names.join(", ")))
        };
        let names = |names: &[String]| names.iter().take(NAMED).map(|n| quoted(n).to_string()).collect();
        let shapes = self.misshapen.iter().take(NAMED);
        let shapes =
            shapes.map(|(n, got, want)| format!("{} is {got:?} instead of {want:?}", quoted(n))).collect();
        let types =
            self.not_floats.iter().take(NAMED).map(|(n, t)| format!("{} is {t}", quoted(n))).collect();
        let parts = [
            list(self.missing.len(), ["is missing", "are missing"], names(&self.missing)),
            list(self.misshapen.len(), ["has another shape", "have another shape"], shapes),
            list(self.not_floats.len(), ["has an unsupported type", "have an unsupported type"], types),
            list(self.unknown.len(), ["belongs to no network", "belong to no network"], names(&self.unknown)),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}
