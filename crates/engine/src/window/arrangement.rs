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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Opens the steps of an epoch and lets its samples arrive as `keys` sorts them, at most `ahead` steps of them open at
    /// once. Gives, for each sample in the order of arrival, its planned step, the step that got it, and the slot.
    fn run(
        sizes: &[usize],
        displacement: u64,
        ahead: usize,
        keys: &[u32],
    ) -> Vec<(u64, u64, usize)> {
        let mut arrangement = Arrangement::new(displacement);
        let mut filled = vec![0; sizes.len()];
        let mut waiting: BTreeSet<(u32, usize, u64)> = BTreeSet::new();
        let (mut opened, mut number) = (0, 0);
        let mut placed = Vec::new();
        loop {
            let oldest = (0..sizes.len()).find(|&step| filled[step] < sizes[step]);
            while opened < sizes.len() && opened < oldest.unwrap_or(0) + ahead {
                let step = opened as u64;
                let planned = (0..sizes[opened]).map(|_| step);
                arrangement.open(step, 7, step, sizes[opened], planned);
                for _ in 0..sizes[opened] {
                    waiting.insert((keys[number % keys.len()], number, step));
                    number += 1;
                }
                opened += 1;
            }
            let Some((_, _, planned)) = waiting.pop_first() else {
                return placed;
            };
            let (step, slot) = arrangement
                .place(7, planned)
                .expect("there are as many slots as samples");
            filled[step as usize] += 1;
            placed.push((planned, step, slot));
        }
    }

    proptest! {
        #[test]
        fn every_slot_is_filled_once_and_nothing_moves_too_far(
            batch in 1usize..9,
            steps in 1usize..14,
            last in 1usize..9,
            displacement in 0u64..6,
            ahead in 1usize..16,
            keys in prop::collection::vec(0u32..1_000, 1..200),
        ) {
            let mut sizes = vec![batch; steps];
            sizes.push(last.min(batch));
            let placed = run(&sizes, displacement, ahead, &keys);
            let slots: BTreeSet<(u64, usize)> = placed.iter().map(|&(_, step, slot)| (step, slot)).collect();
            prop_assert_eq!(slots.len(), sizes.iter().sum::<usize>());
            for (planned, step, slot) in placed {
                prop_assert!(slot < sizes[step as usize]);
                prop_assert!(planned.abs_diff(step) <= displacement, "planned at {planned}, came at {step}");
            }
        }
    }

    #[test]
    fn what_arrives_fills_the_oldest_step_and_a_late_sample_waits_for_its_last_chance() {
        // The first sample of step 0 comes last of all; steps of 2.
        let keys = [99, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let placed = run(&[2; 5], 2, 5, &keys);
        let steps: Vec<u64> = placed.iter().map(|&(_, step, _)| step).collect();
        // One slot of step 2 is kept for it, the last step that it may come in.
        assert_eq!(steps, [0, 0, 1, 1, 2, 3, 3, 4, 4, 2]);
    }

    #[test]
    fn epochs_do_not_mix() {
        let mut arrangement = Arrangement::new(8);
        arrangement.open("end", 0, 9, 2, [9, 9].into_iter());
        arrangement.open("begin", 1, 0, 2, [0, 0].into_iter());
        let order = [(1, 0), (0, 9), (1, 0), (0, 9)];
        let found = order.map(|(epoch, planned)| arrangement.place(epoch, planned).unwrap());
        assert_eq!(found, [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]);
    }

    #[test]
    fn a_plan_that_asks_for_the_impossible_is_carried_out_all_the_same() {
        let mut arrangement = Arrangement::new(1);
        arrangement.open('a', 0, 5, 2, [0, 9].into_iter());
        assert_eq!(arrangement.place(0, 9), Some(('a', 0)));
        assert_eq!(arrangement.place(0, 0), Some(('a', 1)));
        assert_eq!(arrangement.place(0, 0), None);
    }
}
