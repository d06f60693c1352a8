//! Opens Chatterbox in GGUF files: a T3 and an S3Gen, or one file with all.
//!
//! Tensors get their official names ([`names`]); sizes follow from their shapes, as for official files. The
//! voice that a file holds is the default voice.

mod names;
mod text;

use super::config::{NAME, S3GenConfig};
use super::files::{self, Files, Talking};
use super::s3gen::Reference;
use super::text::Text;
use super::voice::{TAG, TalkingVoice, Voice};
use crate::checkpoint::{self, Expected};
use crate::files::{SmallFiles, packed_files};
use crate::gguf::{self, Pair, Part, Port, Report, Role, audiocpp};
use crate::{ModelError, Packing};
use orate_weights::{DType, Joined, Renamed, TensorInfo, TensorRef, View, WeightError, WeightSource};
use std::path::Path;
use std::sync::Arc;

/// Tensors that are there once for each of some parts, by what stands before and after the number.
const NUMBERED: [(&str, &str); 10] = [
    ("tfmr.layers.", ".input_layernorm.weight"),
    ("tfmr.h.", ".ln_1.weight"),
    ("flow.encoder.encoders.", ".norm_mha.weight"),
    ("flow.encoder.up_encoders.", ".norm_mha.weight"),
    ("flow.decoder.estimator.mid_blocks.", ".0.block1.block.0.weight"),
    ("flow.decoder.estimator.down_blocks.0.1.", ".attn1.to_q.weight"),
    ("tokenizer.encoder.blocks.", ".attn.query.weight"),
    ("speaker_encoder.xvector.block1.tdnnd", ".linear1.weight"),
    ("speaker_encoder.xvector.block2.tdnnd", ".linear1.weight"),
    ("speaker_encoder.xvector.block3.tdnnd", ".linear1.weight"),
];

/// Epsilon of batch norms, to which scale and shift are turned back.
const EPS: f32 = 1e-5;
/// Key of the variant's name in files of `orate quantize`.
const VARIANT: &str = "orate.variant";
/// Most parts that are counted.
const MOST: usize = 1000;

/// Files under official names, for sizes: names are found by asking.
struct Lens {
    origin: String,
    parts: Vec<(Arc<dyn WeightSource>, Port)>,
    numbered: Vec<String>,
}

impl Lens {
    fn new(origin: String, parts: Vec<(Arc<dyn WeightSource>, Port)>) -> Lens {
        let mut lens = Lens { origin, parts, numbered: vec![] };
        for (before, after) in NUMBERED {
            let name = |i: usize| format!("{before}{i}{after}");
            // Some count from 1.
            let first = usize::from(before.ends_with("tdnnd"));
            let there = (first..MOST).map(name).take_while(|n| lens.contains(n)).collect::<Vec<_>>();
            lens.numbered.extend(there);
        }
        lens
    }

    /// Whether a tensor of a source has a name that begins so.
    fn begins(&self, prefix: &str) -> bool {
        self.parts.iter().any(|(source, _)| source.names().iter().any(|name| name.starts_with(prefix)))
    }

    /// The tensor of a source that an official name stands for.
    fn find(&self, name: &str) -> Option<(usize, String)> {
        let find = |(i, (source, port)): (usize, &(Arc<dyn WeightSource>, Port))| {
            // Layers of both kinds of T3 have the same names there.
            if *port == Port::CrispAsr && name.starts_with("tfmr.") {
                let of_gpt2 = ["tfmr.h.", "tfmr.ln_f.", "tfmr.wpe."].iter().any(|p| name.starts_with(p));
                if of_gpt2 != source.contains("t3.wpe.weight") {
                    return None;
                }
            }
            let tensor = names::find(*port, name)?;
            source.contains(&tensor).then_some((i, tensor))
        };
        self.parts.iter().enumerate().find_map(find)
    }
}

impl WeightSource for Lens {
    fn get(&self, name: &str) -> Result<TensorRef<'_>, WeightError> {
        let (i, tensor) = self.find(name).ok_or_else(|| self.missing(name))?;
        self.parts[i].0.get(&tensor)
    }

    fn names(&self) -> Vec<&str> {
        self.numbered.iter().map(String::as_str).collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        if let Some((i, tensor)) = self.find(name) {
            let mut info = self.parts[i].0.info(&tensor)?;
            // C tools drop slow axes of 1.
            if name.ends_with("pre_attention_query") && info.shape.len() == 2 {
                info.shape.insert(0, 1);
            }
            return Some(info);
        }
        // Batch norms of chatterbox.cpp are a scale and a shift.
        let (norm, _) = name.rsplit_once('.')?;
        let scale = self.parts.iter().find_map(|(source, port)| source.info(&scale_of(*port, norm)?))?;
        Some(TensorInfo { dtype: DType::F32, ..scale })
    }

    fn describe(&self) -> String {
        self.origin.clone()
    }
}

/// The tensor with the scale of a batch norm, in files that have it in this form.
fn scale_of(port: Port, norm: &str) -> Option<String> {
    let is_it = port == Port::ChatterboxCpp && norm.starts_with("speaker_encoder.");
    is_it.then(|| format!("{}/s", names::find(port, norm).unwrap_or_default()))
}

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
    let main = &pair.main;
    match main.layout {
        gguf::Layout { port: Port::AudioCpp | Port::Orate, .. } => whole(main, report),
        gguf::Layout { role: Role::VoiceEncoder, .. } => {
            Err(main.wrong("it holds the voice encoder alone; give the file of the T3"))
        }
        gguf::Layout { role: Role::S3Gen, .. } => {
            let sources = vec![(main.file.clone() as Arc<dyn WeightSource>, main.layout.port)];
            let folder = SmallFiles::of_folder(main.path.parent().unwrap_or(Path::new("")));
            let lens = Lens::new(main.path.display().to_string(), sources);
            let voice = voice(&[main], false)?;
            assemble(main, lens, None, voice, &folder, &mut report)
        }
        _ => two(&pair, report),
    }
}

/// T3 and S3Gen in a file each.
fn two(pair: &Pair, mut report: Report) -> Result<Files, ModelError> {
    let (t3, s3gen) = (&pair.main, pair.partner.as_ref().expect("a T3 has a partner"));
    let mut sources: Vec<(Arc<dyn WeightSource>, Port)> =
        vec![(t3.file.clone(), t3.layout.port), (s3gen.file.clone(), s3gen.layout.port)];
    let folder = t3.path.parent().unwrap_or(Path::new(""));
    if t3.layout.port == Port::Official {
        sources.extend(voice_encoder_beside(folder));
    }
    let lens = Lens::new(t3.path.display().to_string(), sources);
    let files = text::files(t3, &lens, &mut report)?;
    let voice = voice(&[t3, s3gen], true)?;
    assemble(t3, lens, Some(files), voice, &SmallFiles::of_folder(folder), &mut report)
}

/// The GGUF file of a voice encoder in a folder.
fn voice_encoder_beside(folder: &Path) -> Option<(Arc<dyn WeightSource>, Port)> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|e| e.path());
    let mut all: Vec<_> = entries.filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    all.sort();
    let parts = all.iter().filter_map(|p| Part::open(p).ok().flatten());
    let part = parts.into_iter().find(|p| p.layout.role == Role::VoiceEncoder)?;
    Some((part.file, part.layout.port))
}

/// Checks everything against the networks, and joins it. `texts` has the tokenizer's files.
fn assemble(
    main: &Part,
    lens: Lens,
    texts: Option<SmallFiles>,
    voice: Option<Voice>,
    beside: &SmallFiles,
    report: &mut Report,
) -> Result<Files, ModelError> {
    let mut variant = super::config::Variant::Conversion;
    let talking = match texts {
        None => None,
        Some(texts) => {
            let recorded = main.file.string(VARIANT).ok();
            let (config, kind) = files::t3_config(&main.path, &lens, recorded)?;
            variant = kind;
            let text = Text::open(&texts, variant)?;
            files::agree(&main.path, &config, &text)?;
            Some(Talking { config, text })
        }
    };
    let may_lack = main.layout.port == Port::AudioCpp;
    let reads = !may_lack || ["tokenizer.", "speaker_encoder."].iter().any(|p| lens.begins(p));
    let s3gen = if reads { S3GenConfig::of(&lens) } else { S3GenConfig::speaking(&lens) };
    let s3gen = s3gen.map_err(|e| main.wrong(e))?;
    if talking.is_some() && s3gen.estimator.is_meanflow != variant.is_fast() {
        let problem = format!(
            "it is a T3 of {NAME} {}, and the S3Gen is of another model; name the right one as `codec`",
            variant.name()
        );
        return Err(main.wrong(problem));
    }
    let hidden = lens.info("lstm.weight_hh_l0").and_then(|i| i.shape.get(1).copied());
    let voice_encoder = hidden.filter(|_| talking.is_some());
    if !reads {
        let cannot = "voices from recordings, and converting speech (there is no speech tokenizer)";
        report.cannot.push(cannot.to_owned());
    } else if talking.is_some() && voice_encoder.is_none() {
        report.cannot.push("voices from recordings (there is no voice encoder)".to_owned());
    }
    let default_voice = match voice {
        None if beside.has(files::CONDITIONALS) => {
            let path = beside.path(files::CONDITIONALS);
            Some(Voice::from_conditionals(&path, beside.read(files::CONDITIONALS)?, talking.is_some())?)
        }
        found => found,
    };
    if default_voice.is_none() {
        report.cannot.push("a default voice (there is no conds.pt)".to_owned());
    }
    let origin = main.path.display().to_string();
    let weights = Arc::new(Joined::new("", vec![])?);
    let files = Files {
        origin: origin.clone(),
        variant,
        talking,
        s3gen,
        voice_encoder,
        default_voice,
        weights,
        report: None,
    };
    let graphs = files.all_graphs(&lens, &crate::PlaceOptions::default())?;
    let expected = checkpoint::read_by(&graphs);
    let expected: Vec<_> = expected.into_iter().filter(|e| !e.name.starts_with("constants.")).collect();
    let map = mapped(&lens, &expected);
    let leftover =
        |name: &&str| !KNOWN.iter().any(|k| name.ends_with(k)) && !name.contains("num_batches_tracked");
    report.unused = map.unused().into_iter().filter(leftover).map(str::to_owned).collect();
    files.with_map(map, &expected, report.clone())
}

/// Tensors that are known and not needed: voices, which were read, and filters, which are computed.
const KNOWN: [&str; 23] = [
    "hparams.num_heads",
    "conds.t3.speaker_emb",
    "conds.t3.speech_prompt_tokens",
    "conds.gen.prompt_token",
    "conds.gen.prompt_feat",
    "conds.gen.embedding",
    "builtin/speaker_emb",
    "builtin/cond_prompt_speech_tokens",
    "builtin/prompt_token",
    "builtin/prompt_feat",
    "builtin/embedding",
    "mel_fb",
    "mel_fb/24k_80",
    "mel_fb_kaldi_80",
    "t3.llama_embd.weight",
    "text_head.weight",
    "text_head",
    "tfmr.embed_tokens.weight",
    "tfmr.wte.weight",
    "similarity_weight",
    "similarity_bias",
    "_mel_filters",
    "tok.window",
];

/// Official names, mapped to what stands for them.
fn mapped(lens: &Lens, expected: &[Expected]) -> Renamed {
    let sources = lens.parts.iter().map(|(source, _)| source.clone()).collect();
    let mut map = Renamed::new(lens.origin.clone(), sources);
    for Expected { name, shape } in expected {
        if let Some((_, tensor)) = lens.find(name) {
            map.add(name, shape, &tensor, View::Same);
            continue;
        }
        let Some((norm, part)) = name.rsplit_once('.') else { continue };
        let port = lens.parts.iter().map(|(_, port)| *port).find(|port| scale_of(*port, norm).is_some());
        let Some(scale) = port.and_then(|port| scale_of(port, norm)) else { continue };
        let shift = format!("{}/b", scale.trim_end_matches("/s"));
        let [Ok(s), Ok(b)] = [&scale, &shift].map(|t| map.original(t).map(|t| t.to_f32())) else { continue };
        // Those with weight and bias: mean 0 and variance 1 − ε. The others: what gives this scale.
        let has_weight = expected.iter().any(|e| e.name == format!("{norm}.weight"));
        let numbers: Vec<f32> = match part {
            "weight" => s,
            "bias" => b,
            "running_mean" if has_weight => vec![0.0; s.len()],
            "running_var" if has_weight => vec![1.0 - EPS; s.len()],
            "running_mean" => s.iter().zip(&b).map(|(s, b)| -b / s).collect(),
            _ => s.iter().map(|s| (1.0 / f64::from(*s).powi(2) - f64::from(EPS)) as f32).collect(),
        };
        map.make(name, shape, numbers);
        map.mark(&scale);
        map.mark(&shift);
    }
    map
}

/// The voice in a T3's file and its S3Gen's.
fn voice(parts: &[&Part], talks: bool) -> Result<Option<Voice>, ModelError> {
    let get = |names: [&str; 3]| {
        let of = |part: &&&Part| names.iter().any(|n| part.file.contains(n));
        let part = parts.iter().find(of)?;
        names.iter().find_map(|n| part.file.get(n).ok())
    };
    let speaker = get(["conds.t3.speaker_emb", "conds/t3.speaker_emb", "chatterbox/builtin/speaker_emb"]);
    let prompt = get([
        "conds.t3.speech_prompt_tokens",
        "conds/t3.speech_prompt_tokens",
        "chatterbox/builtin/cond_prompt_speech_tokens",
    ]);
    let codes = get(["conds.gen.prompt_token", "conds/gen.prompt_token", "s3gen/builtin/prompt_token"]);
    let mel = get(["conds.gen.prompt_feat", "conds/gen.prompt_feat", "s3gen/builtin/prompt_feat"]);
    let x_vector = get(["conds.gen.embedding", "conds/gen.embedding", "s3gen/builtin/embedding"]);
    let (Some(codes), Some(mel), Some(x_vector)) = (codes, mel, x_vector) else { return Ok(None) };
    let talking = match (talks, speaker, prompt) {
        (false, ..) => None,
        (true, Some(speaker), Some(prompt)) => {
            Some(TalkingVoice { speaker: speaker.to_f32(), prompt: super::voice::integers(&prompt) })
        }
        _ => return Ok(None),
    };
    let reference =
        Reference { codes: super::voice::integers(&codes), mel: mel.to_f32(), x_vector: x_vector.to_f32() };
    let voice = Voice { talking, reference };
    voice.check().map_err(|problem| parts[0].wrong(format!("its voice: {problem}")))?;
    Ok(Some(voice))
}

/// T3s of one file, the one that it stands for first.
const T3: [&str; 6] =
    ["t3", "t3_english", "t3_cfg", "t3_multilingual_v2", "t3_multilingual_v3", "t3_multilingual"];

/// One file with everything: audio.cpp's, or our own.
fn whole(main: &Part, mut report: Report) -> Result<Files, ModelError> {
    let container = audiocpp::Container::of(main)?;
    let files = audiocpp::files(main)?;
    let source = |prefix: &str| container.source(main, prefix).map(|s| Arc::new(s) as Arc<dyn WeightSource>);
    let Some(s3gen) = source("s3gen") else { return Err(main.wrong("it has no tensors `s3gen/…`")) };
    if s3gen.names().iter().any(|n| n.starts_with("v.")) {
        return turbo(main, &container, &files, report);
    }
    let found = T3.into_iter().filter_map(|p| Some((p, source(p)?))).collect::<Vec<_>>();
    if let [(used, _), others @ ..] = &found[..]
        && !others.is_empty()
    {
        let others: Vec<&str> = others.iter().map(|(name, _)| *name).collect();
        report.cannot.push(format!("speaking with {} ({used} of the same file is used)", others.join(", ")));
    }
    let mut sources: Vec<_> = found.into_iter().take(1).map(|(_, s)| (s, Port::Official)).collect();
    let talks = !sources.is_empty();
    sources.push((s3gen, Port::Official));
    sources.extend(source("voice_encoder").map(|s| (s, Port::Official)));
    let lens = Lens::new(main.path.display().to_string(), sources);
    let texts = audiocpp::files(main)?;
    assemble(main, lens, talks.then_some(texts), None, &files, &mut report)
}

/// Turbo and Nano of audio.cpp: a T3 under CrispASR's names, and an S3Gen whose vocoder is called `v`. The
/// voice is inside; what reads recordings may be missing.
fn turbo(
    main: &Part,
    container: &audiocpp::Container,
    files: &SmallFiles,
    mut report: Report,
) -> Result<Files, ModelError> {
    let renamed = |prefix: &str, rename: &dyn Fn(&str) -> String| {
        let lacks = || main.wrong(format!("it has no tensors `{prefix}/…`"));
        let map = container.renamed(main, prefix, rename).ok_or_else(lacks)?;
        Ok::<_, ModelError>(Arc::new(map) as Arc<dyn WeightSource>)
    };
    let t3 = renamed("t3", &|rest| format!("t3.{rest}"))?;
    let s3gen = renamed("s3gen", &|rest| match rest.strip_prefix("v.") {
        Some(vocoder) => format!("mel2wav.{vocoder}"),
        None => rest.to_owned(),
    })?;
    let mut sources = vec![(t3, Port::CrispAsr), (s3gen, Port::Official)];
    if let Ok(voice_encoder) = renamed("voice_encoder", &|rest| rest.to_owned()) {
        sources.push((voice_encoder, Port::Official));
    }
    let lens = Lens::new(main.path.display().to_string(), sources);
    let texts = text::of_audiocpp(main, files, &mut report)?;
    let voice = voice(&[main], true)?;
    assemble(main, lens, Some(texts), voice, files, &mut report)
}

/// What `quantize` puts into a file besides weights.
pub fn packing(model: &Files) -> Result<Packing, ModelError> {
    let path = Path::new(&model.origin);
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    if model.report.is_some() {
        return Err(gguf::no_packing(path));
    }
    if model.talking.is_none() {
        let problem = "it has no T3; give the folder of an official model that speaks".to_owned();
        return Err(ModelError::NotAModel { path: path.to_owned(), problem });
    }
    let is_read = |name: &&str| !name.starts_with("constants.") && !files::may_be_left(name);
    Ok(Packing {
        files: packed_files(folder, Text::needed(model.variant), &[Text::CANGJIE, files::CONDITIONALS]),
        prefix: |name| match names::is_of_t3(name) {
            _ if name.starts_with("lstm.") || name.starts_with("proj.") => "voice_encoder",
            true => "t3",
            false => "s3gen",
        },
        weights: model.weights.names().into_iter().filter(is_read).map(str::to_owned).collect(),
        keys: vec![(VARIANT, model.variant.name().into())],
        is_turned: |name| name.starts_with("tfmr.h.") && name.contains(".c_") && name.ends_with(".weight"),
    })
}
