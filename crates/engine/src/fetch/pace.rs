//! How many requests may be in flight.
//!
//! A search for the knee: the fewest requests that keep the wire full. It starts with a few and adds one for each
//! answer, as long as more in flight bring more bytes a second; then it settles a little above what the wire holds
//! (rate × unloaded latency) and goes on probing in small steps, upwards for a wire that has become faster, downwards
//! for the unloaded latency and for requests that only queue. It knows no clock: callers pass the time, so that a
//! test can run years of it.

use std::time::Duration;

/// How the wire was last seen and what follows from it. One line of the decision log.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Since the fetcher began.
    pub at: Duration,
    /// What was decided, in a word.
    pub reason: Reason,
    /// Requests that may be in flight from now on.
    pub limit: usize,
    /// Delivered bytes a second in the round before.
    pub rate: f64,
    /// Answers a second in the round before.
    pub answers: f64,
    /// The middle latency of the round before.
    pub latency: Duration,
    /// The middle latency of an unloaded wire, as far as is known.
    pub unloaded: Duration,
}

/// Why the limit is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// More in flight brought more bytes: on.
    Growing,
    /// More in flight brings no more: the wire is full.
    Full,
    /// Nothing to change.
    Holding,
    /// A few more, to see whether it helps.
    ProbingUp,
    /// A few less, to see the unloaded latency.
    ProbingDown,
    /// The probe was right; its limit stays.
    Kept,
    /// The probe was wrong; back.
    Reverted,
    /// The store asked for fewer.
    SlowedDown,
    /// The store asked for fewer a while ago: slowly back.
    Recovering,
    /// There were too few requests to learn anything.
    Starved,
}

impl Reason {
    /// The word that traces show.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Growing => "growing",
            Reason::Full => "full",
            Reason::Holding => "holding",
            Reason::ProbingUp => "probing up",
            Reason::ProbingDown => "probing down",
            Reason::Kept => "kept",
            Reason::Reverted => "reverted",
            Reason::SlowedDown => "slowed down",
            Reason::Recovering => "recovering",
            Reason::Starved => "starved",
        }
    }
}

/// In flight before anything is known.
const FIRST: f64 = 8.0;
/// Never fewer, once something is known: a pause of this machine's must not empty a short wire.
const LEAST: f64 = 8.0;
/// A growth of the rate below this share is none, while growing and while probing.
const WORTH_GROWING: f64 = 1.15;
const WORTH_KEEPING: f64 = 1.05;
/// A latency above this multiple of the unloaded one is a queue. A new connection's first answer takes two.
const QUEUED: f64 = 2.5;
/// Refused answers below this share are noise, to be tried again and no more; seen over a few rounds, since a store
/// that has hiccups refuses some in a row.
const FEW: f64 = 0.05;
/// What a round's refusals still count for in the next one.
const FORGETTING: f64 = 0.75;
/// A fall of the rate above this share is one.
const TOLERATED: f64 = 0.98;
/// In flight over what the wire holds: room for answers that come in groups.
const ROOM: f64 = 1.5;
/// A probe downwards goes below what the wire holds, so that it sees the unloaded latency.
const DOWN: f64 = 0.6;
/// Rounds without growth after which the wire counts as full.
const FLAT_ROUNDS: u32 = 2;
/// Rounds between two probes.
const HOLD_ROUNDS: u32 = 3;
const HOLD_ROUNDS_MOST: u32 = 12;
/// A round is never shorter: scheduling noise would be taken for the wire's.
const ROUND_LEAST: Duration = Duration::from_millis(10);
/// Fewer answers say nothing about a rate.
const ANSWERS_LEAST: f64 = 6.0;
/// The unloaded latency is believed for this time; then it may rise, by this factor.
const MEMORY: Duration = Duration::from_secs(60);
const REMEMBERED: f64 = 1.25;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Growing {
        flat: u32,
    },
    /// The wire seems full: one more round with what is in flight, since the rate of a round in which the limit grew says
    /// too little.
    Settling,
    Holding {
        left: u32,
        next_up: bool,
    },
    /// Back to a limit at which the store asked for fewer, a little each round.
    Recovering {
        to: f64,
    },
    /// The first round after a change still carries what was in flight before; the second one is judged.
    Probing {
        up: bool,
        from: f64,
        before: f64,
        settled: bool,
    },
}

/// What a round saw.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    rate: f64,
    answers: f64,
    latency: f64,
}

/// The search. See the module's text.
#[derive(Debug)]
pub struct Pace {
    limit: f64,
    most: f64,
    phase: Phase,
    hold_rounds: u32,
    /// The round with the highest rate since growing began, or the last one since.
    best: Seen,
    unloaded: Option<(f64, Duration)>,
    round_began: Duration,
    round_limit: f64,
    round_bytes: u64,
    latencies: Vec<f32>,
    starved: bool,
    told_to_slow: u32,
    /// Refused and all answers of the last rounds, older ones counting less.
    refused: f64,
    asked: f64,
    /// The last round of the growth had too many refusals: one may be chance, two are not.
    warned: bool,
    last: Option<Seen>,
}

impl Pace {
    /// At most `most` in flight.
    pub fn new(most: usize) -> Self {
        let most = (most as f64).max(1.0);
        Self {
            limit: FIRST.min(most),
            most,
            phase: Phase::Growing { flat: 0 },
            hold_rounds: HOLD_ROUNDS,
            best: Seen::default(),
            unloaded: None,
            round_began: Duration::ZERO,
            round_limit: FIRST.min(most),
            round_bytes: 0,
            latencies: Vec::new(),
            starved: false,
            told_to_slow: 0,
            refused: 0.0,
            asked: 0.0,
            warned: false,
            last: None,
        }
    }

    /// Requests that may be in flight now.
    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    /// There was room and no request to use it: this round says nothing about the wire.
    pub fn starved(&mut self) {
        self.starved = true;
    }

    /// An answer asked for fewer requests.
    pub fn slow_down(&mut self) {
        self.told_to_slow += 1;
    }

    /// Work begins again after a pause: what lies before is not part of a round.
    pub fn resume(&mut self, now: Duration) {
        self.round_began = now;
        self.round_limit = self.limit;
        self.round_bytes = 0;
        self.latencies.clear();
        self.starved = false;
        self.told_to_slow = 0;
    }

    /// Bytes a second, and seconds of an unloaded request, as far as is known.
    pub fn wire(&self) -> Option<(f64, f64)> {
        Some((self.last?.rate, self.unloaded?.0))
    }

    /// Whether more in flight would bring more: the wire is not known to be full.
    pub fn is_growing(&self) -> bool {
        matches!(self.phase, Phase::Growing { .. })
    }

    /// An answer came. At the end of a round says what was decided.
    pub fn answered(&mut self, now: Duration, latency: Duration, bytes: u64) -> Option<Decision> {
        self.round_bytes += bytes;
        self.latencies.push(latency.as_secs_f32());
        let queued = self
            .unloaded
            .is_some_and(|(seconds, _)| latency.as_secs_f64() > QUEUED * seconds);
        if self.is_growing() && !queued && !self.starved && self.told_to_slow == 0 {
            self.limit = (self.limit + 1.0)
                .min(4.0 * self.round_limit)
                .min(self.most);
        }
        let elapsed = now.saturating_sub(self.round_began);
        let unloaded = self.unloaded.map_or(Duration::ZERO, |(seconds, _)| {
            Duration::from_secs_f64(seconds)
        });
        // While growing the limit runs ahead; a round is what was in flight at its beginning. Later there is time to
        // look longer: answers come in groups, and a round that cuts through one measures nothing.
        let (enough, least) = if self.is_growing() {
            (self.limit / 2.0, ROUND_LEAST.max(unloaded))
        } else {
            (2.0 * self.limit, (5 * ROUND_LEAST).max(3 * unloaded))
        };
        if (self.latencies.len() as f64) < enough.max(ANSWERS_LEAST) || elapsed < least {
            return None;
        }
        let decision = self.end_round(now, elapsed);
        self.resume(now);
        Some(decision)
    }

    fn end_round(&mut self, now: Duration, elapsed: Duration) -> Decision {
        let seconds = elapsed.as_secs_f64();
        let middle = self.latencies.len() / 2;
        let latency = f64::from(
            *self
                .latencies
                .select_nth_unstable_by(middle, f32::total_cmp)
                .1,
        );
        let seen = Seen {
            rate: self.round_bytes as f64 / seconds,
            answers: self.latencies.len() as f64 / seconds,
            latency,
        };
        // The first requests may queue behind each other already: the quickest of them says more than the middle one.
        let lowest = self.latencies.iter().copied().fold(f32::INFINITY, f32::min);
        match self.unloaded {
            Some((known, since)) if known <= latency && now.saturating_sub(since) < MEMORY => {}
            None => self.unloaded = Some((f64::from(lowest), now)),
            // What is old may be too low by now; what is seen may be a queue. So it rises slowly.
            Some((known, _)) => self.unloaded = Some((latency.min(known * REMEMBERED), now)),
        }
        let told = f64::from(self.told_to_slow);
        let asked = self.latencies.len() as f64 + told;
        let refused = told / asked;
        self.refused = self.refused * FORGETTING + told;
        self.asked = self.asked * FORGETTING + asked;
        let too_many = told > 0.0 && self.refused > FEW * self.asked;
        if too_many {
            (self.refused, self.asked) = (0.0, 0.0);
        }
        let warning = too_many && self.is_growing() && !self.warned;
        self.warned = warning;
        let reason = if warning {
            Reason::Holding
        } else if too_many {
            // By the share that was refused; then slowly back, to a little less.
            let before = match self.phase {
                Phase::Recovering { to } => to,
                Phase::Probing { from, .. } => from,
                _ => self.limit,
            };
            self.limit = (self.limit * (1.0 - refused.min(0.5))).max(LEAST.min(self.most));
            self.phase = Phase::Recovering { to: before * 0.95 };
            Reason::SlowedDown
        } else if self.starved {
            if let Phase::Probing { from, .. } = self.phase {
                self.limit = from;
                self.hold();
            }
            Reason::Starved
        } else {
            self.judge(seen)
        };
        self.last = Some(seen);
        let (unloaded, _) = self.unloaded.unwrap_or((latency, now));
        Decision {
            at: now,
            reason,
            limit: self.limit(),
            rate: seen.rate,
            answers: seen.answers,
            latency: Duration::from_secs_f64(latency),
            unloaded: Duration::from_secs_f64(unloaded),
        }
    }

    /// What the wire holds without a queue, and room.
    fn full(&self, seen: Seen) -> f64 {
        let unloaded = self.unloaded.map_or(seen.latency, |(seconds, _)| seconds);
        (seen.answers * unloaded * ROOM + 1.0).clamp(LEAST.min(self.most), self.most)
    }

    fn is_queued(&self, seen: Seen) -> bool {
        self.unloaded
            .is_some_and(|(seconds, _)| seen.latency > QUEUED * seconds)
    }

    fn hold(&mut self) {
        let next_up = !matches!(self.phase, Phase::Probing { up: true, .. });
        self.phase = Phase::Holding {
            left: self.hold_rounds,
            next_up,
        };
    }

    fn judge(&mut self, seen: Seen) -> Reason {
        match self.phase {
            Phase::Growing { flat } => {
                if seen.rate > self.best.rate * WORTH_GROWING {
                    self.best = seen;
                    self.phase = Phase::Growing { flat: 0 };
                    return Reason::Growing;
                }
                // Latency without gain: what is in flight only queues, and there is no need to look twice.
                let flat = if self.is_queued(seen) {
                    FLAT_ROUNDS
                } else {
                    flat + 1
                };
                if flat < FLAT_ROUNDS && self.limit < self.most {
                    self.phase = Phase::Growing { flat };
                    return Reason::Growing;
                }
                self.phase = Phase::Settling;
                Reason::Full
            }
            Phase::Settling => {
                // Of the better round: the last one may have been past the knee already.
                if seen.rate > self.best.rate {
                    self.best = seen;
                }
                self.limit = self.full(self.best).min(self.limit);
                self.hold_rounds = HOLD_ROUNDS;
                self.hold();
                Reason::Full
            }
            Phase::Recovering { to } => {
                self.limit = (self.limit * 1.125)
                    .max(LEAST.min(self.most))
                    .min(self.most);
                if self.limit >= to {
                    self.best = seen;
                    self.hold();
                }
                Reason::Recovering
            }
            // The wire has become slower: what is in flight only queues.
            Phase::Holding { .. } if self.is_queued(seen) && self.full(seen) < 0.7 * self.limit => {
                let (from, before) = (self.limit, seen.rate);
                self.limit = self.full(seen).max(0.5 * from);
                self.phase = Phase::Probing {
                    up: false,
                    from,
                    before,
                    settled: false,
                };
                Reason::ProbingDown
            }
            Phase::Holding { left, next_up } if left > 0 => {
                self.best = seen;
                self.phase = Phase::Holding {
                    left: left - 1,
                    next_up,
                };
                // Where nothing queues, what is in flight is what makes the rate: there is more to be had.
                let full = self.full(seen).min(self.limit * 1.25);
                if full >= self.limit + 1.0 && !self.is_queued(seen) {
                    self.limit = full;
                    return Reason::Growing;
                }
                Reason::Holding
            }
            Phase::Holding { next_up, .. } => {
                let from = self.limit;
                self.limit = if next_up {
                    (from * 1.25).max(from + 2.0).min(self.most)
                } else {
                    (from * DOWN).min(from - 1.0).max(LEAST.min(self.most))
                };
                let before = seen.rate.max(self.best.rate);
                self.phase = Phase::Probing {
                    up: next_up,
                    from,
                    before,
                    settled: false,
                };
                if next_up {
                    Reason::ProbingUp
                } else {
                    Reason::ProbingDown
                }
            }
            Phase::Probing {
                up,
                from,
                before,
                settled: false,
            } => {
                self.phase = Phase::Probing {
                    up,
                    from,
                    before,
                    settled: true,
                };
                if up {
                    Reason::ProbingUp
                } else {
                    Reason::ProbingDown
                }
            }
            Phase::Probing {
                up: true,
                from,
                before,
                ..
            } => {
                if seen.rate > before * WORTH_KEEPING {
                    // It has become faster: look for the knee anew, from here.
                    self.best = seen;
                    self.phase = Phase::Growing { flat: 0 };
                    return Reason::Kept;
                }
                self.limit = from;
                self.revert()
            }
            Phase::Probing {
                up: false,
                from,
                before,
                ..
            } => {
                // Whether it is kept or not, the unloaded latency is known better now.
                let full = self.full(seen);
                if seen.rate >= before * TOLERATED && full < from {
                    self.limit = full.max(self.limit);
                    self.hold();
                    return Reason::Kept;
                }
                self.limit = from;
                self.revert()
            }
        }
    }

    fn revert(&mut self) -> Reason {
        self.hold();
        self.hold_rounds = (self.hold_rounds * 2).min(HOLD_ROUNDS_MOST);
        Reason::Reverted
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BinaryHeap;

    use super::*;

    /// A wire with a round trip and one bottleneck; past `comfortable` in flight it collapses.
    struct Simulated {
        trip: f64,
        rate: f64,
        bytes: f64,
        comfortable: f64,
    }

    struct Run {
        /// Bytes a second in the second half.
        rate: f64,
        limit: usize,
        most: usize,
        decisions: Vec<Decision>,
    }

    impl Simulated {
        fn run(&self, pace: &mut Pace, answers: usize) -> Run {
            let mut now = 0.0f64;
            let mut free = 0.0f64;
            let mut flying: BinaryHeap<std::cmp::Reverse<(u64, u64)>> = BinaryHeap::new();
            let mut decisions = Vec::new();
            let (mut half, mut most) = (0.0, 0);
            for count in 0..answers {
                while flying.len() < pace.limit() {
                    let crowd = (flying.len() as f64 / self.comfortable).max(1.0);
                    let served =
                        free.max(now + self.trip / 2.0) + self.bytes / self.rate * crowd * crowd;
                    free = served;
                    let done = served + self.trip / 2.0;
                    flying.push(std::cmp::Reverse(((done * 1e9) as u64, (now * 1e9) as u64)));
                }
                most = most.max(flying.len());
                let std::cmp::Reverse((done, began)) = flying.pop().unwrap();
                now = done as f64 / 1e9;
                let at = Duration::from_nanos(done);
                decisions.extend(pace.answered(
                    at,
                    Duration::from_nanos(done - began),
                    self.bytes as u64,
                ));
                if count == answers / 2 {
                    half = now;
                }
            }
            let rate = (answers - answers / 2 - 1) as f64 * self.bytes / (now - half);
            Run {
                rate,
                limit: pace.limit(),
                most,
                decisions,
            }
        }
    }

    const PATIENT: f64 = f64::INFINITY;

    #[test]
    fn it_fills_a_wire_of_any_length_and_hardly_more() {
        for trip in [0.001, 0.01, 0.05, 0.15, 0.5] {
            for rate in [10e6, 100e6, 300e6, 1e9] {
                let wire = Simulated {
                    trip,
                    rate,
                    bytes: 110e3,
                    comfortable: PATIENT,
                };
                let holds = rate * (trip + 110e3 / rate) / 110e3;
                let run = wire.run(&mut Pace::new(16_384), 20_000 + (holds * 60.0) as usize);
                let label = format!(
                    "{trip} s, {rate:.0} B/s: {:.3} of it, {} for {holds:.1}",
                    run.rate / rate,
                    run.limit
                );
                assert!(run.rate > 0.97 * rate, "{label}");
                assert!((run.limit as f64) < 2.0 * holds + 8.0, "{label}");
                assert!(
                    (run.most as f64) < 6.0 * holds + 24.0,
                    "{} at once; {label}",
                    run.most
                );
            }
        }
    }

    #[test]
    fn it_begins_with_few_and_doubles_at_most_each_round_trip() {
        let wire = Simulated {
            trip: 0.1,
            rate: 1e9,
            bytes: 110e3,
            comfortable: PATIENT,
        };
        let run = wire.run(&mut Pace::new(16_384), 2_000);
        let mut last = FIRST as usize;
        for decision in run.decisions.iter().take(6) {
            assert!(decision.limit <= 2 * last + 2, "{decision:?} after {last}");
            last = decision.limit;
        }
    }

    #[test]
    fn it_is_at_nine_tenths_after_few_round_trips() {
        let (trip, rate, bytes) = (0.15, 100e6, 110e3);
        let wire = Simulated {
            trip,
            rate,
            bytes,
            comfortable: PATIENT,
        };
        let run = wire.run(&mut Pace::new(16_384), 4_000);
        let there = run
            .decisions
            .iter()
            .find(|decision| decision.rate > 0.9 * rate)
            .unwrap();
        assert!(there.at.as_secs_f64() < 10.0 * trip, "{there:?}");
    }

    #[test]
    fn it_does_not_run_into_a_collapse() {
        let wire = Simulated {
            trip: 0.02,
            rate: 200e6,
            bytes: 110e3,
            comfortable: 64.0,
        };
        let run = wire.run(&mut Pace::new(16_384), 30_000);
        assert!(
            run.rate > 0.9 * wire.rate,
            "{:.0} MB/s at {}",
            run.rate / 1e6,
            run.limit
        );
        assert!(run.limit < 96, "{}", run.limit);
    }

    #[test]
    fn it_finds_a_wire_that_became_faster_and_one_that_became_slower() {
        let mut pace = Pace::new(16_384);
        let slow = Simulated {
            trip: 0.05,
            rate: 50e6,
            bytes: 110e3,
            comfortable: PATIENT,
        };
        let fast = Simulated {
            rate: 400e6,
            ..slow
        };
        slow.run(&mut pace, 5_000);
        let low = pace.limit();
        pace.round_began = Duration::ZERO;
        pace.unloaded = pace.unloaded.map(|(latency, _)| (latency, Duration::ZERO));
        let run = fast.run(&mut pace, 40_000);
        assert!(run.rate > 0.95 * fast.rate, "{:.0} MB/s", run.rate / 1e6);
        pace.round_began = Duration::ZERO;
        pace.unloaded = pace.unloaded.map(|(latency, _)| (latency, Duration::ZERO));
        let run = slow.run(&mut pace, 40_000);
        assert!(run.rate > 0.95 * slow.rate, "{:.0} MB/s", run.rate / 1e6);
        assert!(run.limit <= 3 * low, "{} after {low}", run.limit);
    }

    /// 50 ms and 100 MB/s.
    const WIRE: Simulated = Simulated {
        trip: 0.05,
        rate: 100e6,
        bytes: 110e3,
        comfortable: PATIENT,
    };

    #[test]
    fn a_store_that_asks_for_less_gets_less() {
        let (wire, mut pace) = (WIRE, Pace::new(1_000));
        wire.run(&mut pace, 3_000);
        let before = pace.limit();
        pace.resume(Duration::ZERO);
        (0..before).for_each(|_| pace.slow_down());
        let run = wire.run(&mut pace, 3 * before);
        assert!(
            pace.limit() < before * 3 / 4,
            "{} after {before}",
            pace.limit()
        );
        assert_eq!(run.decisions[0].reason, Reason::SlowedDown);
        // And it comes back when the store does.
        pace.resume(Duration::ZERO);
        let run = wire.run(&mut pace, 20_000);
        assert!(run.rate > 0.95 * wire.rate, "{:.0} MB/s", run.rate / 1e6);
    }

    #[test]
    fn bursts_of_refusals_now_and_then_do_not_slow_it_down() {
        let (wire, mut pace) = (WIRE, Pace::new(1_000));
        let mut slowed = 0;
        // Eight in four hundred, in a row; also right at the beginning.
        for _ in 0..40 {
            pace.resume(Duration::ZERO);
            (0..8).for_each(|_| pace.slow_down());
            let run = wire.run(&mut pace, 400);
            let decisions = run.decisions.iter();
            slowed += decisions
                .filter(|decision| decision.reason == Reason::SlowedDown)
                .count();
        }
        assert!(slowed <= 1, "slowed down {slowed} times");
        let holds = wire.rate * wire.trip / wire.bytes;
        assert!(
            pace.limit() as f64 > holds,
            "{} of {holds:.0}",
            pace.limit()
        );
    }

    #[test]
    fn starvation_teaches_nothing() {
        let mut pace = Pace::new(1_000);
        let mut now = Duration::ZERO;
        for _ in 0..1_000 {
            pace.starved();
            now += Duration::from_millis(20);
            pace.answered(now, Duration::from_millis(20), 1_000);
        }
        assert_eq!(pace.limit(), FIRST as usize);
    }
}
