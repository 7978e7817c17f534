//! Texts of hosts and message ids.

use std::net::Ipv6Addr;

use crate::record::int;
use crate::wire::answer::push_decimal;

/// Two upper-case hex digits for each byte.
const HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789ABCDEF";
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    table
};

/// Bytes in upper-case hex. An offset message id is the store host and the commit log offset so.
pub(super) fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    if let Ok(bytes) = <&[u8; 8]>::try_from(bytes) {
        let mut text = [[0; 2]; 8];
        for (digits, byte) in text.iter_mut().zip(bytes) {
            *digits = HEX[usize::from(*byte)];
        }
        out.extend_from_slice(text.as_flattened());
    } else {
        out.extend(bytes.iter().flat_map(|byte| HEX[usize::from(*byte)]));
    }
}

/// A host as `ip:port`.
pub(super) fn push_host(host: &[u8], out: &mut Vec<u8>) {
    let port = if let Some((address, port)) = host.split_first_chunk::<16>() {
        out.extend_from_slice(plain_v6(*address).as_bytes());
        port
    } else if let Some((address, port)) = host.split_first_chunk::<4>() {
        for (index, byte) in address.iter().enumerate() {
            if index > 0 {
                out.push(b'.');
            }
            push_decimal(out, i64::from(*byte));
        }
        port
    } else {
        return;
    };
    out.push(b':');
    push_decimal(out, i64::from(int(port, 0) as u32));
}

/// An IPv6 address in hexadecimal groups only, as Python writes it.
pub(super) fn plain_v6(address: [u8; 16]) -> String {
    let address = Ipv6Addr::from(address);
    match (address.to_ipv4_mapped(), address.segments()) {
        (Some(_), [.., high, low]) => format!("::ffff:{high:x}:{low:x}"),
        _ => address.to_string(),
    }
}
