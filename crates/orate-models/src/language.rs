//! The language of a request.

use crate::ModelError;
use orate_text::languages;

/// Returns the language among the `known` ones of a model that a request asks for, matched by
/// [`languages::find`]. Returns `None`, the model's choice, for `None`, `auto` and an empty name.
///
/// # Errors
/// [`ModelError::UnknownLanguage`] lists the `known` ones.
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
