//! Hashes of keys in the order of time, each found with one read of memory.
//!
//! The ring has what is known of each key, and forgets the oldest. Beside it is a table of buckets,
//! a line of the processor's cache each, with the numbers of keys. A number tells by itself whether
//! its key is still in the ring, so a slot is free again without being touched.

use std::collections::VecDeque;

use crate::memory::prefetch;

/// Numbers in a bucket.
const SLOTS: usize = 10;
/// Keys of a table for each of its buckets, before there is a larger one.
const LOAD: usize = 5;
const BUCKETS_MIN: usize = 4;
/// A larger table is not filled with the keys of the one before, which is used until they are
/// forgotten: that would take too long at once.
const BUCKETS_FILLED_MAX: usize = 1 << 13;

const PAGE: usize = 4_096;
/// Places in the table are random: with small pages each would cost another read of memory.
const HUGE_PAGE: usize = 2 << 20;

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    pub hash: u64,
    /// Of its record; negative: it was taken out.
    pub physical_offset: i64,
    pub store_timestamp: i64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    numbers: [u32; SLOTS],
    /// Of the newest key that found no slot here and is in the next bucket.
    passed_on: u32,
    tags: [u16; SLOTS],
}

const fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}

/// The slots of a bucket for which something holds, a bit each.
#[inline]
fn slots(holds: impl Fn(usize) -> bool) -> u32 {
    (0..SLOTS).fold(0, |found, slot| found | u32::from(holds(slot)) << slot)
}

#[derive(Debug)]
struct Table {
    /// As many as a power of two.
    buckets: Box<[Bucket]>,
    /// Number of its first key, in the ring or forgotten.
    begin: u32,
}

impl Table {
    /// `forgotten`: the number of no key.
    fn new(buckets: usize, begin: u32, forgotten: u32) -> Self {
        let empty = Bucket { numbers: [forgotten; SLOTS], passed_on: forgotten, tags: [0; SLOTS] };
        let mut all: Vec<Bucket> = Vec::with_capacity(buckets);
        let size = buckets * size_of::<Bucket>();
        if size >= HUGE_PAGE {
            let start = all.as_mut_ptr().cast::<u8>();
            let start = start.wrapping_add(start.align_offset(PAGE));
            // SAFETY: pages inside of what was allocated; the advice changes no content. One that
            // is not taken makes it slower.
            unsafe { libc::madvise(start.cast(), size - PAGE, libc::MADV_HUGEPAGE) };
        }
        all.resize(buckets, empty);
        Self { buckets: all.into(), begin }
    }

    #[inline]
    const fn place(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// `live`: the number of the first key of the ring, and how many there are.
    #[inline]
    fn insert(&mut self, hash: u64, number: u32, (first, count): (u32, u32)) {
        let mut place = self.place(hash);
        loop {
            let bucket = &mut self.buckets[place];
            let free = slots(|slot| bucket.numbers[slot].wrapping_sub(first) >= count);
            if free != 0 {
                let slot = free.trailing_zeros() as usize;
                bucket.numbers[slot] = number;
                bucket.tags[slot] = tag(hash);
                return;
            }
            bucket.passed_on = number;
            place = (place + 1) & (self.buckets.len() - 1);
        }
    }

    /// Whether `is_wanted` holds for a key that may have the hash, by its place in the ring.
    #[inline]
    fn any(
        &self,
        hash: u64,
        (first, count): (u32, u32),
        mut is_wanted: impl FnMut(usize) -> bool,
    ) -> bool {
        let mut place = self.place(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[place];
            let mut alike = slots(|slot| bucket.tags[slot] == tag(hash));
            while alike != 0 {
                let index = bucket.numbers[alike.trailing_zeros() as usize].wrapping_sub(first);
                if index < count && is_wanted(index as usize) {
                    return true;
                }
                alike &= alike - 1;
            }
            if bucket.passed_on.wrapping_sub(first) >= count {
                return false;
            }
            place = (place + 1) & (self.buckets.len() - 1);
        }
        false
    }
}

/// The keys of one topic.
#[derive(Debug, Default)]
pub struct KeyRing {
    ring: VecDeque<Noted>,
    /// Number of the first key of the ring; they begin anew behind the last one.
    first: u32,
    /// The one that gets new keys is the last.
    tables: Vec<Table>,
    taken_out: usize,
}

impl KeyRing {
    /// Keys that it has, those that were taken out among them.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Keys that were not taken out.
    pub fn present(&self) -> usize {
        self.ring.len() - self.taken_out
    }

    /// Memory that it takes.
    pub fn bytes_taken(&self) -> usize {
        let buckets: usize = self.tables.iter().map(|table| table.buckets.len()).sum();
        self.ring.capacity() * size_of::<Noted>() + buckets * size_of::<Bucket>()
    }

    /// The oldest key.
    pub fn oldest(&self) -> Option<&Noted> {
        self.ring.front()
    }

    #[inline]
    fn live(&self) -> (u32, u32) {
        (self.first, self.ring.len() as u32)
    }

    /// Adds the newest key.
    #[inline]
    pub fn push(&mut self, noted: Noted) {
        let live = self.live();
        let number = live.0.wrapping_add(live.1);
        let has_space = |table: &Table| {
            let of_it = number.wrapping_sub(table.begin).min(live.1) as usize;
            of_it < table.buckets.len() * LOAD
        };
        if !self.tables.last().is_some_and(has_space) {
            self.grow(number);
        }
        if let Some(table) = self.tables.last_mut() {
            table.insert(noted.hash, number, live);
        }
        self.ring.push_back(noted);
    }

    /// Has a table with space for more keys; `number`: of the next one.
    #[cold]
    fn grow(&mut self, number: u32) {
        let (first, count) = self.live();
        let wanted = (2 * self.ring.len()).div_ceil(LOAD).max(BUCKETS_MIN);
        let buckets = wanted.next_power_of_two();
        let is_filled = buckets <= BUCKETS_FILLED_MAX;
        let begin = if is_filled { first } else { number };
        let mut table = Table::new(buckets, begin, first.wrapping_sub(1));
        if is_filled {
            self.tables.clear();
            for (noted, at) in self.ring.iter().zip(0..count) {
                table.insert(noted.hash, first.wrapping_add(at), (first, at));
            }
        }
        self.tables.push(table);
    }

    /// Forgets the oldest key.
    #[inline]
    pub fn pop(&mut self) {
        let Some(oldest) = self.ring.pop_front() else { return };
        self.taken_out -= usize::from(oldest.physical_offset < 0);
        self.first = self.first.wrapping_add(1);
        if self.ring.is_empty() {
            (self.ring, self.tables) = (VecDeque::new(), Vec::new());
        } else if self.tables.get(1).is_some_and(|second| second.begin == self.first) {
            self.tables.remove(0);
        }
    }

    /// Whether `is_wanted` holds for a key with the hash, by its place in the ring.
    #[inline]
    pub fn any(&self, hash: u64, mut is_wanted: impl FnMut(usize, &Noted) -> bool) -> bool {
        let live = self.live();
        self.tables.iter().any(|table| {
            table.any(hash, live, |index| {
                let noted = &self.ring[index];
                noted.hash == hash && noted.physical_offset >= 0 && is_wanted(index, noted)
            })
        })
    }

    /// Asks for the memory that tells whether there is a key with the hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        for table in &self.tables {
            prefetch(&table.buckets[table.place(hash)]);
        }
    }

    /// Whether there is a key with the hash.
    #[inline]
    pub fn has(&self, hash: u64) -> bool {
        self.any(hash, |_, _| true)
    }

    /// Takes a key out, by its place in the ring; the place goes when the key would have.
    pub fn take_out(&mut self, index: usize) {
        if let Some(noted) = self.ring.get_mut(index).filter(|noted| noted.physical_offset >= 0) {
            noted.physical_offset = -1;
            self.taken_out += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(hash: u64, number: i64) -> Noted {
        Noted { hash, physical_offset: number, store_timestamp: number }
    }

    /// Where the keys with a hash are, as the ring finds them.
    fn found(keys: &KeyRing, hash: u64) -> Vec<i64> {
        let mut found = Vec::new();
        keys.any(hash, |_, noted| {
            found.push(noted.physical_offset);
            false
        });
        found.sort_unstable();
        found
    }

    /// Hashes of which many have the same bucket, tag or both.
    fn hash_of(number: u64, kind: u64) -> u64 {
        match kind {
            0 => number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            1 => number << 8,
            2 => number % 7,
            _ => (number % 50) << 48 | (number % 3),
        }
    }

    #[test]
    fn it_finds_what_a_list_finds_whatever_the_hashes() {
        for (kind, start) in [(0, 0), (1, u32::MAX - 300), (2, 7), (3, u32::MAX)] {
            let mut keys = KeyRing { first: start, ..KeyRing::default() };
            let mut list: VecDeque<(u64, i64)> = VecDeque::new();
            for number in 0..4_000_u64 {
                let hash = hash_of(number, kind);
                keys.push(noted(hash, number as i64));
                list.push_back((hash, number as i64));
                // It grows, then stays, then becomes small.
                let forgotten = [0, 1, 2][number as usize / 1_500];
                for _ in 0..forgotten {
                    keys.pop();
                    list.pop_front();
                }
                if number % 11 == 0 {
                    let (index, middle) = (keys.len() / 2, list.len() / 2);
                    if index < keys.len() {
                        keys.take_out(index);
                        list[middle].1 = -1;
                    }
                }
                for asked in [hash, hash_of(number / 2, kind), hash_of(number + 1, kind)] {
                    let wanted = list.iter().filter(|each| each.0 == asked && each.1 >= 0);
                    let wanted: Vec<i64> = wanted.map(|each| each.1).collect();
                    assert_eq!(found(&keys, asked), wanted, "{kind} {number}");
                }
                assert_eq!(keys.len(), list.len());
                assert_eq!(keys.present(), list.iter().filter(|each| each.1 >= 0).count());
            }
        }
    }

    #[test]
    fn a_large_table_is_used_until_its_keys_are_forgotten() {
        let mut keys = KeyRing::default();
        let count = (4 * BUCKETS_FILLED_MAX * LOAD) as u64;
        for number in 0..count {
            keys.push(noted(hash_of(number, 0), number as i64));
        }
        assert!(keys.tables.len() > 1);
        for number in (0..count).step_by(997) {
            assert_eq!(found(&keys, hash_of(number, 0)), [number as i64]);
        }
        for number in count..2 * count {
            keys.push(noted(hash_of(number, 0), number as i64));
            keys.pop();
        }
        assert_eq!(keys.tables.len(), 1);
        assert!(!keys.has(hash_of(count - 1, 0)));
        assert!(keys.has(hash_of(count, 0)));
        for _ in 0..count {
            keys.pop();
        }
        assert_eq!((keys.len(), keys.tables.len()), (0, 0));
    }
}
