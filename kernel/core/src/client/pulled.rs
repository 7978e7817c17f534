//! Records that an answer to a pull brings, taken apart for a consumer's messages.

use crate::protocol::COMPRESSED;
use crate::record::{Marks, Parsed, RecordView, parse};

/// One record, and its bytes before the body.
#[derive(Clone, Copy, Debug)]
pub struct Pulled<'a> {
    /// Its parts.
    pub record: RecordView<'a>,
    /// All that stands before the body, the body's length among it.
    pub head: &'a [u8],
}

impl<'a> Pulled<'a> {
    /// The value of `TAGS`.
    pub fn tags(&self) -> Option<&'a [u8]> {
        Marks::scan(self.record.properties).tags
    }
}

/// What is said of all records that a consumer gets of an answer.
#[derive(Debug)]
pub struct Chosen {
    /// Places of those whose bodies are compressed.
    pub compressed: Vec<usize>,
    /// Bytes of their bodies.
    pub body_bytes: usize,
    /// Each has a higher queue offset than the one before.
    pub ascends: bool,
    last: Option<i64>,
    count: usize,
}

impl Default for Chosen {
    fn default() -> Self {
        Self { compressed: Vec::new(), body_bytes: 0, ascends: true, last: None, count: 0 }
    }
}

impl Chosen {
    /// The next one.
    pub fn add(&mut self, record: &RecordView<'_>) {
        if record.sys_flag & COMPRESSED != 0 {
            self.compressed.push(self.count);
        }
        self.count += 1;
        self.body_bytes += record.body.len();
        self.ascends &= self.last.is_none_or(|last| last < record.queue_offset);
        self.last = Some(record.queue_offset);
    }
}

/// Records that follow each other. It ends before the first that is none; [`Self::position`] says
/// where that is.
pub struct PulledRecords<'a> {
    data: &'a [u8],
    position: usize,
}

impl<'a> PulledRecords<'a> {
    /// The records of these bytes.
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, position: 0 }
    }

    /// Where the next record begins.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<'a> Iterator for PulledRecords<'a> {
    type Item = Pulled<'a>;

    fn next(&mut self) -> Option<Pulled<'a>> {
        let rest = self.data.get(self.position..)?;
        let Parsed::Record(record) = parse(rest) else { return None };
        let behind = record.body.len() + 1 + record.topic.len() + 2 + record.properties.len();
        let head = rest.get(..record.size.checked_sub(behind)?)?;
        self.position += record.size;
        Some(Pulled { record, head })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Fields, NewRecord, Text, encode, record_size};
    use proptest::prelude::*;

    #[test]
    fn chosen_records_are_summed_up() {
        let bytes = [stored(b"four", b"T", b"", 1), stored(b"six...", b"T", b"", 5)].concat();
        let records: Vec<_> = PulledRecords::new(&bytes).map(|pulled| pulled.record).collect();
        let mut chosen = Chosen::default();
        chosen.add(&records[0]);
        chosen.add(&RecordView { sys_flag: COMPRESSED, ..records[1] });
        assert_eq!((chosen.body_bytes, chosen.ascends), (10, true));
        chosen.add(&records[1]);
        assert_eq!((chosen.body_bytes, chosen.ascends), (16, false));
        assert_eq!(chosen.compressed, [1]);
    }

    fn stored(body: &[u8], topic: &[u8], properties: &[u8], queue_offset: i64) -> Vec<u8> {
        let record = NewRecord {
            flag: 1,
            sys_flag: 0,
            born_timestamp: 2,
            born_host: &[7; 8],
            store_host: &[8; 8],
            reconsume_times: 3,
            prepared_transaction_offset: 4,
            body,
            properties: Text::one(properties),
            marks: None,
            tags_code: None,
            bit_map: &[],
        };
        let mut bytes = vec![0; record_size(16, body.len(), topic.len(), properties.len())];
        let fields = Fields {
            record: &record,
            topic,
            queue_id: 5,
            queue_offset,
            physical_offset: 6,
            store_timestamp: 9,
            properties_size: properties.len(),
        };
        encode(&mut bytes, &fields);
        bytes
    }

    #[test]
    fn a_torn_record_ends_those_before_it() {
        let mut data = stored(b"one", b"T", b"TAGS\x01a\x02TAGS\x01b", 1);
        let first = data.len();
        data.extend(stored(b"two", b"T", b"", 2));
        let mut records = PulledRecords::new(&data[..data.len() - 1]);
        let pulled = records.next().unwrap();
        assert_eq!((pulled.record.body, pulled.tags()), (&b"one"[..], Some(&b"b"[..])));
        assert_eq!(pulled.head, &data[..88]);
        assert!(records.next().is_none());
        assert_eq!(records.position(), first);
    }

    proptest! {
        #[test]
        fn the_heads_and_the_rest_are_the_whole(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
        ) {
            let data: Vec<u8> =
                bodies.iter().flat_map(|body| stored(body, b"Topic", b"k\x01v", 0)).collect();
            let mut records = PulledRecords::new(&data);
            let mut whole = Vec::new();
            for pulled in records.by_ref() {
                let record = pulled.record;
                whole.extend_from_slice(pulled.head);
                whole.extend_from_slice(record.body);
                whole.push(record.topic.len() as u8);
                whole.extend_from_slice(record.topic);
                whole.extend((record.properties.len() as u16).to_be_bytes());
                whole.extend_from_slice(record.properties);
            }
            prop_assert_eq!(records.position(), data.len());
            prop_assert_eq!(whole, data);
        }
    }
}
