//! The language of a request.

use crate::ModelError;
use orate_text::languages;

/// Returns what a model calls the language that is asked for: by code, tag or English name, as
/// [`languages::find`] reads them. `None` leaves it to the model, and so do `auto` and an empty name.
///
/// # Errors
/// [`ModelError::UnknownLanguage`] with the `known` ones.
pub fn language<'k>(asked: Option<&str>, known: &[&'k str]) -> Result<Option<&'k str>, ModelError> {
    let Some(asked) = asked.filter(|name| !languages::is_auto(name)) else { return Ok(None) };
    match languages::find(asked, known) {
        Some(language) => Ok(Some(language)),
        None => Err(ModelError::UnknownLanguage {
            name: asked.to_owned(),
            known: known.iter().map(|name| (*name).to_owned()).collect(),
        }),
    }
}
