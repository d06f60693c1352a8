//! Claims, finished units, and folders of other work.

use orate_book::{Block, Book, Chapter, Claim, Opened, Plan, State, WorkError, WorkFolder};
use serde_json::{Value, json};
use std::path::Path;

const RATE: u32 = 8000;

pub fn plan() -> (Book, Plan) {
    let text = |i: usize| Block::Paragraph(format!("{i} {}", "word ".repeat(239)));
    let chapter = |i: usize| Chapter { title: Some(format!("C{i}")), blocks: vec![text(i), text(i + 10)] };
    let book = Book { title: Some("B".into()), chapters: vec![chapter(1), chapter(2)], ..Book::default() };
    let plan = Plan::new(&book, 0.0);
    assert_eq!(plan.units.len(), 4);
    (book, plan)
}

pub fn open(path: &Path, plan: &Plan, key: &Value, restart: bool) -> Result<WorkFolder, WorkError> {
    match WorkFolder::open(path, plan, key, RATE, restart)? {
        Opened::Work(folder) => Ok(folder),
        Opened::Finished => panic!("nothing was finished"),
    }
}

fn claim(folder: &mut WorkFolder) -> Claim {
    match folder.claim().expect("a claim") {
        State::Claimed(claim) => claim,
        other => panic!("{other:?}"),
    }
}

#[test]
fn units_are_claimed_once_and_freed_when_dropped() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("a.parts");
    let (_, plan) = plan();
    let mut one = open(&path, &plan, &json!({}), false).unwrap();
    let mut two = open(&path, &plan, &json!({}), false).unwrap();
    let mut first = claim(&mut one);
    assert_eq!(first.index, 0);
    let second = claim(&mut two);
    assert_eq!(second.index, 1);
    drop(second);
    let second = claim(&mut one);
    assert_eq!(second.index, 1, "it was dropped");
    // An unfinished unit does not count.
    first.write(&[0.5; 100]).unwrap();
    assert_eq!(two.progress().units, 0);
    drop(first);
    for index in [0, 2, 3] {
        let mut unit = claim(&mut two);
        assert_eq!(unit.index, index);
        unit.write(&[0.25; 10]).unwrap();
        unit.write(&[-0.25; 10]).unwrap();
        unit.finish().unwrap();
    }
    assert!(matches!(two.claim().unwrap(), State::Busy), "unit 1 is being spoken");
    second.finish().unwrap();
    assert!(matches!(two.claim().unwrap(), State::Complete));
    let now = two.progress();
    assert_eq!((now.units, now.samples, now.chars), (4, 60, plan.chars()));
    let assembly = one.try_assembly().unwrap().expect("free");
    assert!(two.try_assembly().unwrap().is_none(), "one process joins");
    one.remove(assembly).unwrap();
    assert!(matches!(two.claim().unwrap(), State::Gone));
    assert!(!path.exists());
}

#[test]
fn damaged_units_are_spoken_again() {
    let temporary = tempfile::tempdir().unwrap();
    let (_, plan) = plan();
    let mut folder = open(temporary.path(), &plan, &json!({}), false).unwrap();
    let mut unit = claim(&mut folder);
    unit.write(&[0.5; 100]).unwrap();
    unit.finish().unwrap();
    let file = temporary.path().join("00000.f32");
    let whole = std::fs::read(&file).unwrap();
    assert_eq!(whole.len(), 24 + 400);
    for damaged in [&whole[..300], &whole[..10], b"", &[b"x", &whole[1..]].concat()] {
        std::fs::write(&file, damaged).unwrap();
        let mut again = open(temporary.path(), &plan, &json!({}), false).unwrap();
        assert_eq!(again.progress().units, 0);
        assert_eq!(claim(&mut again).index, 0);
    }
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(claim(&mut open(temporary.path(), &plan, &json!({}), false).unwrap()).index, 1);
}

#[test]
fn other_work_is_refused_and_can_be_discarded() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut book, mine) = plan();
    let key = json!({ "model": "a", "seed": 1 });
    let mut folder = open(temporary.path(), &mine, &key, false).unwrap();
    claim(&mut folder).finish().unwrap();
    std::fs::write(temporary.path().join("mine.txt"), "kept").unwrap();
    let refused =
        |plan: &Plan, key: &Value| open(temporary.path(), plan, key, false).unwrap_err().to_string();
    assert!(refused(&mine, &json!({ "model": "b", "seed": 1 })).contains("these differ: model."));
    assert!(refused(&mine, &json!({ "model": "b" })).contains("these differ: model, seed."));
    book.chapters[0].title = Some("X".into());
    assert!(refused(&Plan::new(&book, 0.0), &key).contains("these differ: chapters."));
    std::fs::write(temporary.path().join("plan.json"), "{").unwrap();
    assert!(refused(&mine, &key).contains("plan is damaged"));
    // Another process works there.
    let held = claim(&mut folder.another());
    let in_use = open(temporary.path(), &mine, &key, true).unwrap_err();
    assert!(matches!(in_use, WorkError::InUse { .. }), "{in_use}");
    drop(held);
    let mut anew = open(temporary.path(), &mine, &key, true).unwrap();
    assert_eq!(anew.progress().units, 0);
    let assembly = anew.try_assembly().unwrap().unwrap();
    anew.remove(assembly).unwrap();
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["mine.txt"], "files of others stay");
}

#[test]
fn a_kill_while_the_folder_is_removed_loses_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("a.parts");
    let (_, plan) = plan();
    let mut folder = open(&path, &plan, &json!({}), false).unwrap();
    (0..4).for_each(|_| claim(&mut folder).finish().unwrap());
    std::fs::write(path.join("complete"), "").unwrap();
    std::fs::remove_file(path.join("00002.f32")).unwrap();
    assert!(matches!(folder.claim().unwrap(), State::Gone), "what is missing was removed");
    let opened = WorkFolder::open(&path, &plan, &json!({}), RATE, false).unwrap();
    assert!(matches!(opened, Opened::Finished));
    assert!(!path.exists());
    // For other work the rest counts for nothing.
    let mut folder = open(&path, &plan, &json!({}), false).unwrap();
    (0..4).for_each(|_| claim(&mut folder).finish().unwrap());
    std::fs::write(path.join("complete"), "").unwrap();
    let mut other = open(&path, &plan, &json!({ "seed": 2 }), false).unwrap();
    assert_eq!(other.progress().units, 0);
}

#[test]
fn looking_changes_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("a.parts");
    let (_, plan) = plan();
    assert_eq!(WorkFolder::look(&path, &plan, &json!({}), RATE).unwrap(), [None; 4]);
    assert!(!path.exists());
    let mut folder = open(&path, &plan, &json!({}), false).unwrap();
    let mut unit = claim(&mut folder);
    unit.write(&[0.0; 7]).unwrap();
    unit.keep_notes(b"notes").unwrap();
    unit.finish().unwrap();
    assert_eq!(folder.notes(0).unwrap(), b"notes");
    folder.notes(1).unwrap_err();
    assert_eq!(WorkFolder::look(&path, &plan, &json!({}), RATE).unwrap(), [Some(7), None, None, None]);
    WorkFolder::look(&path, &plan, &json!({ "seed": 1 }), RATE).unwrap_err();
}
