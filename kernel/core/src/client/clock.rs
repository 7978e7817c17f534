//! Times that are read anew only when they must be.

use std::time::{Duration, Instant};

/// What a clock says is taken for the present time for so long (`CLOCK_SECONDS_MAX`).
const AGE_MAX: Duration = Duration::from_micros(500);

/// A point of time, which tells how old a reading is.
#[derive(Clone, Copy, Debug)]
pub struct Moment(Instant);

impl Moment {
    /// The present one: the only clock that a client's kernel reads by itself.
    #[must_use]
    pub fn now() -> Self {
        Self(Instant::now())
    }
}

/// What a clock said last, and when.
#[derive(Debug)]
pub struct Reading<V>(Option<(Moment, V)>);

impl<V> Default for Reading<V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<V: Copy> Reading<V> {
    /// What it said, if that holds at `at`; None: it has to be read.
    #[must_use]
    pub fn at(&self, at: Moment) -> Option<V> {
        let (read_at, value) = self.0?;
        (at.0.duration_since(read_at.0) < AGE_MAX).then_some(value)
    }

    /// It was read.
    pub fn set(&mut self, at: Moment, value: V) {
        self.0 = Some((at, value));
    }

    /// What is asked from now on is asked later.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Moment, Reading};

    #[test]
    fn a_reading_holds_for_half_a_millisecond_unless_it_is_forgotten() {
        let now = Moment::now();
        let later = |micros| Moment(now.0 + Duration::from_micros(micros));
        let mut reading = Reading::default();
        assert_eq!(reading.at(now), None);
        reading.set(now, 7);
        assert_eq!(reading.at(later(499)), Some(7));
        assert_eq!(reading.at(later(500)), None);
        reading.forget();
        assert_eq!(reading.at(now), None);
    }
}
