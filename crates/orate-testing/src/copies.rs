//! Tests of the contract of [`Memory::copy_from`], [`Memory::extend`], [`Memory::clear_all`],
//! [`Memory::read_shared`] and [`Memory::read_later`] on any device.

use orate_graph::{DType, Device, DeviceError, Memory, Part, Pending, Ticket};

fn part(name: &str, from: std::ops::Range<usize>, to: usize) -> Part<'_> {
    Part { from: (name, from.start), to: (name, to), len: from.len() }
}

/// Reads buffers of a memory of `device` for others, who keep what they got for a while.
///
/// # Panics
/// The contract is broken.
pub fn check_shared_reads(device: &dyn Device) {
    let (name, mut memory) = (device.name(), device.memory());
    let mut held = vec![];
    for length in [1usize, 70_000, 3] {
        let floats: Vec<f32> = (0..length).map(|i| (i * length) as f32).collect();
        memory.write_f32("x", &[length].into(), &floats).expect("room");
        let before = memory.counters();
        let (shape, read) = memory.read_shared("x").expect("is there");
        let used = memory.counters() - before;
        assert_eq!((used.read_backs, used.bytes_down), (1, 4 * length as u64), "{name}");
        assert_eq!(shape.dims(), [length], "{name}");
        held.push((floats, read));
    }
    for (floats, read) in &held {
        assert!((**read).as_ref() == floats, "{name}: {} floats are as they were read", floats.len());
    }
    drop(memory);
    let (floats, read) = held.pop().expect("the last");
    assert!((*read).as_ref() == floats, "{name}: without the memory");

    let mut memory = device.memory();
    memory.write_i32("ids", &[1].into(), &[1]).expect("room");
    for other in ["ids", "none"] {
        let refused = memory.read_shared(other).err();
        assert!(matches!(refused, Some(DeviceError::Buffer { .. })), "{name}: {other}");
    }
}

/// Copies parts of buffers between two memories of `device` repeatedly, and requests invalid copies.
///
/// # Panics
/// The contract is broken.
pub fn check_copies(device: &dyn Device) {
    let name = device.name();
    let (mut here, mut there) = (device.memory(), device.memory());
    let rows: Vec<f32> = (0..24).map(|i| i as f32).collect();
    there.write_f32("rows", &[2, 3, 4].into(), &rows).expect("room");
    there.write_i32("ids", &[3].into(), &[7, 8, 9]).expect("room");
    here.clear("rows", DType::F32, &[3, 5, 4].into()).expect("room");
    here.clear("other", DType::F32, &[2].into()).expect("room");
    here.write_i32("ids", &[2].into(), &[1, 2]).expect("room");
    let before = here.counters();
    let parts =
        [part("rows", 12..20, 40), part("ids", 2..3, 0), part("rows", 0..4, 0), part("rows", 5..5, 60)];
    let other = Part { from: ("rows", 23), to: ("other", 1), len: 1 };
    here.copy_from(there.as_mut(), &parts).expect("fits");
    here.copy_from(there.as_mut(), &[other]).expect("fits");
    let used = here.counters() - before;
    assert_eq!(
        (used.read_backs, used.bytes_up, used.bytes_down),
        (0, 0, 0),
        "{name}: the host moves nothing"
    );
    // The copy happened before this write.
    there.write_f32("rows", &[2, 3, 4].into(), &[-1.0; 24]).expect("room");
    let mut wanted = vec![0.0; 60];
    wanted[40..48].copy_from_slice(&rows[12..20]);
    wanted[..4].copy_from_slice(&rows[..4]);
    let (mut floats, mut ids) = (vec![], vec![]);
    here.read_f32("rows", &mut floats).expect("is there");
    here.read_i32("ids", &mut ids).expect("is there");
    assert_eq!((&floats, ids), (&wanted, vec![9, 2]), "{name}");
    here.read_f32("other", &mut floats).expect("is there");
    assert_eq!(floats, [0.0, 23.0], "{name}: under another name");

    check_many_parts(device);

    let mut refused = |part: Part<'_>, words: &str| {
        let e = here.copy_from(there.as_mut(), &[part]).expect_err("cannot be copied");
        assert!(matches!(&e, DeviceError::Buffer { .. }) && e.to_string().contains(words), "{name}: {e}");
    };
    refused(part("rows", 0..25, 0), "got f32 [2, 3, 4] and f32 [3, 5, 4]");
    refused(part("rows", 0..4, 57), "needs 4 elements from 0 to 57");
    refused(part("none", 0..0, 0), "got no buffer and no buffer");
    there.write_i32("rows", &[2, 3, 4].into(), &[0; 24]).expect("room");
    let mixed = here.copy_from(there.as_mut(), &[part("rows", 0..4, 0)]);
    assert!(matches!(mixed, Err(DeviceError::Buffer { .. })), "{name}: other elements");
}

/// More parts than a device may copy at once, of all lengths and alignments.
fn check_many_parts(device: &dyn Device) {
    const PARTS: usize = 250;
    let (mut here, mut there) = (device.memory(), device.memory());
    let numbers: Vec<f32> = (0..40_000).map(|i| i as f32).collect();
    there.write_f32("x", &[40_000].into(), &numbers).expect("room");
    here.clear("x", DType::F32, &[40_000].into()).expect("room");
    let (mut wanted, mut parts, mut to) = (vec![0.0; 40_000], vec![], 0);
    for i in 0..PARTS {
        // The last part is long, some are empty, and most are not aligned to 16 bytes.
        let (len, from) = (if i + 1 == PARTS { 20_001 } else { i % 37 }, i * 61);
        parts.push(part("x", from..from + len, to));
        wanted[to..to + len].copy_from_slice(&numbers[from..from + len]);
        to += len + i % 5;
    }
    here.copy_from(there.as_mut(), &parts).expect("fits");
    let mut got = vec![];
    here.read_f32("x", &mut got).expect("is there");
    assert!(got == wanted, "{}: {PARTS} parts", device.name());
}

/// Writes, reads, copies and extends rows of compact elements.
///
/// # Panics
/// The contract is broken.
pub fn check_compact_rows(device: &dyn Device) {
    let name = device.name();
    for dtype in DType::COMPACT {
        let (mut here, mut there) = (device.memory(), device.memory());
        let row = dtype.row_bytes(64);
        let bytes: Vec<u8> = (0..6 * row).map(|i| (i * 7) as u8).collect();
        there.write_bytes("rows", dtype, &[2, 3, 64].into(), &bytes).expect("room");
        let mut got = vec![];
        assert_eq!(there.read_bytes("rows", &mut got).expect("is there"), (dtype, [2, 3, 64].into()));
        assert_eq!(got, bytes, "{name} in {dtype}");
        let e = there.read_f32("rows", &mut vec![]).expect_err("is no float buffer").to_string();
        assert!(e.contains(&format!("got {dtype} [2, 3, 64]")), "{name}: {e}");
        let e = there.write_bytes("rows", dtype, &[2, 3, 64].into(), &bytes[1..]).expect_err("too few");
        assert!(e.to_string().contains(&format!("{} bytes", bytes.len() - 1)), "{name}: {e}");

        here.clear("rows", dtype, &[3, 5, 64].into()).expect("room");
        here.copy_from(there.as_mut(), &[part("rows", 3 * 64..5 * 64, 5 * 64)]).expect("fits");
        let mut wanted = vec![0; 15 * row];
        wanted[5 * row..7 * row].copy_from_slice(&bytes[3 * row..5 * row]);
        here.read_bytes("rows", &mut got).expect("is there");
        assert_eq!(got, wanted, "{name} in {dtype}");
        for wrong in [part("rows", 0..32, 0), part("rows", 0..64, 32), part("rows", 32..96, 0)] {
            let e = here.copy_from(there.as_mut(), &[wrong]).expect_err("not whole rows").to_string();
            assert!(e.contains("whole rows"), "{name}: {e}");
        }
        there.extend(&[("rows", &[2, 900, 64].into())]).expect("room");
        there.read_bytes("rows", &mut got).expect("is there");
        assert_eq!((&got[..3 * row], &got[900 * row..903 * row]), (&bytes[..3 * row], &bytes[3 * row..]));
        here.clear("rows", DType::F32, &[3, 5, 64].into()).expect("room");
        let mixed = here.copy_from(there.as_mut(), &[part("rows", 0..64, 0)]);
        assert!(matches!(mixed, Err(DeviceError::Buffer { .. })), "{name}: other elements");
    }
}

/// Copies to `here` from the memory of another device, which `here` must refuse.
///
/// # Panics
/// The copy succeeds.
pub fn check_foreign_copy(here: &mut dyn Memory, foreign: &mut dyn Memory) {
    assert!(matches!(here.copy_from(foreign, &[]), Err(DeviceError::Mixed { .. })), "{}", here.device());
}

/// Adds rows to buffers of `device`, and requests invalid extensions.
///
/// # Panics
/// Existing rows change.
pub fn check_extensions(device: &dyn Device) {
    let name = device.name();
    let mut m = device.memory();
    let rows: Vec<f32> = (0..24).map(|i| i as f32).collect();
    m.write_f32("two", &[2, 3, 4].into(), &rows).expect("room");
    m.write_f32("one", &[1, 6, 4].into(), &rows).expect("room");
    m.write_i32("ids", &[1, 2].into(), &[7, 8]).expect("room");
    m.write_f32("stays", &[24].into(), &rows).expect("room");
    let before = m.counters();
    let shapes = [[2, 5, 4].into(), [1, 700, 4].into(), [1, 3].into()];
    m.extend(&[("two", &shapes[0]), ("one", &shapes[1]), ("ids", &shapes[2])]).expect("room");
    m.extend(&[("one", &shapes[1])]).expect("as large as it is");
    let used = m.counters() - before;
    assert_eq!((used.read_backs, used.bytes_up, used.bytes_down), (0, 0, 0), "{name}");
    assert_eq!((m.shape_of("two"), m.shape_of("none")), (Some(&shapes[0]), None), "{name}");
    let (mut floats, mut ids) = (vec![], vec![]);
    assert_eq!(m.read_f32("two", &mut floats).expect("is there"), shapes[0], "{name}");
    assert_eq!((&floats[..12], &floats[20..32]), (&rows[..12], &rows[12..]), "{name}");
    assert_eq!(m.read_f32("one", &mut floats).expect("is there"), shapes[1], "{name}");
    assert_eq!(floats[..24], rows, "{name}");
    m.read_i32("ids", &mut ids).expect("is there");
    assert_eq!((ids.len(), &ids[..2]), (3, &[7, 8][..]), "{name}");
    m.read_f32("stays", &mut floats).expect("is there");
    assert_eq!(floats, rows, "{name}");
    for (buffer, shape) in [("two", [2, 4, 4].into()), ("one", [1, 700, 5].into()), ("none", [1, 1].into())] {
        let e = m.extend(&[(buffer, &shape)]).expect_err("cannot be extended");
        assert!(
            matches!(&e, DeviceError::Buffer { .. }) && e.to_string().contains("extended"),
            "{name}: {e}"
        );
    }
}

/// Requests copies to the host and finishes them later, in any order, while buffers are changed, extended and
/// read.
///
/// # Panics
/// The contract is broken.
pub fn check_later_reads(device: &dyn Device) {
    [device.memory(), device.background_memory()].into_iter().for_each(|m| later_reads(device, m));
}

fn later_reads(device: &dyn Device, mut m: Box<dyn Memory>) {
    let name = device.name();
    let (mut ids, mut words): (Vec<i32>, _) = (vec![3; 5], vec![]);
    let refused = |r: Result<Ticket, DeviceError>, words: &str| {
        let e = r.expect_err("cannot be read");
        assert!(matches!(&e, DeviceError::Buffer { .. }) && e.to_string().contains(words), "{name}: {e}");
    };
    refused(m.read_later("ids"), "`ids`");
    m.write_f32("floats", &[2].into(), &[1.0, 2.0]).expect("room");
    refused(m.read_later("floats"), "`floats`");
    for round in 0..3 {
        let before = m.counters();
        let mut tickets = vec![];
        for i in 0..4 {
            m.write_i32("ids", &[1, 2].into(), &[10 * round + i, -i]).expect("room");
            tickets.push(m.read_later("ids").expect("room"));
        }
        // Commands queued after the copy do not affect it.
        m.extend(&[("ids", &[1, 3000].into())]).expect("room");
        m.write_i32("ids", &[1, 3000].into(), &[-1; 3000]).expect("room");
        let large = m.read_later("ids").expect("room");
        m.read_i32("ids", &mut words).expect("is there");
        let [first, second, third, fourth] = tickets.try_into().expect("four");
        for (i, ticket) in [(1, second), (3, fourth), (0, first)] {
            assert_eq!(m.finish(ticket, &mut ids).expect("is under way"), [1, 2].into(), "{name}");
            assert_eq!(ids, [10 * round + i, -i], "{name}");
        }
        m.discard(third);
        assert_eq!(m.finish(large, &mut ids).expect("is under way"), [1, 3000].into(), "{name}");
        assert_eq!((&ids, ids.len()), (&words, 3000), "{name}");
        let used = m.counters() - before;
        assert_eq!(
            (used.read_backs, used.bytes_down),
            (6, 4 * 8 + 2 * 12_000),
            "{name}: each when it is asked for"
        );
        // Slots of discarded copies are reused.
        for _ in 0..20 {
            let ticket = m.read_later("ids").expect("room");
            m.discard(ticket);
        }
    }
    let mut tickets: Vec<_> = (0..Pending::<()>::MOST).map(|_| m.read_later("ids").expect("room")).collect();
    refused(m.read_later("ids"), "copies are under way");
    let mut other = device.memory();
    let e = other.finish(tickets.pop().expect("some"), &mut ids).expect_err("another memory's");
    assert!(e.to_string().contains("no such copy is under way"), "{name}: {e}");
    tickets.into_iter().for_each(|t| m.discard(t));
    m.write_i32("none", &[0].into(), &[]).expect("room");
    let ticket = m.read_later("none").expect("room");
    assert_eq!((m.finish(ticket, &mut ids).expect("is under way"), ids.len()), ([0].into(), 0), "{name}");
}

/// Clears existing and new buffers, and reserves some, in both kinds of memory.
///
/// # Panics
/// The contract is broken.
pub fn check_clearing(device: &dyn Device) {
    for mut m in [device.memory(), device.background_memory()] {
        let (name, mut floats, mut ids) = (device.name(), vec![], vec![]);
        m.write_f32("stays", &[3].into(), &[1.0, 2.0, 3.0]).expect("room");
        for rows in [2, 700, 2] {
            let shape = [rows, 300].into();
            m.clear_all(&[("floats", DType::F32, &shape), ("ids", DType::I32, &[rows].into())])
                .expect("room");
            assert_eq!(m.read_f32("floats", &mut floats).expect("is there"), shape, "{name}");
            m.read_i32("ids", &mut ids).expect("is there");
            assert!(floats.iter().all(|x| *x == 0.0) && ids == vec![0; rows], "{name}: {rows} rows");
            m.write_f32("floats", &shape, &vec![7.0; 300 * rows]).expect("room");
            m.write_i32("ids", &[rows].into(), &vec![7; rows]).expect("room");
            m.reserve("anything", DType::F32, &shape).expect("room");
            assert_eq!(m.read_f32("anything", &mut floats).expect("is there"), shape, "{name}");
            // New ones together with some that are there, or had less room. What they hold may be anything.
            let [a, b, c] = ["first", "floats", "third"].map(|n| (n, DType::F32, &shape));
            m.reserve_all(&[a, b, c]).expect("room");
            m.set_urgent(rows == 700).expect("knows both kinds or one");
            assert_eq!(m.read_f32("floats", &mut floats).expect("is there"), shape, "{name}");
            m.write_f32("third", &shape, &vec![5.0; 300 * rows]).expect("room");
            m.clear_all(&[a, ("second", DType::F32, &shape)]).expect("room");
            for (buffer, wanted) in [("first", 0.0), ("second", 0.0), ("third", 5.0)] {
                assert_eq!(m.read_f32(buffer, &mut floats).expect("is there"), shape, "{name}");
                assert!(floats.iter().all(|x| *x == wanted), "{name}: {buffer} of {rows} rows");
            }
        }
        m.read_f32("stays", &mut floats).expect("is there");
        assert_eq!(floats, [1.0, 2.0, 3.0], "{name}");
    }
}
