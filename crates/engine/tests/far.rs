//! The pipeline over a store that answers when the test says so: no network, no clock, no luck.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_codec::{DType, FieldSpec, Format, Kind, Limits, Program, TensorSpec};
use penstock_engine::fetch::FetchOptions;
use penstock_engine::pipeline::{Options, Pipeline};
use penstock_engine::step::{FailureKind, FieldRequests, Finished, Output, StepRequest};
use penstock_engine::store::{AsyncStore, Get, List, Store, StoreError, StoreErrorKind};
use penstock_engine::window::Order;
use tokio::sync::Notify;

/// A wait of the tests' own: far more than any of them needs.
const PATIENCE: Duration = Duration::from_secs(30);
const SIZE: usize = 16;

#[derive(Default)]
struct State {
    /// Keys that are answered only when they are let go.
    held: HashSet<String>,
    /// Requests that are never answered, the first ones for a key.
    silent: HashMap<String, u32>,
    /// Wrong answers that are given first.
    damaged: HashMap<String, u32>,
    asked: HashMap<String, u32>,
}

#[derive(Default)]
struct Scripted {
    state: Mutex<State>,
    changed: Notify,
}

fn value(key: &str) -> u8 {
    key.parse::<u64>().unwrap() as u8
}

impl Scripted {
    fn hold(&self, key: u64) {
        self.state.lock().unwrap().held.insert(key.to_string());
    }

    fn let_go(&self, key: u64) {
        self.state.lock().unwrap().held.remove(&key.to_string());
        self.changed.notify_waiters();
    }

    fn asked(&self, key: u64) -> u32 {
        let state = self.state.lock().unwrap();
        state.asked.get(&key.to_string()).copied().unwrap_or(0)
    }
}

impl AsyncStore for Scripted {
    fn get<'a>(&'a self, key: &'a str, range: Option<Range<u64>>, _: Instant) -> Get<'a> {
        Box::pin(async move {
            let is_silent = {
                let mut state = self.state.lock().unwrap();
                let left = state.silent.get_mut(key).filter(|left| **left > 0);
                left.map(|left| *left -= 1).is_some()
            };
            if is_silent {
                std::future::pending::<()>().await;
            }
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if !self.state.lock().unwrap().held.contains(key) {
                    break;
                }
                changed.await;
            }
            let mut state = self.state.lock().unwrap();
            *state.asked.entry(key.to_owned()).or_default() += 1;
            let length = range.map_or(SIZE, |range| (range.end - range.start) as usize);
            if key == "404" {
                return Err(StoreError::new(StoreErrorKind::Missing, "404 is not there"));
            }
            let mut bytes = vec![value(key); length];
            if let Some(left) = state.damaged.get_mut(key).filter(|left| **left > 0) {
                *left -= 1;
                bytes[3] ^= 1;
            }
            Ok(Bytes::from(bytes))
        })
    }

    fn list<'a>(&'a self, _: &'a str, _: Instant) -> List<'a> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn name(&self) -> String {
        "scripted".into()
    }
}

fn pipeline(store: &Arc<Scripted>, order: Order) -> Pipeline {
    let options = Options {
        fields: vec![FieldSpec {
            name: "value".into(),
            kind: Kind::Array,
            raw: Some(TensorSpec {
                dtype: DType::U8,
                shape: vec![SIZE],
            }),
        }],
        program: Program::from_json(r#"{"version":1,"mode":"rgb","layout":null,"ops":[]}"#)
            .unwrap(),
        seed: 0,
        threads: Some(2),
        window_bytes: 1 << 20,
        attempts: 1,
        read_timeout: PATIENCE,
        limits: Limits {
            max_pixels: 1 << 20,
            max_bytes: 1 << 20,
        },
        trace_capacity: 16,
        order,
        fetch: FetchOptions {
            threads: 1,
            hedges: 0.0,
            join: false,
            ..FetchOptions::default()
        },
        cache: None,
        keep_slabs: false,
    };
    let keys: Vec<String> = (0..1_000).map(|key: u64| key.to_string()).collect();
    let store: Arc<dyn AsyncStore> = Arc::clone(store) as Arc<dyn AsyncStore>;
    Pipeline::new(Store::Async(store), Arc::new(keys), options).unwrap()
}

fn step(number: u64, samples: Range<u64>) -> StepRequest {
    let ids: Vec<u64> = samples.collect();
    let count = ids.len();
    let crc = |id: &u64| penstock_engine::checksum::crc32c(&[*id as u8; SIZE]);
    StepRequest {
        step: number,
        rows: ids.clone(),
        fields: vec![FieldRequests {
            object: ids.iter().map(|id| *id as u32).collect(),
            offset: vec![0; count],
            length: vec![SIZE as u64; count],
            crc32c: ids.iter().map(crc).collect(),
            format: vec![Format::Raw as u8; count],
        }],
        ids,
        ..StepRequest::default()
    }
}

fn next(pipeline: &Pipeline) -> Finished {
    let found = pipeline.next(PATIENCE, false, false).unwrap();
    found.unwrap_or_else(|| panic!("{}", pipeline.describe_wait()))
}

/// Every slot holds the sample that the ids name.
fn check(finished: &Finished) {
    let Output::Stacked(placed) = &finished.fields[0] else {
        panic!("all samples have one shape")
    };
    for (slot, id) in finished.ids.iter().enumerate() {
        // SAFETY: the step is finished, and nobody writes to it any more.
        let bytes = unsafe { placed.lease.bytes_mut(placed.offset + slot * SIZE, SIZE) };
        assert!(
            bytes.iter().all(|byte| *byte == *id as u8),
            "slot {slot} is not sample {id}"
        );
    }
}

#[test]
fn in_strict_order_a_late_sample_holds_up_its_step_and_no_request_behind_it() {
    let store = Arc::new(Scripted::default());
    store.hold(1);
    let pipeline = pipeline(&store, Order::Strict);
    (0..4).for_each(|number| {
        pipeline
            .submit(step(number, number * 4..number * 4 + 4))
            .unwrap()
    });
    assert!(pipeline
        .next(Duration::from_millis(50), false, false)
        .unwrap()
        .is_none());
    let text = pipeline.describe_wait();
    assert!(
        text.contains("sample 1 (1) has not come") && text.contains("scripted"),
        "{text}"
    );
    store.let_go(1);
    for number in 0..4 {
        let finished = next(&pipeline);
        assert_eq!(
            finished.ids,
            (number * 4..number * 4 + 4).collect::<Vec<_>>()
        );
        check(&finished);
    }
}

#[test]
fn in_arrival_order_the_others_go_on_until_its_last_chance() {
    let store = Arc::new(Scripted::default());
    store.hold(1);
    let pipeline = pipeline(&store, Order::Arrival { displacement: 2 });
    (0..5).for_each(|number| {
        pipeline
            .submit(step(number, number * 4..number * 4 + 4))
            .unwrap()
    });
    let mut seen = HashSet::new();
    for number in 0..2 {
        let finished = next(&pipeline);
        assert_eq!((finished.step, finished.ids.len()), (number, 4));
        assert!(!finished.ids.contains(&1));
        check(&finished);
        seen.extend(finished.ids);
    }
    // Step 2 keeps a slot for it.
    assert!(pipeline
        .next(Duration::from_millis(50), false, false)
        .unwrap()
        .is_none());
    store.let_go(1);
    let finished = next(&pipeline);
    assert!(finished.ids.contains(&1));
    check(&finished);
    seen.extend(finished.ids);
    for _ in 3..5 {
        let finished = next(&pipeline);
        check(&finished);
        seen.extend(finished.ids);
    }
    assert_eq!(seen.len(), 20);
}

#[test]
fn a_request_that_stalls_before_anything_is_known_is_given_up_like_later_ones() {
    let store = Arc::new(Scripted::default());
    for key in [0, 1, 40] {
        let mut state = store.state.lock().unwrap();
        state.silent.insert(key.to_string(), 1);
    }
    let pipeline = pipeline(&store, Order::Strict);
    let began = Instant::now();
    for number in 0..4 {
        pipeline
            .submit(step(number, number * 64..(number + 1) * 64))
            .unwrap();
    }
    for _ in 0..4 {
        check(&next(&pipeline));
    }
    // Not when the read's deadline comes: that would be an error, and half a minute later.
    assert!(began.elapsed() < PATIENCE / 3, "{:?}", began.elapsed());
    assert!([0, 1, 40].iter().all(|key| store.asked(*key) == 1));
}

#[test]
fn damage_is_fetched_again_and_named_when_it_stays() {
    let store = Arc::new(Scripted::default());
    store
        .state
        .lock()
        .unwrap()
        .damaged
        .extend([("2".into(), 2), ("6".into(), 5)]);
    let pipeline = pipeline(&store, Order::Strict);
    (0..2).for_each(|number| {
        pipeline
            .submit(step(number, number * 4..number * 4 + 4))
            .unwrap()
    });
    let finished = next(&pipeline);
    assert!(finished.failures.is_empty());
    assert_eq!((finished.retries, store.asked(2)), (2, 3));
    check(&finished);
    let finished = next(&pipeline);
    assert_eq!(finished.failures.len(), 1);
    let failure = &finished.failures[0];
    assert_eq!(
        (failure.id, failure.kind, store.asked(6)),
        (6, FailureKind::Checksum, 5)
    );
}

#[test]
fn what_is_not_there_is_left_out_wherever_it_was_put() {
    for order in [Order::Strict, Order::Arrival { displacement: 3 }] {
        let store = Arc::new(Scripted::default());
        let pipeline = pipeline(&store, order);
        pipeline.submit(step(0, 402..406)).unwrap();
        let finished = pipeline.next(PATIENCE, true, false).unwrap().unwrap();
        let mut ids = finished.ids.clone();
        ids.sort_unstable();
        assert_eq!(ids, [402, 403, 405]);
        assert_eq!(
            (finished.failures[0].id, finished.failures[0].kind),
            (404, FailureKind::Missing)
        );
        check(&finished);
    }
}

#[test]
fn what_was_discarded_never_comes_and_the_next_steps_do() {
    let store = Arc::new(Scripted::default());
    let pipeline = pipeline(&store, Order::Arrival { displacement: 3 });
    for round in 0..20u64 {
        let first = 500 + round * 24; // 404 is not there
        store.hold(first + 3);
        (0..3).for_each(|n| {
            pipeline
                .submit(step(n, first + n * 4..first + n * 4 + 4))
                .unwrap()
        });
        check(&next(&pipeline));
        pipeline.discard().unwrap();
        assert_eq!(pipeline.open_steps(), 0);
        store.let_go(first + 3);
        pipeline.submit(step(0, first + 20..first + 24)).unwrap();
        let mut ids = next(&pipeline).ids;
        ids.sort_unstable();
        assert_eq!(ids, (first + 20..first + 24).collect::<Vec<_>>());
    }
}

#[test]
fn a_close_ends_what_never_answers() {
    let store = Arc::new(Scripted::default());
    (0..8).for_each(|key| store.hold(key));
    let pipeline = pipeline(&store, Order::Strict);
    pipeline.submit(step(0, 0..8)).unwrap();
    let begun = Instant::now();
    assert_eq!(pipeline.close(), 0);
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert!(pipeline.next(PATIENCE, false, false).is_err());
}

#[test]
fn room_in_the_window_is_told_to_who_waits() {
    let store = Arc::new(Scripted::default());
    store.hold(0);
    let pipeline = pipeline(&store, Order::Strict);
    let mut number = 0;
    while pipeline.has_room() && number < 40 {
        pipeline
            .submit(step(number, number * 4..number * 4 + 4))
            .unwrap();
        number += 1;
    }
    assert!(number > 4, "the window took only {number} small steps");
    // Nothing can be handed out, but there is room: the wait ends at once.
    assert!(pipeline.has_room());
    assert!(pipeline.next(PATIENCE, false, true).unwrap().is_none());
    store.let_go(0);
    (0..number).for_each(|_| check(&next(&pipeline)));
}
