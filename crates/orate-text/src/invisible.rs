//! Invisible characters: they only change how others are drawn, or where lines break.

/// Whether a character is invisible and silent: soft hyphens, zero-width spaces and joiners, direction marks,
/// variation selectors and byte order marks. They come with emoji and with text copied from web pages.
///
/// ```
/// use orate_text::is_invisible;
///
/// let visible: String = "co\u{AD}operate\u{FEFF}".chars().filter(|c| !is_invisible(*c)).collect();
/// assert_eq!(visible, "cooperate");
/// ```
#[must_use]
pub fn is_invisible(c: char) -> bool {
    // Unicode's Default_Ignorable_Code_Point, except the Hangul fillers.
    matches!(
        c,
        '\u{AD}'
            | '\u{34F}'
            | '\u{61C}'
            | '\u{180B}'..='\u{180F}'
            | '\u{200B}'..='\u{200F}'
            | '\u{202A}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}'
            | '\u{FE00}'..='\u{FE0F}'
            | '\u{FEFF}'
            | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}'
    )
}
