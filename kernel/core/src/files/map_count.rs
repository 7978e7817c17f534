//! How many maps the process holds, and may hold.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maps of this process that are ours.
pub(super) static MAPS: AtomicUsize = AtomicUsize::new(0);
/// From so many on, queues give theirs back; 0: not looked up yet.
static MAPS_MAX: AtomicUsize = AtomicUsize::new(0);
/// What `vm.max_map_count` is where nobody tells.
const MAX_MAP_COUNT: usize = 65_530;

/// Whether queues that are not at work must let their maps go: half of what the system allows is
/// taken. The other half is for the allocator, threads, libraries.
#[inline]
pub(crate) fn are_too_many() -> bool {
    let most = MAPS_MAX.load(Ordering::Relaxed);
    MAPS.load(Ordering::Relaxed) > most && most > 0
}

/// Says how many maps may be held (tests); 0: what the system allows.
#[doc(hidden)]
pub fn set_maps_max(most: usize) {
    let most = if most > 0 { most } else { max_map_count() / 2 };
    MAPS_MAX.store(most, Ordering::Relaxed);
}

/// Looks up how many maps may be held, unless somebody said so.
pub(crate) fn find_maps_max() {
    if MAPS_MAX.load(Ordering::Relaxed) == 0 {
        set_maps_max(0);
    }
}

pub(super) fn max_map_count() -> usize {
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(MAX_MAP_COUNT)
}
