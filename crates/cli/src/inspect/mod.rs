//! stub
use crate::commands::StorePath;
use crate::failure::Outcome;
use crate::store::StoreOptions;
use clap::Args;
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spinney inspect my.store")]
pub(crate) struct InspectOptions {
    #[command(flatten)]
    store: StorePath,
}
pub(crate) fn run(_s: &StoreOptions, _o: &InspectOptions) -> Outcome {
    Ok(())
}
