//! Classes of East Asian characters.

/// Whether a character is a syllable or a word by itself, and words are written without spaces: Han and kana.
pub(crate) fn stands_alone(c: char) -> bool {
    match c {
        '\u{3005}'..='\u{3007}' => true,
        '\u{30FB}' | '\u{30A0}' => false,
        '\u{3041}'..='\u{30FF}' | '\u{FF66}'..='\u{FF9F}' => !extends_kana(c),
        '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' => true,
        '\u{20000}'..='\u{3FFFF}' => true,
        _ => false,
    }
}

/// Whether a character belongs to the kana before it: small kana, the mark of long vowels, sound marks.
pub(crate) fn extends_kana(c: char) -> bool {
    "ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶーｧｨｩｪｫｬｭｮｯｰﾞﾟ".contains(c)
        || matches!(c, '\u{3099}'..='\u{309C}' | '\u{31F0}'..='\u{31FF}')
}

/// Whether a character is a Hangul syllable.
pub(crate) fn is_hangul(c: char) -> bool {
    matches!(c, '\u{AC00}'..='\u{D7A3}')
}

/// Whether a character takes two columns: East Asian letters and marks, full-width forms, emoji.
pub(crate) fn is_wide(c: char) -> bool {
    matches!(c,
        '\u{1100}'..='\u{115F}' | '\u{2E80}'..='\u{303E}' | '\u{3041}'..='\u{33FF}'
        | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{A4CF}' | '\u{A960}'..='\u{A97C}'
        | '\u{AC00}'..='\u{D7A3}' | '\u{F900}'..='\u{FAFF}' | '\u{FE30}'..='\u{FE6F}'
        | '\u{FF01}'..='\u{FF60}' | '\u{FFE0}'..='\u{FFE6}' | '\u{1F300}'..='\u{1F64F}'
        | '\u{1F680}'..='\u{1F6FF}' | '\u{1F900}'..='\u{1F9FF}' | '\u{1FA70}'..='\u{1FAFF}'
        | '\u{20000}'..='\u{3FFFD}')
}
