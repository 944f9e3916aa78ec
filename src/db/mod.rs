//! stub
pub(crate) mod database;
pub(crate) mod events;
pub(crate) mod options;
pub(crate) mod statistics;
