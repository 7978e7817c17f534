//! The column of all properties in the making.

use hashbrown::HashMap;

use super::arrow::{Column, ColumnError, Offsets, reserve_alike};
use super::items::{Item, Items};

/// Up to this many items, a name is compared with those before it; above, it is looked up.
pub(super) const FEW_ITEMS: usize = 32;

/// The column of all properties in the making.
pub(super) struct Maps {
    /// About so many there will be.
    rows: usize,
    offsets: Offsets,
    key_offsets: Offsets,
    value_offsets: Offsets,
    key_data: Vec<u8>,
    value_data: Vec<u8>,
    /// The items of one row, each name once.
    items: Vec<Item>,
    count: usize,
}

impl Maps {
    pub(super) fn new(column: &'static str, rows: usize) -> Self {
        Self {
            rows,
            offsets: Offsets::new(column, rows),
            key_offsets: Offsets::new(column, rows * 4),
            value_offsets: Offsets::new(column, rows * 4),
            key_data: Vec::new(),
            value_data: Vec::new(),
            items: Vec::new(),
            count: 0,
        }
    }

    pub(super) fn add(&mut self, text: &[u8], items: &Items) -> Result<(), ColumnError> {
        self.items.clear();
        if items.all.len() <= FEW_ITEMS {
            for item in &items.all {
                let name = item.name(text);
                match self.items.iter_mut().find(|known| known.name(text) == name) {
                    Some(known) => *known = *item,
                    None => self.items.push(*item),
                }
            }
        } else {
            let mut places = HashMap::new();
            for item in &items.all {
                let place = *places.entry(item.name(text)).or_insert(self.items.len());
                match self.items.get_mut(place) {
                    Some(known) => *known = *item,
                    None => self.items.push(*item),
                }
            }
        }
        for item in &self.items {
            self.key_data.extend_from_slice(item.name(text));
            self.key_offsets.push(self.key_data.len())?;
            self.value_data.extend_from_slice(item.value(text));
            self.value_offsets.push(self.value_data.len())?;
        }
        if self.count == 0 {
            reserve_alike(&mut self.key_data, self.rows);
            reserve_alike(&mut self.value_data, self.rows);
        }
        self.count += self.items.len();
        self.offsets.push(self.count)
    }

    pub(super) fn finish(self) -> Column {
        Column::Map {
            offsets: self.offsets.bytes,
            key_offsets: self.key_offsets.bytes,
            key_data: self.key_data,
            value_offsets: self.value_offsets.bytes,
            value_data: self.value_data,
        }
    }
}
