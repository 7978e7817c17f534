//! The engine of `kerolox-kernel`: files of RocketMQ 4.x and the broker's fast path, without Python.
//!
//! - [`store`]: commit log, consume queues, index, flush and recovery, behind [`Store`];
//! - [`record`]: the stored record, encoded and decoded;
//! - [`http2`]: the server's end of HTTP/2;
//! - [`fast_path`]: frames, headers, policy tables and held pulls on top of the store.
//!
//! Nothing here panics on what a file or a peer says; failures are [`StoreError`]s or the statuses
//! that RocketMQ names.

mod access;
pub mod client;
pub mod columns;
pub mod error;
pub mod fast_path;
mod files;
mod flush;
pub mod http2;
mod index;
mod log;
mod memory;
pub mod protocol;
mod queues;
pub mod record;
mod recovery;
mod replica;
pub mod settings;
mod shared;
mod state;
pub mod store;
mod wire;

pub use error::{GetStatus, PutStatus, StoreError};
#[doc(hidden)]
pub use files::map_count::set_maps_max;
pub use queues::queue_ext::{BitFilter, ExtUnit, Filter};
pub use record::{Marks, NewRecord, Text};
pub use recovery::report::RecoveryReport;
pub use settings::{FlushDiskType, Settings};
pub use state::Core;
pub use state::types::{
    Appended, BatchAppended, BatchItem, LogFile, NewBatch, QueueBounds, QueueHandle, QueuedValues,
    ReadOutcome, Stats,
};
pub use store::{Guard, Store};
