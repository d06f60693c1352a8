//! Emoji and drawn signs: they are not spoken.

use crate::supertonic::is_emoji;

/// Whether a character is an emoji or a drawn sign: arrows, lines, shapes, keycaps.
pub(crate) fn is_picture(c: char) -> bool {
    is_emoji(c)
        || matches!(c,
            '\u{20DD}'..='\u{20E0}' | '\u{20E2}'..='\u{20E4}'
            | '\u{2190}'..='\u{21FF}' | '\u{2300}'..='\u{23FF}' | '\u{2500}'..='\u{25FF}'
            | '\u{2B00}'..='\u{2BFF}' | '\u{1F000}'..='\u{1F2FF}' | '\u{1F650}'..='\u{1F67F}'
            | '\u{1F780}'..='\u{1F8FF}' | '\u{2800}'..='\u{28FF}'
            | '\u{203C}' | '\u{2049}' | '\u{3030}' | '\u{303D}')
}
