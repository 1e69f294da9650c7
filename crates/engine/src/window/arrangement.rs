//! Arrival order: which step gets a sample that has just arrived.
//!
//! A sample planned at step `p` may come in any step from `p − D` to `p + D` of its epoch. It gets the first free slot of
//! the oldest such step, unless the free slots up to some later step are all needed by samples that may come no later
//! than there. So every step gets full, no sample comes later than it may, and a slow sample holds up nothing for `D`
//! steps. Steps that keep their own samples are none of this one's business.
//!
//! Why it never gets stuck: placing keeps, for each step `e`, both "those that must come by `e` fit into the free slots up
//! to `e`" and "those that may come by `e` are enough to fill them". Both hold when a step is opened with as many samples
//! as slots, and the rule above breaks neither.

use std::collections::{BTreeMap, VecDeque};

struct Open<T> {
    step: T,
    epoch: u64,
    number: u64,
    slots: usize,
    filled: usize,
}

/// The open steps and how many samples are planned and not yet placed.
pub struct Arrangement<T> {
    displacement: u64,
    open: VecDeque<Open<T>>,
    /// By epoch and planned step.
    unplaced: BTreeMap<(u64, u64), usize>,
}

impl<T: Clone> Arrangement<T> {
    pub fn new(displacement: u64) -> Self {
        Self {
            displacement,
            open: VecDeque::new(),
            unplaced: BTreeMap::new(),
        }
    }

    /// A step of `slots` slots, with the planned steps of as many samples. Steps are opened in order.
    pub fn open(
        &mut self,
        step: T,
        epoch: u64,
        number: u64,
        slots: usize,
        planned: impl Iterator<Item = u64>,
    ) {
        if slots == 0 {
            return;
        }
        for planned in planned {
            *self.unplaced.entry((epoch, planned)).or_default() += 1;
        }
        self.open.push_back(Open {
            step,
            epoch,
            number,
            slots,
            filled: 0,
        });
    }

    /// The step and slot for a sample planned at step `planned`. None where no step has a free slot.
    pub fn place(&mut self, epoch: u64, planned: u64) -> Option<(T, usize)> {
        if let Some(count) = self.unplaced.get_mut(&(epoch, planned)) {
            *count -= 1;
            if *count == 0 {
                self.unplaced.remove(&(epoch, planned));
            }
        }
        let reach = self.displacement;
        let (earliest, latest) = (planned.saturating_sub(reach), planned.saturating_add(reach));
        let (mut best, mut any) = (None, None);
        // Free slots up to the step that is looked at, and samples that must come no later.
        let (mut free, mut must) = (0, 0);
        let mut due = self
            .unplaced
            .range((epoch, 0)..=(epoch, u64::MAX))
            .map(|((_, planned), count)| (planned.saturating_add(reach), *count))
            .peekable();
        for (at, open) in self
            .open
            .iter()
            .enumerate()
            .filter(|(_, open)| open.epoch == epoch)
        {
            let room = open.slots - open.filled;
            free += room;
            while let Some((_, count)) = due.next_if(|(last, _)| *last <= open.number) {
                must += count;
            }
            if room > 0 {
                any = any.or(Some(at));
                if best.is_none() && (earliest..=latest).contains(&open.number) {
                    best = Some(at);
                }
            }
            if open.number >= latest {
                break;
            }
            // All that is free up to here is spoken for.
            if must >= free {
                best = None;
            }
        }
        // Only a plan that breaks the bound by itself has no better place; late is better than never.
        let at = best.or(any)?;
        let open = &mut self.open[at];
        let found = (open.step.clone(), open.filled);
        open.filled += 1;
        while self
            .open
            .front()
            .is_some_and(|open| open.filled == open.slots)
        {
            self.open.pop_front();
        }
        Some(found)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.open.clear();
        self.unplaced.clear();
    }
}
