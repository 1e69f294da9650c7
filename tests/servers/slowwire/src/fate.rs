//! What happens to a request: a pure function of the seed, what is asked for, and how often it was asked.

use std::collections::HashMap;

use crate::settings::Settings;

/// How a body ends early, or is hurt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurt {
    Reset,
    Truncate,
    Stall,
    Corrupt,
}

/// The fate of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fate {
    /// Nanoseconds by which the response begins late.
    pub late: u64,
    /// A hurt, and the place in the body as a share of its length.
    pub hurt: Option<(Hurt, f64)>,
    /// Answered at once with this status; the server never sees it.
    pub busy: Option<u16>,
}

#[derive(Clone, Copy)]
enum Draw {
    Tail = 1,
    Hurt,
    Place,
    Busy,
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number in [0, 1) for (seed, key, attempt, draw).
fn unit(seed: u64, key: u64, attempt: u64, draw: Draw) -> f64 {
    let hash = mix(mix(mix(seed ^ draw as u64).wrapping_add(key)).wrapping_add(attempt));
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// FNV-1a over what is asked for.
pub fn key(parts: &[&[u8]]) -> u64 {
    parts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        part.iter().chain(b"\n").fold(hash, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    })
}

/// Draws fates; remembers how often each key was asked for (16 bytes a key).
#[derive(Default)]
pub struct Fates {
    attempts: HashMap<u64, u64>,
    requests: u64,
}

impl Fates {
    pub fn next(&mut self, settings: &Settings, key: u64, is_get: bool) -> Fate {
        let number = self.requests;
        self.requests += 1;
        let attempt = self.attempts.entry(key).or_default();
        let times = *attempt;
        *attempt += 1;

        let draw = |what| unit(settings.seed, key, times, what);
        let mut fate = Fate {
            late: 0,
            hurt: None,
            busy: None,
        };
        if draw(Draw::Tail) < settings.tail.0 {
            let trip = settings.rtt.max(settings.tail_floor).as_nanos() as f64;
            fate.late = (trip * (settings.tail.1 - 1.0)) as u64;
        }
        if !is_get && !settings.faults_on_all {
            return fate;
        }
        let (share, run, status) = settings.busy;
        if unit(settings.seed, number / run, 0, Draw::Busy) < share {
            fate.busy = Some(status);
        }
        let mut mark = draw(Draw::Hurt);
        for (hurt, share) in [
            (Hurt::Reset, settings.reset),
            (Hurt::Truncate, settings.truncate),
            (Hurt::Stall, settings.stall.0),
            (Hurt::Corrupt, settings.corrupt),
        ] {
            if mark < share {
                fate.hurt = Some((hurt, draw(Draw::Place)));
                break;
            }
            mark -= share;
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let mut settings = Settings::default();
        for (name, value) in [
            ("seed", "7"),
            ("rtt_ms", "10"),
            ("tail", "0.05:20"),
            ("reset", "0.02"),
            ("truncate", "0.03"),
            ("stall", "0.04:100"),
            ("corrupt", "0.05"),
        ] {
            settings.set(name, value).unwrap();
        }
        settings
    }

    #[test]
    fn fates_do_not_depend_on_the_order_of_requests() {
        let settings = settings();
        let keys: Vec<u64> = (0..500u32).map(|i| key(&[&i.to_le_bytes()])).collect();
        let mut forward = Fates::default();
        let mut backward = Fates::default();
        let one: Vec<_> = keys
            .iter()
            .map(|k| forward.next(&settings, *k, true))
            .collect();
        let mut two: Vec<_> = keys
            .iter()
            .rev()
            .map(|k| backward.next(&settings, *k, true))
            .collect();
        two.reverse();
        assert_eq!(one, two);
    }

    #[test]
    fn shares_are_what_was_asked_for_and_a_retry_draws_anew() {
        let settings = settings();
        let mut fates = Fates::default();
        let mut counts = [0u32; 5];
        for i in 0..100_000u32 {
            let fate = fates.next(&settings, key(&[&(i % 50_000).to_le_bytes()]), true);
            match fate.hurt.map(|hurt| hurt.0) {
                Some(Hurt::Reset) => counts[0] += 1,
                Some(Hurt::Truncate) => counts[1] += 1,
                Some(Hurt::Stall) => counts[2] += 1,
                Some(Hurt::Corrupt) => counts[3] += 1,
                None => {}
            }
            if fate.late > 0 {
                assert_eq!(fate.late, 190_000_000);
                counts[4] += 1;
            }
        }
        for (count, share) in counts.iter().zip([0.02, 0.03, 0.04, 0.05, 0.05]) {
            let found = f64::from(*count) / 100_000.0;
            assert!((found - share).abs() < 0.003, "{found} for {share}");
        }
    }

    #[test]
    fn a_burst_is_a_run_of_requests() {
        let mut settings = Settings::default();
        settings.set("busy", "0.1:8:429").unwrap();
        let mut fates = Fates::default();
        let busy: Vec<bool> = (0..8_000u64)
            .map(|i| fates.next(&settings, i, true).busy == Some(429))
            .collect();
        for run in busy.chunks(8) {
            assert!(run.iter().all(|hit| *hit == run[0]));
        }
        let share = busy.iter().filter(|hit| **hit).count() as f64 / 8_000.0;
        assert!((share - 0.1).abs() < 0.03, "{share}");
        assert!(
            fates.next(&settings, 1, false).busy.is_none(),
            "PUT is spared by default"
        );
    }
}
