//! placeholder
/// placeholder
pub struct Team;
