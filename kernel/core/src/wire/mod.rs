//! The wire format: frames, headers, answers, properties and tags, without state.

pub(crate) mod answer;
pub(crate) mod frame;
pub(crate) mod grpc;
pub(crate) mod grpc_pops;
pub(crate) mod header;
#[cfg(test)]
mod header_tests;
pub(crate) mod json;
pub(crate) mod numbers;
pub(crate) mod pops;
pub(crate) mod properties;
pub(crate) mod protobuf;
pub(crate) mod swar;
pub(crate) mod tags;
