//! Consume queues: entries, the units beside them, and records with entries in several queues.

pub(crate) mod consume_queue;
pub(crate) mod entry;
mod extended;
mod files;
pub(crate) mod load;
pub(crate) mod multi_dispatch;
pub(crate) mod names;
pub(crate) mod queue_ext;
