//! Samples that lie in the store as they will lie in the batch, copied from memory: many at once, without a call for
//! each.
//!
//! Nothing fails here. What is not in memory, has another length or header than expected, does not match its checksum,
//! or turns out to be in a file that was cut short, is left to be read one by one, which says what is wrong with it.

use std::ops::Range;

use penstock_codec::Format;

use crate::checksum::{crc32c, crc32c_of_parts};
use crate::step::FieldRequests;
use crate::store::local::map::{may_copy, Map};
use crate::store::{BlockingStore, Object};
use crate::worker::{Layout, Shared, StepWork};

/// Bytes of the next samples are asked for this many samples ahead.
const AHEAD: usize = 2;

/// Which fields of the claimed slots are done.
#[derive(Default)]
pub(crate) struct Copied {
    fields: usize,
    done: Vec<bool>,
    count: usize,
    /// Bytes that were copied.
    pub bytes: u64,
}

impl Copied {
    fn begin(&mut self, slots: usize, fields: usize) {
        self.fields = fields;
        self.done.clear();
        self.done.resize(slots * fields, false);
        self.count = 0;
        self.bytes = 0;
    }

    /// The fields of a slot, counted from the first that was claimed.
    pub fn of(&self, slot: usize) -> &[bool] {
        &self.done[slot * self.fields..][..self.fields]
    }

    /// Whether nothing is left to be read.
    pub fn is_all(&self) -> bool {
        self.count == self.done.len()
    }
}

/// A map that was copied from: up to where.
struct Used<'a> {
    object: u32,
    map: &'a Map,
    end: u64,
}

/// Copies what can be of `slots`, and gives the maps that were used.
pub(crate) fn copy_rows<'a>(
    shared: &Shared,
    store: &'a dyn BlockingStore,
    step: &StepWork,
    slots: Range<usize>,
    copied: &mut Copied,
) -> Vec<&'a Map> {
    let fields = shared.fields.len();
    copied.begin(slots.len(), fields);
    let mut maps = Vec::new();
    if !(0..fields).any(|field| shared.is_copied(field)) || !may_copy() {
        return maps;
    }
    let Ok(layout) = step.layout(shared) else {
        return maps;
    };
    for field in 0..fields {
        for used in copy_field(shared, store, step, layout, slots.clone(), field, copied) {
            if used.map.is_whole(used.end) {
                maps.push(used.map);
            } else {
                // Rare enough to do the whole field again.
                copied.undo(field);
                break;
            }
        }
    }
    maps
}

impl Copied {
    fn settle(&mut self, slot: usize, field: usize) {
        self.done[slot * self.fields + field] = true;
        self.count += 1;
    }

    fn undo(&mut self, field: usize) {
        for done in self.done.iter_mut().skip(field).step_by(self.fields) {
            self.count -= usize::from(std::mem::take(done));
        }
    }
}

fn copy_field<'a>(
    shared: &Shared,
    store: &'a dyn BlockingStore,
    step: &StepWork,
    layout: &Layout,
    slots: Range<usize>,
    field: usize,
    copied: &mut Copied,
) -> Vec<Used<'a>> {
    let mut maps: Vec<Used<'a>> = Vec::new();
    let mut current = 0;
    let area = &layout.areas[field];
    let Some((expected, header)) = area
        .expected
        .as_deref()
        .and_then(|expected| Some((expected, expected.header.as_deref()?)))
    else {
        return maps;
    };
    let requests = &step.request.fields[field];
    let length = header.len() + expected.bytes;
    for slot in slots.clone() {
        if !is_plain(requests, slot, length) {
            continue;
        }
        let object = requests.object[slot];
        if maps.get(current).is_none_or(|used| used.object != object) {
            current = match maps.iter().position(|used| used.object == object) {
                Some(known) => known,
                None => {
                    let key = shared.keys.get(object).unwrap_or_default();
                    let Some(map) = store.map(Object { index: object, key }) else {
                        continue;
                    };
                    maps.push(Used {
                        object,
                        map,
                        end: 0,
                    });
                    maps.len() - 1
                }
            };
        }
        let used = &mut maps[current];
        let offset = requests.offset[slot];
        if !used.map.holds(offset, length) {
            continue;
        }
        if let (Some(&next), true) = (requests.offset.get(slot + AHEAD), length <= AHEAD_BYTES) {
            used.map.expect(next, length);
        }
        // SAFETY: the slot was claimed by this worker alone, and areas of slots and fields are disjoint.
        let target = unsafe {
            layout
                .lease
                .bytes_mut(area.offset + slot * expected.bytes, expected.bytes)
        };
        if !header.is_empty() && !used.map.has(offset, header) {
            continue;
        }
        used.map.copy(offset + header.len() as u64, target);
        let matches = requests.crc32c.get(slot).is_none_or(|&wanted| {
            wanted
                == if header.is_empty() {
                    crc32c(target)
                } else {
                    crc32c_of_parts(&[header, target])
                }
        });
        if matches {
            used.end = used.end.max(offset + length as u64);
            copied.settle(slot - slots.start, field);
            copied.bytes += length as u64;
        }
    }
    maps
}

/// Larger samples are streams that the CPU follows by itself.
const AHEAD_BYTES: usize = 16 << 10;

fn is_plain(requests: &FieldRequests, slot: usize, length: usize) -> bool {
    let code = requests.format[slot];
    requests.length[slot] == length as u64
        && (code == Format::Raw as u8 || code == Format::Npy as u8)
}
