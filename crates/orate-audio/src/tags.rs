//! Title, author and chapters of a file.

/// What a file of speech says about itself. MP3, Opus and MP4 have tags; other formats leave them out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tags {
    /// Title of the file.
    pub title: Option<String>,
    /// Title of the whole that the file is part of.
    pub album: Option<String>,
    /// Author or speaker.
    pub artist: Option<String>,
    /// Language code, such as `en` or `en-GB`.
    pub language: Option<String>,
    /// Number of the file among those of its album, from 1, and how many there are.
    pub track: Option<(u32, u32)>,
    /// Chapters in order; the first begins at 0.
    pub chapters: Vec<ChapterMark>,
    /// Seconds of sound, where the last chapter ends.
    pub seconds: f64,
}

/// Where a chapter begins.
#[derive(Clone, Debug, PartialEq)]
pub struct ChapterMark {
    /// Title of the chapter.
    pub title: String,
    /// Seconds from the beginning of the file.
    pub start: f64,
}

impl Tags {
    /// Chapters with their ends, in units of a second divided by `scale`.
    #[cfg_attr(not(feature = "chapters"), allow(dead_code, reason = "MP3 and MP4 have ends"))]
    pub(crate) fn spans(&self, scale: f64) -> Vec<(&str, u64, u64)> {
        let units = |seconds: f64| (seconds * scale).round() as u64;
        let ends = self.chapters.iter().skip(1).map(|next| next.start).chain([self.seconds]);
        let span = |(chapter, end): (&'_ ChapterMark, f64)| (units(chapter.start), units(end));
        self.chapters
            .iter()
            .zip(ends)
            .map(|(chapter, end)| {
                let (start, end) = span((chapter, end));
                (&*chapter.title, start, end.max(start))
            })
            .collect()
    }
}

/// The tag at the beginning of an MP3 file: ID3 version 2.3 with chapters and a table of contents, as more
/// players read it than 2.4.
#[cfg(all(feature = "chapters", feature = "mp3"))]
pub(crate) fn id3(tags: &Tags) -> crate::Result<Vec<u8>> {
    use id3::frame::{Chapter, TableOfContents};
    use id3::{Tag, TagLike, Version};

    /// Entries of a table of contents, whose number has 8 bits.
    const MOST: usize = 255;
    let failed = |e: id3::Error| crate::AudioError::Encode { format: "mp3", source: e.into() };
    let mut tag = Tag::new();
    let texts = [("TIT2", &tags.title), ("TALB", &tags.album), ("TPE1", &tags.artist)];
    for (name, text) in texts {
        if let Some(text) = text {
            tag.set_text(name, text);
        }
    }
    if let Some(code) = tags.language.as_deref().and_then(iso_639_2) {
        tag.set_text("TLAN", code);
    }
    if let Some((number, count)) = tags.track {
        tag.set_text("TRCK", format!("{number}/{count}"));
    }
    if tags.album.is_some() {
        tag.set_text("TCON", "Audiobook");
    }
    let spans = tags.spans(1000.0);
    if !spans.is_empty() {
        let elements = (0..spans.len().min(MOST)).map(|i| format!("ch{i}")).collect();
        let contents = TableOfContents {
            element_id: "toc".into(),
            top_level: true,
            ordered: true,
            elements,
            frames: vec![],
        };
        tag.add_frame(contents);
    }
    for (i, (title, start, end)) in spans.into_iter().enumerate() {
        let (start_time, end_time) = (start as u32, end as u32);
        let (element_id, start_offset, end_offset) = (format!("ch{i}"), u32::MAX, u32::MAX);
        let frames = vec![id3::Frame::text("TIT2", title)];
        tag.add_frame(Chapter { element_id, start_time, end_time, start_offset, end_offset, frames });
    }
    let mut bytes = vec![];
    if tag.frames().next().is_some() {
        tag.write_to(&mut bytes, Version::Id3v23).map_err(failed)?;
    }
    Ok(bytes)
}

/// Three-letter code of a language, for those with a two-letter code that models speak.
#[cfg_attr(not(feature = "chapters"), allow(dead_code, reason = "MP3 and MP4 have such codes"))]
pub(crate) fn iso_639_2(code: &str) -> Option<&'static str> {
    const CODES: &str = "\
        ar ara bg bul cs ces da dan de deu el ell en eng es spa et est fa fas fi fin fr fra he heb hi hin \
        hr hrv hu hun id ind it ita ja jpn ko kor lt lit lv lav ms msa nl nld no nor pl pol pt por ro ron \
        ru rus sk slk sl slv sv swe sw swa th tha tr tur uk ukr vi vie zh zho";
    let code = code.split(['-', '_']).next()?.to_ascii_lowercase();
    let mut words = CODES.split_whitespace();
    while let (Some(two), Some(three)) = (words.next(), words.next()) {
        if code == two || code == three {
            return Some(three);
        }
    }
    None
}
