//! How many workers copy from memory at once.
//!
//! Copying is bound by memory, and rarely by a core: where one worker takes all that memory gives, a second one beside
//! it only makes both slower, and twice the CPU time is spent on the same batches. So one copies, another joins it
//! for a trial now and then, and stays where the two together are faster by [`GAIN`]. Where bytes come from a disk
//! nothing is held back.

/// What all together must gain for one more to be worth its core, which the trainer could use as well.
const GAIN: f64 = 1.6;

/// Claims that a trial counts, and claims until the next trial: at first, and at most.
const TRIAL: u32 = 32;
const REST_FIRST: u32 = 64;
const REST_MOST: u32 = 8192;

/// Claims for which nobody is held back after one that had to read.
const COLD: u32 = 64;

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Rest,
    /// One more, or one fewer.
    Trial {
        more: bool,
    },
}

/// The number, and what is known of its neighbours.
pub(crate) struct Copiers {
    most: usize,
    limit: usize,
    /// How many copy now.
    busy: usize,
    phase: Phase,
    /// Claims, those that counted, and their bytes and nanoseconds, since the phase began.
    claims: u32,
    counted: u32,
    bytes: u64,
    nanos: u64,
    /// Bytes per nanosecond of one copier, at rest.
    speed: f64,
    rest: u32,
    more_next: bool,
    cold: u32,
}

/// One claim that was being copied.
#[derive(Clone, Copy)]
pub(crate) struct Copying {
    /// How many copied when it began.
    beside: usize,
}

impl Default for Copiers {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Copiers {
    /// One, of `most` workers.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            limit: 1,
            busy: 0,
            phase: Phase::Rest,
            claims: 0,
            counted: 0,
            bytes: 0,
            nanos: 0,
            speed: 0.0,
            rest: REST_FIRST,
            more_next: true,
            cold: COLD,
        }
    }

    /// How many may copy now.
    pub fn limit(&self) -> usize {
        match self.phase {
            _ if self.cold > 0 => usize::MAX,
            Phase::Rest => self.limit,
            Phase::Trial { more: true } => self.limit + 1,
            Phase::Trial { more: false } => self.limit - 1,
        }
    }

    /// Whether one more may copy.
    pub fn has_room(&self) -> bool {
        self.busy < self.limit()
    }

    /// One more copies.
    pub fn begin(&mut self) -> Copying {
        self.busy += 1;
        Copying { beside: self.busy }
    }

    /// One is done with `bytes` in `nanos`; `warm` where it had to read nothing.
    pub fn end(&mut self, copying: Copying, bytes: u64, nanos: u64, warm: bool) {
        let beside = self.busy.max(copying.beside);
        self.busy -= 1;
        if !warm {
            self.cold = COLD;
            return;
        }
        if self.cold > 0 {
            self.cold -= 1;
            self.turn(Phase::Rest);
            return;
        }
        self.claims += 1;
        if beside == self.limit() {
            self.counted += 1;
            self.bytes += bytes;
            self.nanos += nanos;
        }
        let wanted = match self.phase {
            Phase::Rest => self.rest,
            Phase::Trial { .. } => TRIAL,
        };
        if self.counted >= wanted {
            self.decide();
        } else if self.claims > 4 * wanted {
            // There is not work enough to tell.
            self.turn(Phase::Rest);
        }
    }

    fn decide(&mut self) {
        let speed = self.bytes as f64 / self.nanos.max(1) as f64;
        let total = |copiers: usize, speed: f64| copiers as f64 * speed;
        match self.phase {
            Phase::Rest => {
                self.speed = speed;
                let (up, down) = (self.limit < self.most, self.limit > 1);
                let more = up && (self.more_next || !down);
                self.more_next = !more;
                self.turn(if up || down {
                    Phase::Trial { more }
                } else {
                    Phase::Rest
                });
            }
            Phase::Trial { more } => {
                let tried = if more { self.limit + 1 } else { self.limit - 1 };
                let (now, then) = (total(self.limit, self.speed), total(tried, speed));
                let better = if more {
                    then > GAIN * now
                } else {
                    now < GAIN * then
                };
                if better {
                    self.limit = tried;
                    self.rest = REST_FIRST;
                } else {
                    self.rest = (2 * self.rest).min(REST_MOST);
                }
                self.turn(Phase::Rest);
            }
        }
    }

    fn turn(&mut self, phase: Phase) {
        self.phase = phase;
        (self.claims, self.counted, self.bytes, self.nanos) = (0, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `claims` rounds in which as many copy as may, each at `speed(how many)` bytes a microsecond.
    fn run(copiers: &mut Copiers, claims: usize, speed: impl Fn(usize) -> u64) {
        for _ in 0..claims {
            let count = copiers.limit().min(copiers.most);
            (0..count).for_each(|_| {
                copiers.begin();
            });
            // Each saw all others.
            let copying = Copying { beside: count };
            (0..count).for_each(|_| copiers.end(copying, speed(count) * 100, 100_000, true));
        }
    }

    #[test]
    fn one_copies_where_memory_gives_no_more() {
        let mut copiers = Copiers::new(8);
        run(&mut copiers, 20_000, |count| 30_000 / count as u64);
        assert_eq!(copiers.limit, 1);
    }

    #[test]
    fn as_many_copy_as_memory_serves() {
        let mut copiers = Copiers::new(2);
        run(&mut copiers, 50_000, |count| 20_000 / (count as u64).max(2));
        assert_eq!(copiers.limit, 2);
    }

    #[test]
    fn fewer_copy_when_it_no_longer_pays() {
        let mut copiers = Copiers::new(2);
        run(&mut copiers, 2_000, |_| 10_000);
        assert_eq!(copiers.limit, 2);
        run(&mut copiers, 50_000, |count| 10_000 / count as u64);
        assert_eq!(copiers.limit, 1);
    }

    #[test]
    fn nobody_is_held_back_while_bytes_are_read() {
        let mut copiers = Copiers::new(4);
        run(&mut copiers, 1_000, |count| 30_000 / count as u64);
        assert_eq!(copiers.limit, 1);
        let copying = copiers.begin();
        copiers.end(copying, 0, 1, false);
        assert!(copiers.limit() >= 4);
    }
}
