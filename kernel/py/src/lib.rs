//! The Python module `kerolox_kernel`: the engine of `kerolox-core` after the interface of
//! `kerolox.kernel`. No logic is here (`tools/rust_modules.py` holds that): arguments in, named
//! tuples out, errors turned into Python's; and Python's objects are held and called as the core
//! says.

mod buffer;
mod columns;
mod connection;
mod errors;
mod following;
mod http2;
mod messages;
mod records;
mod rows;
mod sending;
mod settings;
mod shapes;
mod slots;
mod store;

use pyo3::prelude::*;

/// The native part of `kerolox_kernel`, which exports all of it.
#[pymodule]
mod _kernel {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::columns::decode_columns;
    #[pymodule_export]
    use crate::columns::scan_columns;
    #[pymodule_export]
    use crate::connection::Connection;
    #[pymodule_export]
    use crate::http2::Http2ServerSide;
    #[pymodule_export]
    use crate::messages::{cut_messages, decode_properties, pull_answer};
    #[pymodule_export]
    use crate::rows::{encode_rows, first_fault, hash_texts};
    #[pymodule_export]
    use crate::sending::channel::SendChannel;
    #[pymodule_export]
    use crate::sending::counters::MessageIds;
    #[pymodule_export]
    use crate::sending::counters::Opaques;
    #[pymodule_export]
    use crate::sending::sender::Sender;
    #[pymodule_export]
    use crate::sending::topic_sender::TopicSender;
    #[pymodule_export]
    use crate::store::Store;
}
