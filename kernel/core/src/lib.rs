//! The engine of `kerolox-kernel`: files of RocketMQ 4.x and the broker's hot path, without Python.
//!
//! - [`store`]: commit log, consume queues, index, flush and recovery, behind [`Store`];
//! - [`record`]: the stored record, encoded and decoded;
//! - `hot`: frames, headers, policy tables and held pulls on top of the store.
//!
//! Nothing here panics on what a file or a peer says; failures are [`StoreError`]s or the statuses
//! that RocketMQ names.

pub mod error;
pub mod hot;
pub mod record;
pub mod settings;
pub mod store;

pub use error::{GetStatus, PutStatus, StoreError};
pub use record::{Marks, Text};
pub use settings::{FlushDiskType, Settings};
pub use store::{
    Appended, BatchAppended, BatchItem, Core, Guard, NewBatch, NewRecord, QueueBounds, QueueHandle,
    ReadOutcome, RecoveryReport, Stats, Store,
};
