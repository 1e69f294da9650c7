//! Requests that wait for their turn: the oldest step first, neighbours in one object as one read.

use std::collections::{BTreeMap, VecDeque};

/// Bytes that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchRequest {
    /// Comes back with the bytes.
    pub ticket: u64,
    /// Row in the key table.
    pub object: u32,
    /// First byte.
    pub offset: u64,
    /// How many bytes; None is the whole object, whatever the offset says.
    pub length: Option<u64>,
    /// The step that waits for it. Lower ones go first.
    pub step: u64,
}

/// The part of a read that belongs to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Of the request.
    pub ticket: u64,
    /// First byte within the read.
    pub offset: u64,
    /// None is all of it.
    pub length: Option<u64>,
}

/// One request to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    pub object: u32,
    pub offset: u64,
    /// None is the whole object.
    pub length: Option<u64>,
    pub step: u64,
    pub parts: Vec<Part>,
}

/// What may be joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joining {
    /// Bytes between two ranges that nobody asked for and that cost less than a request.
    pub gap: u64,
    /// A joined read is no longer than this.
    pub most: u64,
}

/// Reads in the order in which they are wanted.
#[derive(Debug, Default)]
pub struct Queue {
    steps: BTreeMap<u64, VecDeque<Read>>,
    reads: usize,
    generation: u64,
}

impl Queue {
    /// Adds requests. Those of one step that are near each other in an object become one read, at the place of the
    /// first of them. Returns how many reads it made.
    pub fn add(&mut self, requests: &[FetchRequest], joining: Joining) -> usize {
        let mut made = 0;
        for of_step in requests.chunk_by(|one, two| one.step == two.step) {
            let mut order: Vec<u32> = (0..of_step.len() as u32).collect();
            order.sort_by_key(|&index| {
                let request = &of_step[index as usize];
                (request.object, request.length.is_some(), request.offset)
            });
            // Each read with the place of its first request, so that reads go in the order of the slots.
            let mut reads: Vec<(u32, Read)> = Vec::with_capacity(order.len());
            for index in order {
                let request = &of_step[index as usize];
                if let Some((place, read)) = reads.last_mut() {
                    if join(read, request, joining) {
                        *place = (*place).min(index);
                        continue;
                    }
                }
                reads.push((index, single(request)));
            }
            reads.sort_by_key(|(place, _)| *place);
            made += reads.len();
            self.reads += reads.len();
            let step = of_step[0].step;
            self.steps
                .entry(step)
                .or_default()
                .extend(reads.into_iter().map(|(_, read)| read));
        }
        made
    }

    /// The next read: of the oldest step. Nothing for one who has not yet seen the last [`Queue::clear`]: it would
    /// forget the read together with the older ones that it still has.
    pub fn take(&mut self, generation: u64) -> Option<Read> {
        if generation != self.generation {
            return None;
        }
        let mut oldest = self.steps.first_entry()?;
        let read = oldest.get_mut().pop_front();
        if oldest.get().is_empty() {
            oldest.remove();
        }
        self.reads -= usize::from(read.is_some());
        read
    }

    /// Reads that wait.
    pub fn len(&self) -> usize {
        self.reads
    }

    /// How often it was cleared.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.generation += 1;
        self.steps.clear();
        self.reads = 0;
    }
}

fn single(request: &FetchRequest) -> Read {
    Read {
        object: request.object,
        offset: if request.length.is_some() {
            request.offset
        } else {
            0
        },
        length: request.length,
        step: request.step,
        parts: vec![Part {
            ticket: request.ticket,
            offset: 0,
            length: request.length,
        }],
    }
}

/// Adds the request to the read, if it is near enough. The request does not begin before the read.
fn join(read: &mut Read, request: &FetchRequest, joining: Joining) -> bool {
    if read.object != request.object {
        return false;
    }
    let (Some(have), Some(want)) = (read.length, request.length) else {
        // A whole object twice is read once.
        if read.length.is_none() && request.length.is_none() {
            read.parts.push(Part {
                ticket: request.ticket,
                offset: 0,
                length: None,
            });
            return true;
        }
        return false;
    };
    let (Some(end), Some(wanted_end)) = (
        read.offset.checked_add(have),
        request.offset.checked_add(want),
    ) else {
        return false;
    };
    let joined = end.max(wanted_end) - read.offset;
    let inside = wanted_end <= end;
    if request.offset > end.saturating_add(joining.gap) || (joined > joining.most && !inside) {
        return false;
    }
    read.length = Some(joined);
    let offset = request.offset - read.offset;
    read.parts.push(Part {
        ticket: request.ticket,
        offset,
        length: Some(want),
    });
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(ticket: u64, object: u32, offset: u64, length: u64, step: u64) -> FetchRequest {
        FetchRequest {
            ticket,
            object,
            offset,
            length: Some(length),
            step,
        }
    }

    fn drain(queue: &mut Queue) -> Vec<Read> {
        let generation = queue.generation();
        std::iter::from_fn(|| queue.take(generation)).collect()
    }

    #[test]
    fn neighbours_become_one_read_and_strangers_do_not() {
        let mut queue = Queue::default();
        let requests = [
            request(0, 1, 100, 50, 0),
            request(1, 1, 300, 50, 0),
            request(2, 1, 150, 50, 0),
            request(3, 2, 200, 50, 0),
            request(4, 1, 100, 50, 0),
        ];
        assert_eq!(
            queue.add(
                &requests,
                Joining {
                    gap: 10,
                    most: 1_000
                }
            ),
            3
        );
        let reads = drain(&mut queue);
        assert_eq!((reads[0].offset, reads[0].length), (100, Some(100)));
        let mut parts = reads[0].parts.clone();
        parts.sort_by_key(|part| part.ticket);
        let part = |ticket, offset| Part {
            ticket,
            offset,
            length: Some(50),
        };
        assert_eq!(parts, [part(0, 0), part(2, 50), part(4, 0)]);
        assert_eq!((reads[1].object, reads[1].offset), (1, 300));
        assert_eq!(reads[2].object, 2);
    }

    #[test]
    fn the_oldest_step_goes_first_whenever_it_came() {
        let mut queue = Queue::default();
        let alone = Joining { gap: 0, most: 0 };
        queue.add(&[request(0, 0, 0, 1, 5), request(1, 1, 0, 1, 5)], alone);
        queue.add(&[request(2, 2, 0, 1, 3)], alone);
        let tickets: Vec<u64> = drain(&mut queue)
            .iter()
            .map(|read| read.parts[0].ticket)
            .collect();
        assert_eq!(tickets, [2, 0, 1]);
    }

    #[test]
    fn who_has_not_seen_it_cleared_gets_nothing() {
        let mut queue = Queue::default();
        let alone = Joining { gap: 0, most: 0 };
        let before = queue.generation();
        queue.add(&[request(0, 0, 0, 1, 0)], alone);
        queue.clear();
        queue.add(&[request(1, 0, 0, 1, 0)], alone);
        assert_eq!(queue.take(before), None);
        assert_eq!(queue.take(queue.generation()).unwrap().parts[0].ticket, 1);
    }

    proptest! {
        #[test]
        fn each_request_is_in_one_read_that_holds_its_bytes(
            wanted in prop::collection::vec((0u32..3, 0u64..2_000, prop::option::of(0u64..300), 0u64..3), 1..60),
            gap in 0u64..200,
            most in 0u64..1_000,
        ) {
            let requests: Vec<FetchRequest> = wanted
                .iter()
                .enumerate()
                .map(|(ticket, &(object, offset, length, step))| {
                    FetchRequest { ticket: ticket as u64, object, offset, length, step }
                })
                .collect();
            let mut queue = Queue::default();
            let made = queue.add(&requests, Joining { gap, most });
            prop_assert_eq!(made, queue.len());
            let mut seen = vec![0; requests.len()];
            let mut last_step = 0;
            for read in drain(&mut queue) {
                prop_assert!(read.step >= last_step);
                last_step = read.step;
                let single = read.parts.len() == 1;
                if let Some(length) = read.length {
                    let longest = read.parts.iter().filter_map(|part| part.length).max().unwrap();
                    prop_assert!(single || length <= most.max(longest));
                }
                for part in &read.parts {
                    let request = &requests[part.ticket as usize];
                    seen[part.ticket as usize] += 1;
                    prop_assert_eq!((request.object, request.step), (read.object, read.step));
                    prop_assert_eq!(request.length, part.length);
                    if let (Some(length), Some(whole)) = (part.length, read.length) {
                        prop_assert_eq!(read.offset + part.offset, request.offset);
                        prop_assert!(part.offset + length <= whole);
                    }
                }
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
        }
    }
}
