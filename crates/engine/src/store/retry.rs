//! When to try again, and how long to wait before.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::StoreErrorKind;

/// The first pause before a retry; it doubles each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Whether another attempt may do better.
pub fn is_passing(kind: StoreErrorKind) -> bool {
    matches!(
        kind,
        StoreErrorKind::Unreachable | StoreErrorKind::Busy | StoreErrorKind::Deadline
    )
}

/// A pause of between half and all of `FIRST_PAUSE · 2ⁿ`, without a generator: the clock's low bits are random enough.
pub fn pause(attempts: u32) -> Duration {
    let longest = FIRST_PAUSE
        .saturating_mul(1 << attempts.min(16))
        .min(LONGEST_PAUSE);
    let noise = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| {
            time.subsec_nanos().wrapping_mul(2_654_435_761) >> 16
        });
    longest / 2 + (longest / 2).mul_f64(f64::from(noise) / f64::from(1 << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_within_their_bounds() {
        for attempts in 0..40 {
            let longest = FIRST_PAUSE
                .saturating_mul(1 << attempts.min(16))
                .min(LONGEST_PAUSE);
            let found = pause(attempts);
            assert!(
                found >= longest / 2 && found <= longest,
                "{found:?} for {attempts}"
            );
        }
    }
}
