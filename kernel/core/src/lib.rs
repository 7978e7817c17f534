//! The engine of `kerolox-kernel`: files of RocketMQ 4.x and the broker's hot path, without Python.
//!
//! - [`store`]: commit log, consume queues, index, flush and recovery, behind [`Store`];
//! - [`record`]: the stored record, encoded and decoded;
//! - `hot`: frames, headers, policy tables and held pulls on top of the store.
//!
//! Nothing here panics on what a file or a peer says; failures are [`StoreError`]s or the statuses
//! that RocketMQ names.

mod ahead;
mod append;
mod bus_error;
mod commit_log;
mod consume_queue;
mod deletions;
pub mod error;
mod expire;
mod flush;
mod folder;
pub mod hot;
mod index;
mod inventory;
mod log_cut;
mod log_folders;
mod map;
mod multi_dispatch;
mod pool;
mod queue_ext;
mod read;
pub mod record;
mod recovery;
pub mod settings;
mod shared;
mod state;
pub mod store;
mod zeros;

pub use error::{GetStatus, PutStatus, StoreError};
#[doc(hidden)]
pub use map::set_maps_max;
pub use queue_ext::{BitFilter, ExtUnit, Filter};
pub use record::{Marks, Text};
pub use settings::{FlushDiskType, Settings};
pub use state::Core;
pub use store::{
    Appended, BatchAppended, BatchItem, Guard, LogFile, NewBatch, NewRecord, QueueBounds,
    QueueHandle, ReadOutcome, RecoveryReport, Stats, Store,
};
