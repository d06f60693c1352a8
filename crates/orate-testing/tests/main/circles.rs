//! Files of a crate do not import each other in a circle, so that each can be read after those it uses. Paths
//! are followed through re-exports to the file that declares what they name. A `pub use` is no import, and
//! neither is what tests use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Code of each file of a crate, and what each name is imported from, by paths that begin with `crate`.
#[derive(Default)]
struct Sources {
    modules: BTreeMap<String, String>,
    names: BTreeMap<String, String>,
}

impl Sources {
    fn read(&mut self, folder: &Path, at: &str) {
        for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
            let path = entry.path();
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
            let inside = format!("{at}::{name}");
            if path.is_dir() {
                self.read(&path, &inside);
            } else if path.extension().is_some_and(|e| e == "rs") && name != "tests" {
                let own = if name == "mod" || name == "lib" { at.to_owned() } else { inside };
                self.modules.insert(own, code(&std::fs::read_to_string(&path).expect("readable")));
            }
        }
    }

    /// A path from the root; `None` for what is of another crate or of the module itself.
    fn absolute(&self, mut here: &str, path: &str) -> Option<String> {
        let mut rest = path;
        while let Some(next) = rest.strip_prefix("super::") {
            (here, rest) = (here.rsplit_once("::")?.0, next);
        }
        rest = rest.strip_prefix("self::").unwrap_or(rest);
        let child = format!("{here}::{}", rest.split("::").next()?);
        let is_own = rest.len() < path.len() || self.modules.contains_key(&child);
        let full = if is_own { format!("{here}::{rest}") } else { path.to_owned() };
        full.starts_with("crate").then_some(full)
    }

    /// The module that declares what a path names.
    fn declares(&self, path: &str, steps: usize) -> String {
        let ends = path.match_indices("::").map(|(end, _)| end).chain([path.len()]);
        let mut module = "";
        for prefix in ends.map(|end| &path[..end]) {
            if self.modules.contains_key(prefix) {
                module = prefix;
            } else if let (Some(to), 1..) = (self.names.get(prefix), steps) {
                return self.declares(&(to.clone() + &path[prefix.len()..]), steps - 1);
            }
        }
        module.to_owned()
    }

    /// What a module imports or calls by its path. Notes what names stand for there.
    fn uses(&mut self, here: &str) -> Vec<String> {
        let (mut uses, mut rest) = (vec![], String::new());
        for statement in self.modules[here].clone().split(';') {
            let (before, tree) = statement.rsplit_once("use ").unwrap_or((statement, ""));
            rest += before;
            let is_export = before.trim_end().ends_with("pub") || before.trim_end().ends_with(')');
            for (path, name) in paths(tree) {
                let Some(path) = self.absolute(here, &path) else { continue };
                self.names.insert(format!("{here}::{name}"), path.clone());
                uses.extend((!is_export).then_some(path));
            }
        }
        let in_code = rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        uses.extend(in_code.filter(|path| path.contains("::")).filter_map(|path| self.absolute(here, path)));
        uses
    }
}

/// A file without comments, texts, and the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split("//").next());
    lines.map(|line| line.split('"').step_by(2).collect::<String>() + "\n").collect()
}

/// Paths of a `use`, and the names that they get.
fn paths(tree: &str) -> Vec<(String, String)> {
    let Some((before, inner)) = tree.split_once('{') else {
        let (path, name) = tree.trim().split_once(" as ").unwrap_or((tree.trim(), ""));
        let path = path.trim_end_matches("::*").trim_end_matches("::self");
        let name = if name.is_empty() { path.rsplit("::").next().unwrap_or(path) } else { name };
        return vec![(path.to_owned(), name.to_owned())];
    };
    let (inner, mut depth) = (inner.rsplit_once('}').map_or(inner, |(inner, _)| inner), 0);
    let parts = inner.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(|part| paths(&format!("{}{part}", before.trim()))).collect()
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    for name in ["orate", "orate-graph", "orate-models"] {
        let mut sources = Sources::default();
        sources.read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"), "crate");
        let modules: Vec<String> = sources.modules.keys().cloned().collect();
        let uses: Vec<Vec<String>> = modules.iter().map(|here| sources.uses(here)).collect();
        let imports = |all: &Vec<String>| all.iter().map(|path| sources.declares(path, 9)).collect();
        let imports: BTreeMap<&String, BTreeSet<String>> =
            modules.iter().zip(uses.iter().map(imports)).collect();
        let comes_back = |from: &&String| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![*from]);
            while let Some(here) = next.pop() {
                next.extend(imports[here].iter().filter(|other| *other != here && seen.insert(*other)));
            }
            seen.contains(*from)
        };
        let circles: Vec<&String> = modules.iter().filter(comes_back).collect();
        assert!(circles.is_empty(), "{name} has circles of imports among {circles:?}");
    }
}
