//! stub
pub(crate) mod description;
