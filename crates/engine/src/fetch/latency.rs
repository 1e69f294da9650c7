//! What a request usually takes: the yardstick for stragglers.

use std::time::Duration;

/// Answers that are remembered.
const MEMORY: usize = 512;
/// Answers between two looks at them.
const EVERY: usize = 16;
/// Fewer say nothing about a tail.
const ENOUGH: usize = 32;
/// The share of answers that counts as usual. Attempts that were given up are among them, so that a store that has
/// become slow is seen; what stalls or has a tail, a few in a hundred of each kind, must stay above it.
const HIGH: f64 = 0.9;

/// The last latencies, per size.
#[derive(Debug, Default)]
pub struct Latencies {
    ring: Vec<f32>,
    next: usize,
    since: usize,
    bytes: f64,
    middle: f32,
    high: f32,
}

impl Latencies {
    /// Remembers an answer.
    pub fn record(&mut self, latency: Duration, bytes: u64) {
        let seconds = latency.as_secs_f32();
        if self.ring.len() < MEMORY {
            self.ring.push(seconds);
        } else {
            self.ring[self.next] = seconds;
            self.next = (self.next + 1) % MEMORY;
        }
        let weight = 1.0 / self.ring.len().max(1) as f64;
        self.bytes += (bytes as f64 - self.bytes) * weight;
        self.since += 1;
        if self.since >= EVERY {
            self.since = 0;
            let mut sorted = self.ring.clone();
            let quantile = |sorted: &mut Vec<f32>, share: f64| {
                let at = ((sorted.len() - 1) as f64 * share) as usize;
                *sorted.select_nth_unstable_by(at, f32::total_cmp).1
            };
            self.middle = quantile(&mut sorted, 0.5);
            self.high = quantile(&mut sorted, HIGH);
        }
    }

    /// What nearly every request of this size stays below; None while too little is known.
    ///
    /// Twice the 90th percentile, or that with three times its distance from the middle: a tail of a few in a hundred
    /// does not move it, and neither ordinary spread nor a queue that grows reaches it.
    pub fn usual(&self, bytes: u64) -> Option<Duration> {
        if self.ring.len() < ENOUGH || self.high == 0.0 {
            return None;
        }
        let spread = (3.0 * (self.high - self.middle)).max(self.high);
        let larger = if self.bytes > 0.0 {
            (bytes as f64 / self.bytes).max(1.0)
        } else {
            1.0
        };
        Some(Duration::from_secs_f64(
            f64::from(self.high + spread) * larger,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_of_a_few_in_a_hundred_does_not_move_what_is_usual() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.usual(1), None);
        for i in 0..1_000u64 {
            // Tails, stalls and what was given up of both: two in a hundred of each.
            let ms = if i % 50 < 4 { 1_000 } else { 50 + i % 5 };
            latencies.record(Duration::from_millis(ms), 110_000);
        }
        let usual = latencies.usual(110_000).unwrap();
        assert!((80..150).contains(&usual.as_millis()), "{usual:?}");
        assert!(latencies.usual(1_100_000).unwrap() > 5 * usual);
    }
}
