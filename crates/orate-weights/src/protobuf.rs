//! The wire format of protocol buffers, as far as ONNX needs it.
//!
//! Written by hand because a generated decoder builds every message of a file before anyone can say "too many":
//! two bytes of an empty node become hundreds in memory. Here the caller walks the fields of one message, borrows
//! what it wants and never descends into what it does not know, so depth costs nothing.

use crate::error::{Fault, malformed, unsupported};

/// The content of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field<'a> {
    Varint(u64),
    /// Eight bytes, which nothing here reads.
    Fixed64,
    Fixed32(&'a [u8]),
    /// A string, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
}

/// The fields of one message, in order.
pub(crate) struct Message<'a> {
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The next field's number and content, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, Fault> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = varint(&mut self.bytes)?;
        let field = match tag & 7 {
            0 => Field::Varint(varint(&mut self.bytes)?),
            1 => {
                self.take(8)?;
                Field::Fixed64
            }
            2 => {
                let len = varint(&mut self.bytes)?;
                Field::Bytes(self.take(len)?)
            }
            5 => Field::Fixed32(self.take(4)?),
            3 | 4 => return unsupported!("protobuf groups"),
            other => return malformed!("a protobuf field has wire type {other}"),
        };
        match tag >> 3 {
            0 => malformed!("a protobuf field has number 0"),
            number => Ok(Some((number, field))),
        }
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], Fault> {
        match usize::try_from(len).ok().and_then(|len| self.bytes.split_at_checked(len)) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None => malformed!("a field of {len} bytes, but only {} are left", self.bytes.len()),
        }
    }
}

impl<'a> Field<'a> {
    pub(crate) fn bytes(self) -> Result<&'a [u8], Fault> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            other => malformed!("expected bytes, found {other:?}"),
        }
    }

    pub(crate) fn text(self) -> Result<&'a str, Fault> {
        match std::str::from_utf8(self.bytes()?) {
            Ok(text) => Ok(text),
            Err(e) => malformed!("a string is not UTF-8: {e}"),
        }
    }

    pub(crate) fn int(self) -> Result<i64, Fault> {
        match self {
            Self::Varint(value) => Ok(value as i64),
            _ => malformed!("expected an integer"),
        }
    }

    pub(crate) fn float(self) -> Result<f32, Fault> {
        match self {
            Self::Fixed32(&[a, b, c, d]) => Ok(f32::from_le_bytes([a, b, c, d])),
            _ => malformed!("expected a float"),
        }
    }

    /// Calls `each` for the numbers of a repeated integer field, packed or not.
    pub(crate) fn each_int(self, mut each: impl FnMut(i64) -> Result<(), Fault>) -> Result<(), Fault> {
        match self {
            Self::Bytes(mut packed) => {
                while !packed.is_empty() {
                    each(varint(&mut packed)? as i64)?;
                }
                Ok(())
            }
            other => each(other.int()?),
        }
    }

    /// The little-endian bytes of a repeated field of 4-byte numbers, packed or not.
    pub(crate) fn words(self) -> Result<&'a [u8], Fault> {
        match self {
            Self::Bytes(packed) if packed.len().is_multiple_of(4) => Ok(packed),
            Self::Fixed32(word) => Ok(word),
            _ => malformed!("expected packed floats"),
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Fault> {
    let mut value = 0;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        if i == 9 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *bytes = &bytes[i + 1..];
            return Ok(value);
        }
    }
    malformed!("a number has no end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints() {
        let cases: [(&[u8], Option<u64>); 7] = [
            (&[0], Some(0)),
            (&[0x96, 0x01], Some(150)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], Some(u64::MAX)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], None),
            (&[0x80; 11], None),
            (&[0x80], None),
            (&[], None),
        ];
        for (bytes, expected) in cases {
            assert_eq!(varint(&mut &bytes[..]).ok(), expected, "{bytes:?}");
        }
    }

    #[test]
    fn fields_in_order() {
        let mut message = Message::new(&[0x08, 0x05, 0x12, 0x02, b'h', b'i', 0x1d, 0, 0, 0x80, 0x3f]);
        let (number, field) = message.next().unwrap().unwrap();
        assert_eq!((number, field.int().unwrap()), (1, 5));
        let (number, field) = message.next().unwrap().unwrap();
        assert_eq!((number, field.text().unwrap()), (2, "hi"));
        let (number, field) = message.next().unwrap().unwrap();
        assert_eq!((number, field.float().unwrap()), (3, 1.0));
        assert!(message.next().unwrap().is_none());
        for broken in [&[0x12, 0x05, b'h'][..], &[0x0b], &[0x07, 0], &[0x00, 0x01], &[0x09, 0]] {
            assert!(Message::new(broken).next().is_err(), "{broken:?}");
        }
    }
}
