//! Opens Qwen3-TTS in GGUF files: a talker and its codec, or one file with all.
//!
//! What other engines write is turned back into what the official repository holds: configuration and
//! tokenizer as the files that they were, tensors under official names ([`names`]). Everything is then
//! checked as a folder is.

mod config;
mod names;
mod tokenizer;

use super::config::{CodecConfig, Config};
use super::files::{self, CODEC, CONFIG, Files, GENERATION};
use super::layout;
use super::voice::TAG;
use crate::checkpoint::Expected;
use crate::files::{SmallFiles, packed_files};
use crate::gguf::{self, Pair, Part, Port, Report, Role, audiocpp};
use crate::{ModelError, Packing};
use names::Source;
use orate_weights::{Joined, Renamed, View, WeightSource};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Prefixes of the tensors of talker and codec where one file holds both.
const PREFIXES: [&str; 2] = ["model_weights", "speech_tokenizer_weights"];

/// What a codec without a working encoder cannot do, as the report begins to say it.
pub const TRANSCRIPTS: &str = "cloning with a transcript";

/// Books of the encoder whose entries differ in length by more than twice as much as the decoder's, and this,
/// were never divided by their counts: both hold the same kind of entries.
const LEVEL: f32 = 0.25;

/// Whether a path is a GGUF file of this family, or a folder with such files and none of the official ones.
pub fn detect(path: &Path) -> bool {
    !Files::detect(path) && gguf::is_of(path, TAG)
}

/// Opens the model of a GGUF file, or of a folder with such files.
///
/// # Errors
/// Files are missing, damaged, of a layout that cannot work, or do not belong together.
pub fn open(path: &Path, codec: Option<&Path>) -> Result<Files, ModelError> {
    let pair = gguf::pair(path, TAG, codec)?;
    let mut report = Report::new(&pair);
    match pair.main.layout {
        gguf::Layout { port: Port::AudioCpp | Port::Orate, .. } => whole(&pair, report),
        gguf::Layout { role: Role::Codec, port, .. } if port != Port::LlamaCpp => {
            let (codec, weights, _) = open_codec(&pair.main, &mut report)?;
            let origin = path.display().to_string();
            let weights: Arc<dyn WeightSource> = Arc::new(weights);
            Ok(Files { origin, talking: None, codec, weights, trimmed: false, report: Some(report) })
        }
        gguf::Layout { role: Role::Codec, .. } => Err(pair.main.wrong(
            "it is the second file of two (mmproj); give the first, with the text model, and keep both in one \
             folder",
        )),
        _ => two(&pair, report),
    }
}

/// Talker and codec in a file each.
fn two(pair: &Pair, mut report: Report) -> Result<Files, ModelError> {
    let (main, second) = (&pair.main, pair.partner.as_ref().expect("a talker has a partner"));
    let port = main.layout.port;
    let (codec, codec_weights, mut unused) = open_codec(second, &mut report)?;
    let mut sources: Vec<Arc<dyn WeightSource>> = vec![main.file.clone()];
    if port == Port::LlamaCpp {
        sources.push(second.file.clone());
    }
    let mut map = Renamed::new(main.path.display().to_string(), sources);
    let (config, files) = if port == Port::Official {
        let files = SmallFiles::of_folder(main.path.parent().unwrap_or(Path::new("")));
        (files::parse(&files, CONFIG, Config::from_json)?, files)
    } else {
        made(main, &map, &mut report)?
    };
    let expected = layout::model(&config)?;
    limit(main, &expected)?;
    if port == Port::LlamaCpp {
        // The text's rows come first, then those of the codec, which the second file has too.
        let t = &config.talker_config;
        let shape = [t.text_vocab_size, t.transformer.hidden_size];
        map.add(TEXT_TABLE, &shape, "token_embd.weight", View::Rows(0, t.text_vocab_size));
    }
    fill(&mut map, port, &expected);
    files::check(&map, &expected)?;
    if port != Port::LlamaCpp {
        unused.extend(map.unused().into_iter().map(str::to_owned));
    } else {
        let of_codec: std::collections::HashSet<&str> = codec_weights.unused().into_iter().collect();
        unused = map.unused().into_iter().filter(|n| of_codec.contains(n)).map(str::to_owned).collect();
    }
    report.unused = unused;
    let talking = files::talking(&files, config, &codec)?;
    let origin = main.path.display().to_string();
    let weights = Joined::new(&*origin, vec![Box::new(map), Box::new(codec_weights)])?;
    let weights: Arc<dyn WeightSource> = Arc::new(weights);
    Ok(Files { origin, talking: Some(talking), codec, weights, trimmed: false, report: Some(report) })
}

/// Official files made from the metadata of a talker.
fn made(main: &Part, map: &Renamed, report: &mut Report) -> Result<(Config, SmallFiles), ModelError> {
    let port = main.layout.port;
    let shapes = |name: &str| -> Option<Vec<usize>> {
        if port == Port::LlamaCpp && name == TEXT_TABLE {
            let table = main.file.info("token_embd.weight")?.shape;
            let codec = main.file.info("output.weight")?.shape;
            return Some(vec![table.first()?.checked_sub(*codec.first()?)?, *table.get(1)?]);
        }
        shape_of(map, port, name)
    };
    let rows = shapes("talker.codec_head.weight").and_then(|s| s.first().copied()).unwrap_or(0);
    let words = tokenizer::Words::of(main, rows, report)?;
    let json = config::talker(main, &shapes, &words, report)?;
    let mut parts = BTreeMap::from([(CONFIG.to_owned(), json.to_string().into_bytes())]);
    parts.extend(words.files().map(|(name, bytes)| (name.to_owned(), bytes)));
    if let Some(json) = config::generation(main, report) {
        parts.insert(GENERATION.to_owned(), json.to_string().into_bytes());
    }
    let files = SmallFiles::inside(&main.path, parts);
    Ok((files::parse(&files, CONFIG, Config::from_json)?, files))
}

const TEXT_TABLE: &str = "talker.model.text_embedding.weight";

/// The codec of a file: its configuration, its weights, and names that nothing reads.
fn open_codec(part: &Part, report: &mut Report) -> Result<(CodecConfig, Renamed, Vec<String>), ModelError> {
    let port = part.layout.port;
    let mut map = Renamed::new(part.path.display().to_string(), vec![part.file.clone() as Arc<_>]);
    let folder = part.path.parent().unwrap_or(Path::new(""));
    let config = if port == Port::Official {
        // Beside it, as in the codec's folder, or in that folder itself.
        let files = SmallFiles::of_folder(folder);
        let inner = format!("{CODEC}/{CONFIG}");
        files::parse(&files, if files.has(&inner) { &inner } else { CONFIG }, CodecConfig::from_json)?
    } else {
        let shapes = |name: &str| shape_of(&map, port, name);
        let json = config::codec(part, &shapes, report)?.to_string().into_bytes();
        let files = SmallFiles::inside(&part.path, BTreeMap::from([(CONFIG.to_owned(), json)]));
        files::parse(&files, CONFIG, CodecConfig::from_json)?
    };
    let unused = codec_weights(part, &mut map, port, &config, report)?;
    Ok((config, map, unused))
}

/// Maps the codec's tensors, and finds out whether its encoder works.
fn codec_weights(
    part: &Part,
    map: &mut Renamed,
    port: Port,
    config: &CodecConfig,
    report: &mut Report,
) -> Result<Vec<String>, ModelError> {
    let [decoder, encoder, unread] = layout::codec_parts(config)?;
    limit(part, &decoder)?;
    for part in [&decoder, &encoder, &unread] {
        fill(map, port, part);
    }
    files::check_some(map, &decoder)?;
    if let Some(reason) = encoder_problem(map, port, &encoder) {
        report.cannot.push(format!("{TRANSCRIPTS} ({reason})"));
    }
    Ok(map.unused().into_iter().map(str::to_owned).collect())
}

/// Why the codec's encoder does not work, if it does not.
fn encoder_problem(map: &Renamed, port: Port, expected: &[Expected]) -> Option<String> {
    if expected.iter().any(|e| !map.contains(&e.name)) {
        return Some("there is no encoder of the codec in the file".to_owned());
    }
    if let Err(e) = files::check_some(map, expected) {
        return Some(e.to_string());
    }
    let counts = expected.iter().filter(|e| e.name.ends_with("cluster_usage"));
    let too_large = |e: &&Expected| map.get(&e.name).is_ok_and(|t| t.to_f32().iter().any(|x| !x.is_finite()));
    if counts.clone().any(|e| too_large(&e)) {
        return Some("its codebooks overflowed in half precision when the file was made".to_owned());
    }
    if port == Port::Qwen3TtsCpp {
        let of_encoder = "encoder.quantizer.semantic_residual_vector_quantizer.layers.0.codebook.embed_sum";
        let of_decoder = "decoder.quantizer.rvq_first.vq.layers.0._codebook.embedding_sum";
        if spread(map, of_encoder)? > 2.0 * spread(map, of_decoder)? + LEVEL {
            return Some(
                "its codebooks were never divided by their counts, as in files from before 2026-04-17; \
                 download a newer codec"
                    .to_owned(),
            );
        }
    }
    None
}

/// How much the lengths of a book's entries differ: the standard deviation of their logarithms.
fn spread(map: &Renamed, book: &str) -> Option<f32> {
    let book = map.get(book).ok()?;
    let width = book.shape.last().copied().filter(|n| *n > 0)?;
    let length = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-6).ln();
    let lengths: Vec<f32> = book.to_f32().chunks_exact(width).map(length).collect();
    let n = lengths.len().max(1) as f32;
    let mean = lengths.iter().sum::<f32>() / n;
    Some((lengths.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n).sqrt())
}

/// Maps official names to what stands for them.
fn fill(map: &mut Renamed, port: Port, expected: &[Expected]) {
    // Counts come last: they are made where there is something to count.
    let (counts, others): (Vec<_>, Vec<_>) =
        expected.iter().partition(|e| names::find(port, &e.name) == Some(Source::Ones));
    for Expected { name, shape } in others.into_iter().chain(counts) {
        let values = |tensor: &str| {
            let t = map.original(tensor).ok()?;
            (t.len() == shape.iter().product::<usize>()).then(|| t.to_f32())
        };
        match names::find(port, name) {
            None => {}
            Some(Source::Tensor(tensor, view)) => drop(map.add(name, shape, &tensor, view)),
            Some(Source::Ones) => {
                let counted = names::is_count(name).is_none_or(|sums| map.contains(&sums));
                if counted {
                    map.make(name, shape, std::iter::repeat_n(1.0, shape.iter().product()));
                }
            }
            Some(Source::Log(tensor)) => {
                if let Some(all) = values(&tensor) {
                    map.make(name, shape, all.into_iter().map(f32::ln));
                }
                map.mark(&tensor);
            }
            Some(Source::LogReciprocal(tensor)) => {
                if let Some(all) = values(&tensor) {
                    map.make(name, shape, all.into_iter().map(|x| (1.0 / x - 1e-9).ln()));
                }
                map.mark(&tensor);
            }
        }
    }
}

/// Shape of an official tensor in a file.
fn shape_of(map: &Renamed, port: Port, name: &str) -> Option<Vec<usize>> {
    let (tensor, page) = match names::find(port, name)? {
        Source::Tensor(tensor, view) => (tensor, view),
        Source::Log(tensor) | Source::LogReciprocal(tensor) => (tensor, View::Same),
        Source::Ones => return None,
    };
    let shape = map.original_info(&tensor)?.shape;
    match page {
        View::Page(n) => (n < *shape.first()?).then(|| shape[1..].to_vec()),
        _ => Some(shape),
    }
}

/// Refuses a configuration that asks for far more tensors than the file has.
fn limit(part: &Part, expected: &[Expected]) -> Result<(), ModelError> {
    let there = part.file.names().len();
    match expected.len() > 64 * (there + 64) {
        true => {
            Err(part.wrong(format!("its configuration asks for {} tensors, it has {there}", expected.len())))
        }
        false => Ok(()),
    }
}

/// One file with everything: audio.cpp's, or our own.
fn whole(pair: &Pair, mut report: Report) -> Result<Files, ModelError> {
    let part = &pair.main;
    let container = audiocpp::Container::of(part)?;
    let files = audiocpp::files(part)?;
    let source = |prefix: &str| {
        let lacks = || part.wrong(format!("it has no tensors `{prefix}/…`"));
        container.source(part, prefix).ok_or_else(lacks)
    };
    let config = files::parse(&files, CONFIG, Config::from_json)?;
    let codec = files::parse(&files, &format!("{CODEC}/{CONFIG}"), CodecConfig::from_json)?;
    let (own, of_codec) = (source(PREFIXES[0])?, source(PREFIXES[1])?);
    files::check(&own, &layout::model(&config)?)?;
    let [decoder, encoder, _] = layout::codec_parts(&codec)?;
    files::check_some(&of_codec, &decoder)?;
    if let Some(reason) = encoder_problem(&of_codec, Port::Official, &encoder) {
        report.cannot.push(format!("{TRANSCRIPTS} ({reason})"));
    }
    let talking = files::talking(&files, config, &codec)?;
    let origin = part.path.display().to_string();
    let weights = Joined::new(&*origin, vec![Box::new(own), Box::new(of_codec)])?;
    let weights: Arc<dyn WeightSource> = Arc::new(weights);
    Ok(Files { origin, talking: Some(talking), codec, weights, trimmed: false, report: Some(report) })
}

/// What `quantize` puts into a file besides weights.
pub fn packing(files: &Files) -> Result<Packing, ModelError> {
    let folder = Path::new(&files.origin);
    let refused =
        |problem: &str| Err(ModelError::NotAModel { path: folder.to_owned(), problem: problem.to_owned() });
    if files.report.is_some() {
        return Err(gguf::no_packing(folder));
    }
    if files.talking.is_none() || files.trimmed || !folder.is_dir() {
        return refused("only the folder of a whole official model can be put into one file");
    }
    let codec = format!("{CODEC}/{CONFIG}");
    let [vocab, merges, added] = files::TOKENIZER;
    let weights = files.weights.names().into_iter().map(str::to_owned).collect();
    Ok(Packing {
        files: packed_files(folder, &[CONFIG, vocab, merges, added, &*codec], &[GENERATION]),
        prefix: |name| {
            let of_codec = name.starts_with("encoder.") || name.starts_with("decoder.");
            PREFIXES[usize::from(of_codec)]
        },
        weights,
        keys: vec![],
        is_turned: |_| false,
    })
}
