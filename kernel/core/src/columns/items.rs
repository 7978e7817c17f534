//! The items of a property text.

use crate::protocol::{ITEM_END, NAME_END, property};
use crate::wire::swar;

/// Properties with a column of their own.
#[derive(Clone, Copy)]
pub(super) enum Known {
    Tags = 0,
    Keys = 1,
    UniqueKey = 2,
}

/// Where an item of a property text stands: its start, the end of its name, the end of its value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Item {
    start: usize,
    name_end: usize,
    end: usize,
}

impl Item {
    pub(super) fn name<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.start..self.name_end]
    }

    pub(super) fn value<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.name_end + 1..self.end]
    }
}

/// The items of one property text; those without a name or a value vanish.
#[derive(Debug, Default)]
pub(super) struct Items {
    pub(super) all: Vec<Item>,
    /// The last item of each [`Known`] name.
    pub(super) known: [Option<Item>; 3],
}

impl Items {
    /// Takes a property text apart. It is UTF-8, where no separator is part of a character.
    pub(super) fn find(&mut self, text: &[u8]) {
        self.all.clear();
        self.known = [None; 3];
        let mut item = Item::default();
        let mut has_name = false;
        swar::for_each_below(text, ITEM_END + 1, |at, byte| match byte {
            // Another one after the first is part of the value.
            NAME_END if !has_name => {
                item.name_end = at;
                has_name = true;
            }
            ITEM_END => {
                if has_name {
                    self.put(Item { end: at, ..item }, text);
                }
                item.start = at + 1;
                has_name = false;
            }
            _ => {}
        });
        if has_name {
            self.put(Item { end: text.len(), ..item }, text);
        }
    }

    #[inline]
    pub(super) fn put(&mut self, item: Item, text: &[u8]) {
        if item.start == item.name_end || item.name_end + 1 == item.end {
            return;
        }
        match item.name(text) {
            property::TAGS => self.known[Known::Tags as usize] = Some(item),
            property::KEYS => self.known[Known::Keys as usize] = Some(item),
            property::UNIQUE_KEY => self.known[Known::UniqueKey as usize] = Some(item),
            _ => {}
        }
        self.all.push(item);
    }
}
