//! Requests as they travel: SEND_MESSAGE_V2 with a JSON header, signed when there is an account.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha1::Sha1;

/// Opaque values have ten digits, so that a frame can be patched in place.
pub const FIRST_OPAQUE: u32 = 1_000_000_000;
const OPAQUE: &str = "\"opaque\":";

/// Who signs.
pub struct Account {
    pub access_key: String,
    pub secret_key: String,
}

/// A frame in which only the opaque, which is not signed, changes from one send to the next.
pub struct Template {
    pub bytes: Vec<u8>,
    pub opaque_at: usize,
}

/// A send of `size` bytes to a queue.
pub fn send(topic: &str, queue: usize, size: usize, account: Option<&Account>) -> Template {
    let born = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis());
    let body: Vec<u8> = (0..size).map(|place| b'a' + (place % 26) as u8).collect();
    let mut fields = vec![
        ("a", "secured_load".to_owned()),
        ("b", topic.to_owned()),
        ("c", "TBW102".to_owned()),
        ("d", "4".to_owned()),
        ("e", queue.to_string()),
        ("f", "0".to_owned()),
        ("g", born.to_string()),
        ("h", "0".to_owned()),
        ("i", "KEYS\u{1}order-000042\u{2}WAIT\u{1}true".to_owned()),
        ("j", "0".to_owned()),
        ("k", "false".to_owned()),
        ("m", "false".to_owned()),
    ];
    if let Some(account) = account {
        fields.push(("AccessKey", account.access_key.clone()));
        fields.sort();
        let mut mac = Hmac::<Sha1>::new_from_slice(account.secret_key.as_bytes()).expect("any key");
        fields.iter().for_each(|(_, value)| mac.update(value.as_bytes()));
        mac.update(&body);
        fields.push(("Signature", STANDARD.encode(mac.finalize().into_bytes())));
    }
    frame(310, &fields, &body)
}

/// A request of any code.
pub fn frame(code: i32, fields: &[(&str, String)], body: &[u8]) -> Template {
    let members: Vec<String> = fields
        .iter()
        .map(|(name, value)| {
            format!("\"{name}\":\"{}\"", value.replace('\u{1}', "\\u0001").replace('\u{2}', "\\u0002"))
        })
        .collect();
    let header = format!(
        "{{\"code\":{code},\"extFields\":{{{}}},\"flag\":0,\"language\":\"JAVA\",{OPAQUE}{FIRST_OPAQUE},\
         \"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}}",
        members.join(",")
    );
    let mut bytes = Vec::with_capacity(8 + header.len() + body.len());
    bytes.extend_from_slice(&((4 + header.len() + body.len()) as u32).to_be_bytes());
    bytes.extend_from_slice(&(header.len() as u32).to_be_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(body);
    let opaque_at = 8 + header.find(OPAQUE).expect("in every header") + OPAQUE.len();
    Template { bytes, opaque_at }
}

/// The code of an answer, from its header in either encoding.
pub fn code_of(header: &[u8], is_json: bool) -> Option<i64> {
    if !is_json {
        return Some(i64::from(i16::from_be_bytes([*header.first()?, *header.get(1)?])));
    }
    let name = b"\"code\":";
    let at = header.windows(name.len()).position(|window| window == name)? + name.len();
    let digits: String =
        header[at..].iter().take_while(|byte| byte.is_ascii_digit()).map(|&byte| byte as char).collect();
    digits.parse().ok()
}
