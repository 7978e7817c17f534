//! Errors of the store and the statuses that RocketMQ names.

use std::fmt;
use std::io;
use std::path::Path;

/// `PutMessageStatus` by its number; `PUT_OK` (0) is the `Ok` of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum PutStatus {
    /// The record was written, the flush was not confirmed in time.
    FlushDiskTimeout = 1,
    /// As above, for the slave.
    FlushSlaveTimeout = 2,
    /// No slave can take the record.
    SlaveNotAvailable = 3,
    /// The store takes no writes (closed, failed, or the disk is full); see `Store::error`.
    ServiceNotAvailable = 4,
    /// The next commit log file could not be created; see `Store::error`.
    CreateMappedFileFailed = 5,
    /// Topic, body or record size outside the limits.
    MessageIllegal = 6,
    /// Property text longer than 32,767 bytes.
    PropertiesSizeExceeded = 7,
    /// An append waits for a new file for longer than `osPageCacheBusyTimeOutMills`.
    OsPageCacheBusy = 8,
    /// The handle's queue was deleted, or another error of the caller.
    UnknownError = 9,
    /// More light message queues than `maxLmqConsumeQueueNum`.
    LmqConsumeQueueNumExceeded = 10,
}

/// `GetMessageStatus` by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)] // the names are RocketMQ's
pub enum GetStatus {
    Found = 0,
    NoMatchedMessage = 1,
    MessageWasRemoving = 2,
    OffsetFoundNull = 3,
    OffsetOverflowBadly = 4,
    OffsetOverflowOne = 5,
    OffsetTooSmall = 6,
    NoMatchedLogicQueue = 7,
    NoMessageInQueue = 8,
}

impl GetStatus {
    /// RocketMQ's constant, the remark of a pull answer.
    pub const fn name(self) -> &'static str {
        match self {
            GetStatus::Found => "FOUND",
            GetStatus::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            GetStatus::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
            GetStatus::OffsetFoundNull => "OFFSET_FOUND_NULL",
            GetStatus::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            GetStatus::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            GetStatus::OffsetTooSmall => "OFFSET_TOO_SMALL",
            GetStatus::NoMatchedLogicQueue => "NO_MATCHED_LOGIC_QUEUE",
            GetStatus::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
        }
    }
}

/// Why `open`, `flush` or `close` failed. The text says what, where and what to do next.
#[derive(Debug)]
pub enum StoreError {
    /// The operating system refused; kind `WouldBlock` when another process holds the store.
    Io {
        /// What was being done, to which file.
        context: String,
        /// The cause.
        source: io::Error,
    },
    /// A file is not what the settings say (the binding raises `ValueError`).
    InvalidData(String),
    /// The store is not open.
    Closed,
}

impl StoreError {
    /// An I/O error with its context.
    pub fn io(context: impl Into<String>, source: io::Error) -> Self {
        StoreError::Io { context: context.into(), source }
    }

    /// The kind, as `io::Error` has it.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            StoreError::Io { source, .. } => source.kind(),
            StoreError::InvalidData(_) => io::ErrorKind::InvalidData,
            StoreError::Closed => io::ErrorKind::NotConnected,
        }
    }

    /// `errno` of the cause, when there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            StoreError::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Io { context, source } => write!(formatter, "{context}: {source}"),
            StoreError::InvalidData(text) => formatter.write_str(text),
            StoreError::Closed => formatter.write_str("the store is not open: call open() first"),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What was being done, to which file, when the operating system refused.
pub(crate) trait During<T> {
    /// The same result, whose error says `doing` and the path.
    fn during(self, doing: &str, path: &Path) -> Result<T, StoreError>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, doing: &str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|error| StoreError::io(format!("{doing} {}", path.display()), error))
    }
}
