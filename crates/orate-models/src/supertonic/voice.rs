//! Voices: two small tables of style values, which can be mixed.

use super::config::{Config, Style};
use crate::ModelError;
use serde::Deserialize;

/// A voice of one model: style for the duration predictor and for the two latent networks.
#[derive(Clone, Debug, PartialEq)]
pub struct Voice {
    /// Name, or the mix it was made from.
    pub name: String,
    /// `[slots, width]`, row-major.
    pub style_ttl: Vec<f32>,
    /// `[slots, width]`, row-major.
    pub style_dp: Vec<f32>,
}

#[derive(Deserialize)]
struct File {
    style_ttl: Table,
    style_dp: Table,
}

#[derive(Deserialize)]
struct Table {
    dims: Vec<usize>,
    data: Numbers,
}

/// Nested lists of any depth, or a flat one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Numbers {
    One(f32),
    Many(Vec<Numbers>),
}

impl Numbers {
    fn flatten(&self, out: &mut Vec<f32>) {
        match self {
            Numbers::One(x) => out.push(*x),
            Numbers::Many(all) => all.iter().for_each(|n| n.flatten(out)),
        }
    }
}

impl Voice {
    /// Reads a voice file for a model of these sizes.
    ///
    /// # Errors
    /// It is not JSON of this form, has other sizes than the model, or holds a number that is not finite.
    pub fn from_json(name: &str, json: &[u8], c: &Config) -> Result<Voice, ModelError> {
        let bad = |problem: String| ModelError::BadVoice { name: Some(name.to_owned()), problem };
        let file: File = serde_json::from_slice(json).map_err(|e| bad(format!("not a voice file: {e}")))?;
        let table = |what: &str, t: &Table, style: Style| -> Result<Vec<f32>, ModelError> {
            let wanted = [1, style.tokens, style.width];
            if t.dims != wanted {
                return Err(bad(format!(
                    "`{what}` has dims {:?} but this model needs {wanted:?}; is it a voice of another model?",
                    t.dims
                )));
            }
            let mut out = Vec::new();
            t.data.flatten(&mut out);
            let (got, needed) = (out.len(), style.count());
            if got != needed {
                return Err(bad(format!("`{what}` has {got} numbers but its dims {wanted:?} need {needed}")));
            }
            if out.iter().any(|x| !x.is_finite()) {
                return Err(bad(format!("`{what}` holds a number that is not finite")));
            }
            Ok(out)
        };
        Ok(Voice {
            name: name.to_owned(),
            style_ttl: table("style_ttl", &file.style_ttl, c.style)?,
            style_dp: table("style_dp", &file.style_dp, c.dp_style)?,
        })
    }

    /// The weighted mean of voices.
    ///
    /// # Errors
    /// There is no voice, or the weights do not have a positive finite sum.
    pub fn mix(name: &str, parts: &[(f32, Voice)]) -> Result<Voice, ModelError> {
        let total: f32 = parts.iter().map(|(w, _)| w).sum();
        let (true, Some((_, first))) = (total.is_finite() && total > 0.0, parts.first()) else {
            let problem = format!("weights sum to {total}, which cannot be scaled to 1");
            return Err(ModelError::BadVoice { name: Some(name.to_owned()), problem });
        };
        let mut v = Voice {
            name: name.to_owned(),
            style_ttl: vec![0.0; first.style_ttl.len()],
            style_dp: vec![0.0; first.style_dp.len()],
        };
        for (w, part) in parts {
            v.style_ttl.iter_mut().zip(&part.style_ttl).for_each(|(o, x)| *o += w / total * x);
            v.style_dp.iter_mut().zip(&part.style_dp).for_each(|(o, x)| *o += w / total * x);
        }
        Ok(v)
    }
}

/// The parts of `F1`, `F1+M2` or `F1:0.7+M2:0.3`: names and weights.
///
/// # Errors
/// A name is empty or a weight is not a number of at least 0.
pub fn parse_mix(spec: &str) -> Result<Vec<(String, f32)>, ModelError> {
    let bad = |problem: String| ModelError::BadVoice { name: Some(spec.to_owned()), problem };
    spec.split('+')
        .map(|part| {
            let (name, weight) = match part.rsplit_once(':') {
                Some((name, w)) => match w.trim().parse::<f32>() {
                    Ok(x) if x.is_finite() && x >= 0.0 => (name, x),
                    _ => return Err(bad(format!("`{w}` is not a weight; write for example F1:0.7+M2:0.3"))),
                },
                None => (part, 1.0),
            };
            let name = name.trim();
            if name.is_empty() {
                return Err(bad("a voice name is empty; write for example F1 or F1:0.7+M2:0.3".to_owned()));
            }
            Ok((name.to_owned(), weight))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_parsed() {
        assert_eq!(parse_mix("F1").ok(), Some(vec![("F1".to_owned(), 1.0)]));
        assert_eq!(
            parse_mix("F1:0.7 + M2:0.3").ok(),
            Some(vec![("F1".to_owned(), 0.7), ("M2".to_owned(), 0.3)])
        );
        for bad in ["", "+", "F1:", "F1:x", "F1:-1", "F1:NaN", ":1"] {
            assert!(parse_mix(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mixing_is_a_weighted_mean() {
        let v = |x: f32| Voice { name: "v".into(), style_ttl: vec![x; 3], style_dp: vec![2.0 * x; 2] };
        let m = Voice::mix("m", &[(3.0, v(1.0)), (1.0, v(5.0))]).expect("weights sum to 4");
        assert_eq!((m.style_ttl, m.style_dp), (vec![2.0; 3], vec![4.0; 2]));
        assert!(Voice::mix("m", &[(0.0, v(1.0))]).is_err());
        assert!(Voice::mix("m", &[]).is_err());
    }
}
