//! Audiobooks: AAC in MP4 with chapters.
//!
//! Chapters are written in both usual ways: as a text track that the sound refers to (QuickTime), and as a
//! list (`chpl`, Nero), which has at most 255. The index follows the sound, as its size is not known before.

use crate::encode::{EncoderSettings, StreamEncoder};
use crate::error::{AudioError, Result};
use crate::format::AudioFormat;
use crate::output::{create, write_error};
use crate::tags::Tags;
use orate_files::OutputFile;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Samples of a frame of AAC-LC.
const FRAME: u64 = 1024;
/// Samples before the sound when it is decoded.
const DELAY: u64 = 1024;
/// Frames of a chunk, about 2 s at 24 kHz.
const CHUNK: usize = 50;
/// Bytes of an ADTS header without a checksum.
const ADTS: usize = 7;

/// Writes an audiobook (`.m4b`) as its samples arrive, in memory of four bytes a frame.
///
/// The file gets its name only when [`finish`](Self::finish) succeeds.
#[derive(Debug)]
pub struct M4bWriter {
    path: PathBuf,
    encoder: StreamEncoder,
    input_rate: u32,
    tags: Tags,
    frames: Frames,
}

/// Frames in the file.
#[derive(Debug)]
struct Frames {
    output: OutputFile,
    /// ADTS frames that are not written yet.
    bytes: Vec<u8>,
    /// Bytes of each written frame.
    sizes: Vec<u32>,
    /// Bytes of the file before the frames.
    start: u64,
    /// Bytes of all written frames.
    length: u64,
}

impl M4bWriter {
    /// Starts a file for samples of this rate in Hz. Chapters come from `tags`.
    ///
    /// # Errors
    ///
    /// [`AudioError::NotBuilt`] without the feature `aac`, [`AudioError::Create`] if the folder is missing or
    /// may not be written to, or this is a device or pipe.
    pub fn create(path: impl AsRef<Path>, sample_rate: u32, tags: &Tags) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let encoder = StreamEncoder::new(AudioFormat::Aac, sample_rate, &EncoderSettings::default())?;
        let output = create(&path)?;
        if !output.is_seekable() {
            let source = io::Error::new(io::ErrorKind::NotSeekable, "MP4 needs a file");
            return Err(AudioError::Create { path, source });
        }
        let header = boxes::begin()?;
        output.sink().write_all(&header).map_err(|e| write_error(&path, e))?;
        let frames = Frames { output, bytes: vec![], sizes: vec![], start: header.len() as u64, length: 0 };
        Ok(Self { path, encoder, input_rate: sample_rate, tags: tags.clone(), frames })
    }

    /// Name of the file until it is complete, as for [`AudioWriter`](crate::AudioWriter::temporary_path).
    pub fn temporary_path(&self) -> Option<&Path> {
        self.frames.output.temporary_path()
    }

    /// Appends samples, clipped to -1..1.
    ///
    /// # Errors
    ///
    /// [`AudioError::BadSample`] if a sample is not finite, [`AudioError::Write`] if the disk is full.
    pub fn write(&mut self, samples: &[f32]) -> Result<()> {
        self.encoder.push(samples, &mut self.frames.bytes)?;
        self.frames.write().map_err(|e| write_error(&self.path, e))
    }

    /// Completes the file and gives it its name, replacing an existing file.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write). Nothing remains then.
    pub fn finish(self) -> Result<()> {
        let Self { path, encoder, input_rate, tags, mut frames } = self;
        let (rate, samples) = (encoder.sample_rate(), encoder.samples());
        let length = (samples as f64 * f64::from(rate) / f64::from(input_rate)).round() as u64;
        encoder.finish(&mut frames.bytes)?;
        frames.write().map_err(|e| write_error(&path, e))?;
        let titles = boxes::titles(&tags);
        let size = 16 + frames.length + titles.iter().map(|title| title.len() as u64).sum::<u64>();
        let track = boxes::Track { rate, length, sizes: &frames.sizes, start: frames.start };
        let index = boxes::index(&track, &tags, &titles, frames.start + frames.length)?;
        let write = || {
            let mut sink = frames.output.sink();
            for title in &titles {
                sink.write_all(title)?;
            }
            sink.write_all(&index)?;
            sink.seek(SeekFrom::Start(frames.start - 8))?;
            sink.write_all(&size.to_be_bytes())?;
            drop(sink);
            frames.output.commit()
        };
        write().map_err(|e| write_error(&path, e))
    }
}

impl Frames {
    /// Writes complete frames without their ADTS headers.
    fn write(&mut self) -> io::Result<()> {
        let mut sink = self.output.sink();
        let mut at = 0;
        while let Some(header) = self.bytes.get(at..at + ADTS) {
            // 13 bits that begin with the last two of byte 3.
            let [high, middle, low] = [header[3] & 3, header[4], header[5] >> 5].map(usize::from);
            let length = high << 11 | middle << 3 | low;
            let Some(frame) = self.bytes.get(at + ADTS..at + length) else { break };
            sink.write_all(frame)?;
            self.sizes.push(frame.len() as u32);
            self.length += frame.len() as u64;
            at += length;
        }
        self.bytes.drain(..at);
        Ok(())
    }
}

/// The boxes of MP4.
mod boxes {
    use super::{CHUNK, DELAY, FRAME};
    use crate::error::{AudioError, Result};
    use crate::tags::{Tags, iso_639_2};
    use mp4_atom::{
        Any, Audio, Chpl, ChplEntry, Co64, Codec, Dinf, Dref, Edts, Elst, ElstEntry, Encode, FourCC, Ftyp,
        Hdlr, Mdhd, Mdia, Meta, Minf, Moov, Mp4a, Mvhd, Nmhd, Smhd, Stbl, Stco, Stsc, StscEntry, Stsd, Stsz,
        StszSamples, Stts, SttsEntry, Tkhd, TrackReferenceTypeBox, Trak, Tref, Tx3g, Udta, Url, esds,
    };

    /// Longest title in bytes: those of a list have a length of 8 bits.
    const MAX_TITLE: usize = 255;
    /// Chapters of a list, whose number has 8 bits.
    const MAX_LIST: usize = 255;
    /// Units of time of the chapter track, per second.
    const CHAPTER_SCALE: u32 = 1000;

    /// The sound.
    pub struct Track<'a> {
        /// Sample rate in Hz.
        pub rate: u32,
        /// Samples of the sound.
        pub length: u64,
        /// Bytes of each frame.
        pub sizes: &'a [u32],
        /// Where the first frame begins in the file.
        pub start: u64,
    }

    fn failed(e: mp4_atom::Error) -> AudioError {
        AudioError::Encode { format: "m4b", source: e.into() }
    }

    /// File type, and the header of the data, whose size is its last 8 bytes.
    pub fn begin() -> Result<Vec<u8>> {
        let mut bytes = vec![];
        let brands = [b"M4B ", b"M4A ", b"mp42", b"isom"].map(FourCC::new);
        let ftyp = Ftyp { major_brand: brands[0], minor_version: 0, compatible_brands: brands.to_vec() };
        ftyp.encode(&mut bytes).map_err(failed)?;
        bytes.extend(1_u32.to_be_bytes());
        bytes.extend(b"mdat");
        bytes.extend([0; 8]);
        Ok(bytes)
    }

    /// Titles of chapters as the samples of a text track.
    pub fn titles(tags: &Tags) -> Vec<Vec<u8>> {
        let sample = |title: &str| [&(title.len() as u16).to_be_bytes(), title.as_bytes()].concat();
        tags.chapters.iter().map(|chapter| sample(cut(&chapter.title))).collect()
    }

    /// A title of at most [`MAX_TITLE`] bytes.
    fn cut(title: &str) -> &str {
        &title[..title.floor_char_boundary(MAX_TITLE)]
    }

    /// The index of the file. The chapter track's samples are `titles`, from byte `titles_at`.
    pub fn index(track: &Track, tags: &Tags, titles: &[Vec<u8>], titles_at: u64) -> Result<Vec<u8>> {
        let language = tags.language.as_deref().and_then(iso_639_2).unwrap_or("und").to_owned();
        let mut trak = vec![sound(track, &language, !titles.is_empty())?];
        let spans = tags.spans(f64::from(CHAPTER_SCALE));
        if !titles.is_empty() {
            trak.push(chapters(track, &spans, titles, titles_at, &language)?);
        }
        let list = tags.chapters.iter().take(MAX_LIST).map(|chapter| ChplEntry {
            start: (chapter.start * 1e7).round() as u64,
            title: cut(&chapter.title).to_owned(),
        });
        let list = Chpl { entries: list.collect() };
        let moov = Moov {
            mvhd: Mvhd {
                timescale: track.rate,
                duration: track.length,
                rate: 1.into(),
                volume: 1.into(),
                next_track_id: trak.len() as u32 + 1,
                ..Mvhd::default()
            },
            trak,
            udta: Some(Udta {
                chpl: Some(list).filter(|list| !list.entries.is_empty()),
                meta: Some(metadata(tags)),
                ..Udta::default()
            }),
            ..Moov::default()
        };
        let mut bytes = vec![];
        moov.encode(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }

    fn sound(track: &Track, language: &str, has_chapters: bool) -> Result<Trak> {
        let Track { rate, length, sizes, start } = *track;
        let mut at = start;
        let mut entries = vec![];
        for chunk in sizes.chunks(CHUNK) {
            entries.push(at);
            at += chunk.iter().map(|size| u64::from(*size)).sum::<u64>();
        }
        let seconds = sizes.len() as f64 * FRAME as f64 / f64::from(rate);
        let average = ((at - start) as f64 * 8.0 / seconds.max(1e-3)) as u32;
        let most = sizes
            .iter()
            .max()
            .map_or(0, |size| (f64::from(*size) * 8.0 * f64::from(rate) / FRAME as f64) as u32);
        const RATES: [u32; 12] =
            [96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8000];
        let freq_index = RATES.iter().position(|known| *known == rate).unwrap_or(4) as u8;
        let entry = Mp4a {
            audio: Audio {
                data_reference_index: 1,
                channel_count: 1,
                sample_size: 16,
                // Of rates beyond 16 bits, players read that of the decoder's configuration.
                sample_rate: u16::try_from(rate).unwrap_or(0).into(),
            },
            esds: esds::Esds {
                es_desc: esds::EsDescriptor {
                    es_id: 1,
                    dec_config: esds::DecoderConfig {
                        object_type_indication: 0x40,
                        stream_type: 5,
                        max_bitrate: most,
                        avg_bitrate: average,
                        dec_specific: Some(esds::DecoderSpecific {
                            profile: 2,
                            freq_index,
                            chan_conf: 1,
                            raw: vec![2 << 3 | freq_index >> 1, freq_index << 7 | 1 << 3],
                        }),
                        ..Default::default()
                    },
                    ..Default::default()
                },
            },
            btrt: None,
            taic: None,
        };
        let chunks = Chunks { per_chunk: CHUNK as u32, count: sizes.len() as u32, offsets: entries };
        let durations = vec![SttsEntry { sample_count: sizes.len() as u32, sample_delta: FRAME as u32 }];
        let chap = TrackReferenceTypeBox { reference_type: FourCC::new(b"chap"), track_ids: vec![2] };
        Ok(Trak {
            tkhd: Tkhd {
                track_id: 1,
                duration: length,
                enabled: true,
                in_movie: true,
                volume: 1.into(),
                ..Tkhd::default()
            },
            // Players leave out what the encoder adds.
            edts: Some(Edts {
                elst: Some(Elst {
                    entries: vec![ElstEntry {
                        segment_duration: length,
                        media_time: Some(DELAY),
                        media_rate: 1.into(),
                    }],
                }),
            }),
            tref: has_chapters.then(|| Tref { track_reference_type_boxes: vec![chap] }),
            mdia: Mdia {
                mdhd: Mdhd {
                    timescale: rate,
                    duration: sizes.len() as u64 * FRAME,
                    language: language.to_owned(),
                    ..Mdhd::default()
                },
                hdlr: Hdlr { handler: FourCC::new(b"soun"), name: "Sound".to_owned() },
                minf: Minf {
                    smhd: Some(Smhd::default()),
                    dinf: here(),
                    stbl: table(entry.into(), sizes.to_vec(), durations, chunks),
                    ..Minf::default()
                },
            },
            ..Trak::default()
        })
    }

    fn chapters(
        track: &Track,
        spans: &[(&str, u64, u64)],
        titles: &[Vec<u8>],
        at: u64,
        language: &str,
    ) -> Result<Trak> {
        let durations = spans
            .iter()
            .map(|(_, start, end)| SttsEntry { sample_count: 1, sample_delta: (end - start) as u32 })
            .collect();
        let sizes = titles.iter().map(|title| title.len() as u32).collect();
        let chunks = Chunks { per_chunk: titles.len() as u32, count: titles.len() as u32, offsets: vec![at] };
        let entry = Tx3g { data_reference_index: 1, ..Tx3g::default() };
        Ok(Trak {
            // Not enabled: players show the titles in their list of chapters, not as captions.
            tkhd: Tkhd { track_id: 2, duration: track.length, in_movie: true, ..Tkhd::default() },
            mdia: Mdia {
                mdhd: Mdhd {
                    timescale: CHAPTER_SCALE,
                    duration: spans.last().map_or(0, |(_, _, end)| *end),
                    language: language.to_owned(),
                    ..Mdhd::default()
                },
                hdlr: Hdlr { handler: FourCC::new(b"text"), name: "Chapters".to_owned() },
                minf: Minf {
                    nmhd: Some(Nmhd::default()),
                    dinf: here(),
                    stbl: table(Codec::from(entry), sizes, durations, chunks),
                    ..Minf::default()
                },
            },
            ..Trak::default()
        })
    }

    /// Where the samples of a track are.
    struct Chunks {
        /// Samples of each chunk but the last.
        per_chunk: u32,
        /// Samples of the track.
        count: u32,
        /// Byte of the file where each chunk begins.
        offsets: Vec<u64>,
    }

    fn table(entry: Codec, sizes: Vec<u32>, durations: Vec<SttsEntry>, chunks: Chunks) -> Stbl {
        let Chunks { per_chunk, count, offsets } = chunks;
        let of = |first_chunk: usize, samples_per_chunk| StscEntry {
            first_chunk: first_chunk as u32,
            samples_per_chunk,
            sample_description_index: 1,
        };
        let last = count % per_chunk.max(1);
        let mut entries = vec![];
        if count >= per_chunk {
            entries.push(of(1, per_chunk));
        }
        if last > 0 {
            entries.push(of(offsets.len(), last));
        }
        let short: Result<Vec<u32>, _> = offsets.iter().map(|at| u32::try_from(*at)).collect();
        let (stco, co64) = match short {
            Ok(entries) => (Some(Stco { entries }), None),
            Err(_) => (None, Some(Co64 { entries: offsets })),
        };
        Stbl {
            stsd: Stsd { codecs: vec![entry] },
            stts: Stts { entries: durations },
            stsc: Stsc { entries },
            stsz: Stsz { samples: StszSamples::Different { sizes } },
            stco,
            co64,
            ..Stbl::default()
        }
    }

    /// Says that the data is in this file.
    fn here() -> Dinf {
        Dinf { dref: Dref { entries: vec![Url::default().into()] } }
    }

    /// Title and author as iTunes writes them.
    fn metadata(tags: &Tags) -> Meta {
        let mut items = vec![];
        let mut item = |name: &[u8; 4], kind: u32, value: &[u8]| {
            let data = [&1_u32.to_be_bytes()[..0], &kind.to_be_bytes(), &[0; 4], value].concat();
            let data = of(b"data", &data);
            items.extend(of(name, &data));
        };
        const TEXT: u32 = 1;
        const NUMBER: u32 = 21;
        let texts = [(b"\xa9nam", &tags.title), (b"\xa9alb", &tags.album), (b"\xa9ART", &tags.artist)];
        for (name, text) in texts {
            if let Some(text) = text {
                item(name, TEXT, text.as_bytes());
            }
        }
        if let Some((number, count)) = tags.track {
            let [n, c] = [number, count].map(|x| (x as u16).to_be_bytes());
            item(b"trkn", 0, &[0, 0, n[0], n[1], c[0], c[1], 0, 0]);
        }
        item(b"\xa9gen", TEXT, b"Audiobook");
        item(b"stik", NUMBER, &[2]);
        let hdlr = Hdlr { handler: FourCC::new(b"mdir"), name: String::new() };
        Meta { hdlr, items: vec![Any::Unknown(FourCC::new(b"ilst"), items)] }
    }

    /// A box with this content.
    fn of(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
        [&(content.len() as u32 + 8).to_be_bytes(), &name[..], content].concat()
    }
}
