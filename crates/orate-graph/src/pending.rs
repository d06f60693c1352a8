//! Copies to the host that are under way: what every memory keeps of them.

use crate::{DeviceError, Shape};

/// A copy that [`crate::Memory::read_later`] has queued. It stays under way until its memory finishes or
/// discards it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a copy stays under way until it is finished or discarded"]
pub struct Ticket(u64);

/// Where copies under way go, by ticket, and places that are free for the next ones.
#[derive(Debug)]
pub struct Pending<T> {
    next: u64,
    under_way: Vec<(u64, T)>,
    free: Vec<T>,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Pending { next: 0, under_way: vec![], free: vec![] }
    }
}

impl<T> Pending<T> {
    /// Copies that may be under way at once. Two are enough for a host that lags by one; more is a caller
    /// that loses tickets.
    pub const MOST: usize = 8;

    /// A free place, if there is one.
    ///
    /// # Errors
    /// As many copies of this memory are under way as may be; `name` is the buffer of one more.
    pub fn free_place(&mut self, name: &str) -> Result<Option<T>, DeviceError> {
        if self.under_way.len() < Self::MOST {
            return Ok(self.free.pop());
        }
        let got = format!("{} copies are under way", Self::MOST);
        Err(DeviceError::buffer(name, "read later by the host", got, "one of them finished or discarded"))
    }

    /// Notes a copy to `place`.
    pub fn begin(&mut self, place: T) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.under_way.push((ticket.0, place));
        ticket
    }

    /// The place of a copy, which is under way no more.
    ///
    /// # Errors
    /// It is not under way: another memory gave the ticket, or buffers were given back since.
    pub fn end(&mut self, ticket: Ticket) -> Result<T, DeviceError> {
        let Some(i) = self.under_way.iter().position(|(number, _)| *number == ticket.0) else {
            let (name, got) = (format!("copy {}", ticket.0), "no such copy is under way");
            return Err(DeviceError::buffer(&name, "read later by the host", got, "a ticket of this memory"));
        };
        Ok(self.under_way.remove(i).1)
    }

    /// Keeps a place for the next copy.
    pub fn keep(&mut self, place: T) {
        self.free.push(place);
    }

    /// All places, of copies under way and free.
    pub fn places(&self) -> impl Iterator<Item = &T> {
        self.under_way.iter().map(|(_, place)| place).chain(&self.free)
    }

    /// Gives up all places.
    pub fn clear(&mut self) {
        self.under_way.clear();
        self.free.clear();
    }
}

/// Of memories that lie on the host, where a copy is done when it begins: places hold the shape and the
/// numbers.
impl Pending<(Shape, Vec<i32>)> {
    /// Ends a copy; `out` becomes its numbers.
    ///
    /// # Errors
    /// It is not under way.
    pub fn finish(&mut self, ticket: Ticket, out: &mut Vec<i32>) -> Result<Shape, DeviceError> {
        let (shape, numbers) = self.end(ticket)?;
        out.clone_from(&numbers);
        self.keep((shape.clone(), numbers));
        Ok(shape)
    }

    /// Ends a copy that is not wanted, if it is under way.
    pub fn discard(&mut self, ticket: Ticket) {
        if let Ok(place) = self.end(ticket) {
            self.keep(place);
        }
    }
}
