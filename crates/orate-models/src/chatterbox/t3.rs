//! T3: rows of a voice, text and speech codes to the next speech code.
//!
//! ```text
//! conditioning rows │ text rows │ start rows │ a row for each code       [B · L, T, D]
//!                                            └─ transformer ─ head ─ logits [B, L, V] ─ sample ─ code
//! ```
//!
//! English and Multilingual are guided: an utterance has two lanes, the second without what is said but with
//! its positions, and logits are drawn from both. Turbo and Nano have one.
//!
//! | plan | reads | writes |
//! | --- | --- | --- |
//! | [`conditioning`] | speaker embedding, prompt codes, exaggeration | conditioning rows, once for a voice |
//! | [`rows`] | conditioning rows, ids of text | rows of a prompt |
//! | [`prefill`] | rows | caches, logits of the last row |
//! | [`frame`] | logits | a code, caches and logits after it |
//!
//! Official class: `T3`.

use super::backbone;
use super::config::{ALIGNED_HEADS, Backbone, END_OF_SPEECH, SPEAKER, START_OF_SPEECH, T3Config};
use crate::blocks::{Attention, Cache, Scope};
use crate::decoding::{CODES, FRAME, GIVEN, LAST, POSITION, ROWS, SEED, SHARED};
use orate_graph::{
    AttentionMask, CacheFormat, DType, Draw, Factor, Graph, GraphError, Op, Rows, SAMPLE_SETTINGS,
    SampleRules, Value,
};

type Result<T> = std::result::Result<T, GraphError>;

/// Distribution of the next code, `[B · L, 1, V]`.
pub const LOGITS: &str = "logits";
/// Codes that were drawn before, `[B, V]`.
pub const SEEN: &str = "seen";
/// Sampling settings, `[B, 6]`.
pub const SAMPLING: &str = "sampling";
/// Speaker embedding, `[1, 256]`.
pub const SPEAKER_EMBEDDING: &str = "speaker";
/// Codes of the recording that a voice was taken from, i32 `[1, N]`.
pub const PROMPT: &str = "prompt";
/// Scalar: how much emotion, 0 to 1 or more.
pub const EXAGGERATION: &str = "exaggeration";
/// Rows of a voice, `[1, C, D]`: result of [`conditioning`], read by [`rows`].
pub const CONDITIONING: &str = "conditioning";
/// Ids of text, i32 `[T, 1]`.
pub const TEXT_IDS: &str = "text_ids";
/// Number of each row among those of its kind (Llama) or among all (GPT-2), i32 `[T, 1]`.
pub const POSITIONS: &str = "positions";
/// 1 for rows of text, else 0: i32 `[T]`.
pub const IS_TEXT: &str = "is_text";
/// 1 for rows that begin speech, else 0: i32 `[T]`.
pub const IS_START: &str = "is_start";
/// The id that begins speech, i32 `[B, 1]`: where repetitions are penalized it counts as drawn.
pub const START: &str = "start";

/// Keys of the [`T3Config::aligned_heads`], a cache f32 `[B · L, capacity, 3 · Dh]`.
pub const ALIGNED_KEYS: &str = "t3.aligned_keys";
/// A frame's queries of these heads, then its keys, `[B · L, 1, 6 · Dh]`.
pub const ALIGNED: &str = "aligned";
/// Added to the logit of the end of speech, `[B · L, 1, 1]`.
pub const END_BIAS: &str = "end_bias";

/// Extents and format of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheSizes {
    /// Utterances side by side.
    pub batch: usize,
    /// Rows that the cache can hold: prompt and frames.
    pub capacity: usize,
    /// Their format.
    pub kv: CacheFormat,
    /// Whether there is also what says which text a frame attends to: [`ALIGNED_KEYS`], [`ALIGNED`] and
    /// [`END_BIAS`].
    pub watched: bool,
}

/// Fewest utterances whose frames read [`SHARED`].
const LEAST_SHARED: usize = 4;

fn cache(g: &mut Graph, c: &T3Config, s: CacheSizes) -> Result<Cache> {
    Cache::declare(g, "t3", c.layers, [s.batch * c.lanes(), s.capacity, c.width], Some(s.kv))
}

/// The layers, and queries and keys `[B · L, T, 3 · Dh]` of the heads that the guard watches.
fn layers(
    g: &mut Graph,
    c: &T3Config,
    s: CacheSizes,
    x: Value,
    (first, shared, tap): (Rows, Option<Value>, &str),
) -> Result<(Value, Option<[Value; 2]>)> {
    let mut cache = cache(g, c, s)?;
    let (x, rotated) = backbone::layers(g, c, x, (&mut cache, first, shared), tap)?;
    let Some(heads) = c.aligned_heads().filter(|_| s.watched) else { return Ok((x, None)) };
    let mut joined = |which: usize| {
        let head =
            |[layer, head]: [usize; 2]| g.slice(rotated[layer][which], 2, head * c.head_dim(), c.head_dim());
        let heads = heads.into_iter().map(head).collect::<Result<Vec<_>>>()?;
        g.concat(&heads, 2)
    };
    let [queries, keys] = [joined(0)?, joined(1)?];
    let shape = [s.batch * c.lanes(), s.capacity, ALIGNED_HEADS * c.head_dim()];
    let kept = g.cache(ALIGNED_KEYS, DType::F32, shape)?;
    g.write_rows(kept, keys, first)?;
    Ok((x, Some([queries, keys])))
}

fn table(g: &mut Graph, name: &str, rows: usize, width: usize, ids: Value) -> Result<Value> {
    g.embedding(ids, Scope::new("").get(name, [rows, width]))
}

/// Builds the rows of a voice with a prompt of `codes` codes. Reads [`SPEAKER_EMBEDDING`], [`PROMPT`],
/// [`POSITIONS`] of its codes (GPT-2: of all rows), and for Llama [`EXAGGERATION`]; writes [`CONDITIONING`].
pub fn conditioning(g: &mut Graph, c: &T3Config, codes: usize) -> Result<()> {
    let (w, d) = (Scope::new("cond_enc"), c.width);
    let speaker = g.input(SPEAKER_EMBEDDING, DType::F32, [1, 1, SPEAKER])?;
    let speaker = w.linear(g, speaker, "spkr_enc", [SPEAKER, d])?; // [1, 1, D]
    let prompt = g.input(PROMPT, DType::I32, [1, codes])?;
    let prompt = table(g, "speech_emb.weight", c.speech_ids, d, prompt)?; // [1, N, D]
    let rows = match c.backbone {
        Backbone::Llama => {
            let at = g.input(POSITIONS, DType::I32, [1, codes])?;
            let learned = table(g, "speech_pos_emb.emb.weight", c.speech_positions, d, at)?;
            let prompt = g.add(prompt, learned)?;
            let prompt = perceiver(g, &w.at("perceiver"), c, prompt)?; // [1, Q, D]
            g.tap("perceiver", prompt)?;
            let exaggeration = g.scalar(EXAGGERATION);
            let emotion = g.constant(w.get("emotion_adv_fc.weight", [d, 1]).reshape([1, 1, d]), 1)?;
            let emotion = g.scale(emotion, Factor::Scalar(exaggeration))?;
            g.concat(&[speaker, prompt, emotion], 1)?
        }
        Backbone::Gpt2 => {
            let rows = g.concat(&[speaker, prompt], 1)?;
            let at = g.input(POSITIONS, DType::I32, [1, codes + 1])?;
            let learned = table(g, "tfmr.wpe.weight", c.text_positions, d, at)?;
            g.add(rows, learned)?
        }
    };
    g.output(CONDITIONING, rows)
}

/// `[1, N, D]` → `[1, Q, D]`: learned queries attend to x, then to each other, through the same weights.
fn perceiver(g: &mut Graph, w: &Scope<'_>, c: &T3Config, x: Value) -> Result<Value> {
    let query = g.constant(w.get("pre_attention_query", [1, c.queries, c.width]), 1)?;
    let w = w.at("attn");
    let y = perceiver_attention(g, &w, c, query, x)?;
    perceiver_attention(g, &w, c, y, y)
}

fn perceiver_attention(
    g: &mut Graph,
    w: &Scope<'_>,
    c: &T3Config,
    x: Value,
    context: Value,
) -> Result<Value> {
    let (d, heads) = (c.width, c.perceiver_heads);
    let weights = || backbone::norm(w.get("norm.weight", [d]), w.bias("norm", d));
    let q = g.layer_norm(x, weights())?;
    let q = w.linear(g, q, "to_q", [d, d])?;
    let context = g.layer_norm(context, weights())?;
    let k = w.linear(g, context, "to_k", [d, d])?;
    let v = w.linear(g, context, "to_v", [d, d])?;
    let op = Attention::of_heads(heads, d).op(AttentionMask::None);
    let y = g.attention(op, q, k, v, None)?;
    let y = w.linear(g, y, "proj_out", [d, d])?;
    g.add(x, y)
}

/// Builds the rows of a part of a prompt: `given` rows of [`CONDITIONING`], then `own` rows of text and
/// starts, the last of which may be padding. Reads [`TEXT_IDS`], [`POSITIONS`], [`IS_TEXT`] and [`IS_START`];
/// writes [`ROWS`] `[L, T, D]`.
pub fn rows(g: &mut Graph, c: &T3Config, given: usize, own: usize) -> Result<()> {
    let own = if own > 0 { own_rows(g, c, own)? } else { vec![] };
    let given = match given {
        0 => None,
        rows => Some(g.input(CONDITIONING, DType::F32, [1, rows, c.width])?),
    };
    let mut lanes = vec![];
    for lane in 0..c.lanes() {
        let parts: Vec<Value> = given.iter().chain(own.get(lane)).copied().collect();
        lanes.push(if parts.len() == 1 { parts[0] } else { g.concat(&parts, 1)? });
    }
    let rows = if lanes.len() == 1 { lanes[0] } else { g.concat(&lanes, 0)? };
    g.output(ROWS, rows)
}

/// Rows of text and starts for each lane, `[1, T, D]`.
fn own_rows(g: &mut Graph, c: &T3Config, time: usize) -> Result<Vec<Value>> {
    let (all, d) = (Scope::new(""), c.width);
    let ids = g.input(TEXT_IDS, DType::I32, [time, 1])?;
    let is_text = g.input(IS_TEXT, DType::I32, [time])?;
    let is_start = g.input(IS_START, DType::I32, [time])?;
    let at = g.input(POSITIONS, DType::I32, [time, 1])?;
    let text = table(g, "text_emb.weight", c.text_ids, d, ids)?;
    let text = g.mask_rows(text, Some(is_text))?;
    let start = all.get("speech_emb.weight", [c.speech_ids, d]).rows(START_OF_SPEECH as usize, 1);
    let (start, learned) = match c.backbone {
        Backbone::Llama => {
            let first = all.get("speech_pos_emb.emb.weight", [c.speech_positions, d]).rows(0, 1);
            let learned = table(g, "text_pos_emb.emb.weight", c.text_positions, d, at)?;
            (start.add(&first), g.mask_rows(learned, Some(is_text))?)
        }
        Backbone::Gpt2 => (start, table(g, "tfmr.wpe.weight", c.text_positions, d, at)?),
    };
    let start = g.constant(start.reshape([1, 1, d]), time)?;
    let start = g.mask_rows(start, Some(is_start))?;
    let without_text = g.add(learned, start)?;
    let with_text = g.add(without_text, text)?;
    let lanes = [with_text, without_text];
    lanes[..c.lanes()].iter().map(|rows| g.reshape(*rows, [1, time, d])).collect()
}

/// Builds the plan that sets [`SEEN`] before the first frame. Reads [`START`].
pub fn begin(g: &mut Graph, c: &T3Config) -> Result<()> {
    let seen = g.state(SEEN, DType::F32, [1, c.speech_ids])?;
    let start = g.input(START, DType::I32, [1, 1])?;
    g.mark(seen, start).map(drop)
}

/// Builds the network for `time` rows of a prompt. Reads [`ROWS`] `[B · L, T, D]`, which begin at state
/// [`POSITION`], and [`LAST`]; fills the cache, and writes [`LOGITS`] of the last row that is not padding.
pub fn prefill(g: &mut Graph, c: &T3Config, s: CacheSizes, time: usize) -> Result<()> {
    let batch = s.batch * c.lanes();
    let rows = g.input(ROWS, DType::F32, [batch, time, c.width])?;
    let position = g.state(POSITION, DType::I32, [batch])?;
    let last = g.input(LAST, DType::I32, [batch])?;
    let (x, _) = layers(g, c, s, rows, (Rows::At(position), None, "prefill_layer"))?;
    let x = g.row_at(x, last)?; // [B · L, 1, D]
    let logits = head(g, c, x)?;
    g.output(LOGITS, logits)
}

/// Builds the plan of a frame: draws a code from [`LOGITS`], and reads it up to the logits of the next one.
pub fn frame(g: &mut Graph, c: &T3Config, s: CacheSizes) -> Result<()> {
    let (batch, v) = (s.batch, c.speech_ids);
    let seed = g.input(SEED, DType::I32, [batch, 2])?;
    let settings = g.input(SAMPLING, DType::F32, [batch, SAMPLE_SETTINGS])?;
    let number = g.state(FRAME, DType::I32, [batch])?;
    let logits = g.state(LOGITS, DType::F32, [batch * c.lanes(), 1, v])?;
    let seen = g.state(SEEN, DType::F32, [batch, v])?;
    let rules = match c.backbone {
        Backbone::Llama => SampleRules::default(),
        Backbone::Gpt2 => {
            SampleRules { penalty_last: true, start: Some(START_OF_SPEECH as usize), ..Default::default() }
        }
    };
    let logits = if s.watched { with_end_bias(g, logits)? } else { logits };
    let logits = match c.lanes() {
        1 => g.reshape(logits, [batch, v])?,
        lanes => g.reshape(logits, [batch, lanes, v])?,
    };
    let code = g.sample(Op::Sample(rules), logits, Draw { settings, seed, number }, Some(seen))?;
    g.mark(seen, code)?;
    g.output(CODES, code)?;
    let logits = after(g, c, s, code, number)?;
    g.update(LOGITS, logits)
}

/// Logits `[B · L, 1, V]` with [`END_BIAS`] added to that of the end of speech.
fn with_end_bias(g: &mut Graph, logits: Value) -> Result<Value> {
    let &[batch, _, v] = g.shape(logits).dims() else { unreachable!("a state of three axes") };
    let end = END_OF_SPEECH as usize;
    let bias = g.input(END_BIAS, DType::F32, [batch, 1, 1])?;
    let parts = [(0, end), (end, 1), (end + 1, v - end - 1)];
    let [before, of_end, after] = parts.map(|(start, len)| g.slice(logits, 2, start, len));
    let of_end = g.add(of_end?, bias)?;
    g.concat(&[before?, of_end, after?], 2)
}

/// Builds the plan of a frame whose code is read from [`GIVEN`]: nothing is drawn, and [`SEEN`] stays as it
/// is. For comparing what the network makes of the same codes.
pub fn given_frame(g: &mut Graph, c: &T3Config, s: CacheSizes) -> Result<()> {
    let code = g.input(GIVEN, DType::I32, [s.batch, 1])?;
    let number = g.state(FRAME, DType::I32, [s.batch])?;
    let logits = after(g, c, s, code, number)?;
    g.output(LOGITS, logits)
}

/// Reads code i32 `[B, 1]` of frame `number` up to the logits `[B · L, 1, V]` of the next one.
fn after(g: &mut Graph, c: &T3Config, s: CacheSizes, code: Value, number: Value) -> Result<Value> {
    let (batch, lanes, d) = (s.batch, c.lanes(), c.width);
    let position = g.state(POSITION, DType::I32, [batch * lanes])?;
    let x = table(g, "speech_emb.weight", c.speech_ids, d, code)?; // [B, 1, D]
    let next = g.increment(number, 1)?;
    let row = match c.backbone {
        Backbone::Llama => {
            // The start rows have position 0, the first code has position 1.
            let at = g.reshape(next, [batch, 1])?;
            let learned = table(g, "speech_pos_emb.emb.weight", c.speech_positions, d, at)?;
            let x = g.add(x, learned)?;
            let both = g.concat(&vec![x; lanes], 1)?; // [B, L, D]
            g.reshape(both, [batch * lanes, 1, d])?
        }
        Backbone::Gpt2 => {
            let at = g.reshape(position, [batch, 1])?;
            let learned = table(g, "tfmr.wpe.weight", c.text_positions, d, at)?;
            g.add(x, learned)?
        }
    };
    g.tap("row", row)?;
    // Callers of one voice have its conditioning in common: with GPT-2, most of their rows.
    let begins_alike = c.backbone == Backbone::Gpt2 && batch >= LEAST_SHARED;
    let shared = if begins_alike { Some(g.input(SHARED, DType::I32, [batch * lanes, 2])?) } else { None };
    let (x, aligned) = layers(g, c, s, row, (Rows::At(position), shared, "layer"))?;
    if let Some(aligned) = aligned {
        let aligned = g.concat(&aligned, 2)?;
        g.output(ALIGNED, aligned)?;
    }
    let logits = head(g, c, x)?;
    let position = g.increment(position, 1)?;
    g.update(POSITION, position)?;
    g.update(FRAME, next)?;
    Ok(logits)
}

/// `[B · L, 1, D]` → `[B · L, 1, V]`
fn head(g: &mut Graph, c: &T3Config, x: Value) -> Result<Value> {
    g.tap("hidden", x)?;
    let w = Scope::new("");
    let logits = g.matmul(x, w.matrix("speech_head", c.width, c.speech_ids))?;
    match c.backbone {
        Backbone::Llama => Ok(logits),
        Backbone::Gpt2 => g.add_bias(logits, w.bias("speech_head", c.speech_ids)),
    }
}
