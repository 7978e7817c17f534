//! How a server writes its frames.

use crate::protocol::http2::{GOAWAY, HEAD_BYTES, RST_STREAM, SETTINGS, WINDOW_UPDATE};

/// Writes a frame after what is there.
pub fn push(out: &mut Vec<u8>, kind: u8, flags: u8, stream_id: u32, payload: &[u8]) {
    out.reserve(HEAD_BYTES + payload.len());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream_id.to_be_bytes());
    out.extend_from_slice(payload);
}

pub fn push_settings(out: &mut Vec<u8>, values: &[(u16, u32)]) {
    let payload: Vec<u8> = values
        .iter()
        .flat_map(|(name, value)| name.to_be_bytes().into_iter().chain(value.to_be_bytes()))
        .collect();
    push(out, SETTINGS, 0, 0, &payload);
}

pub fn push_window_update(out: &mut Vec<u8>, stream_id: u32, size: u32) {
    push(out, WINDOW_UPDATE, 0, stream_id, &size.to_be_bytes());
}

pub fn push_reset(out: &mut Vec<u8>, stream_id: u32, code: u32) {
    push(out, RST_STREAM, 0, stream_id, &code.to_be_bytes());
}

pub fn push_goaway(out: &mut Vec<u8>, last_stream_id: u32, code: u32, text: &str) {
    let payload = [&last_stream_id.to_be_bytes()[..], &code.to_be_bytes(), text.as_bytes()];
    push(out, GOAWAY, 0, 0, &payload.concat());
}
