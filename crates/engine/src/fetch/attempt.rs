//! One read, tried until it is there: retries, patience, a second copy for a straggler.
//!
//! On success the bytes come once, whichever attempt brought them; the others are dropped, which closes their
//! connections. On failure the error is the store's own, with how often and how long it was tried. Dropping the
//! future cancels everything.

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::{sleep, timeout_at};

use super::{FetchOptions, Shared};
use crate::store::retry::{is_passing, pause};
use crate::store::{AsyncStore, FirstByte, StoreError, StoreErrorKind};

/// An attempt is given up after this multiple of what is usual, doubled each time from the third on …
const PATIENCE: u32 = 2;
/// … but never before this time.
const PATIENCE_LEAST: Duration = Duration::from_millis(200);
/// … and attempts that were given up are at most this share of all: beyond it the store is slow, not the attempt.
const GIVEN_UP: f64 = 0.1;

/// A second copy is sent no sooner: below, a new connection costs more than the straggler.
const HEDGE_LEAST: Duration = Duration::from_millis(5);

/// While nobody knows what is usual, one looks again after this time: what begins first must not wait longest.
const LOOK: Duration = Duration::from_millis(250);

/// How a read went.
pub(super) struct Outcome {
    pub result: Result<Bytes, StoreError>,
    pub began: Instant,
    /// When the first byte came of the copy that brought the bytes, if the store says so.
    pub first_byte: Option<Instant>,
    /// What the wire needed for the attempt that brought the bytes.
    pub latency: Duration,
    pub attempts: u32,
    pub hedged: bool,
}

/// Reads `range` of `key`, with everything that may be needed.
pub(super) async fn carry_out(
    shared: &Shared,
    store: &dyn AsyncStore,
    key: &str,
    range: Option<Range<u64>>,
) -> Outcome {
    let options: &FetchOptions = &shared.options;
    let bytes = range.as_ref().map_or(0, |range| range.end - range.start);
    let began = Instant::now();
    let deadline = began + options.timeout;
    let (mut attempts, mut given_up) = (0, 0);
    let mut hedged = false;
    loop {
        let start = Instant::now();
        attempts += 1;
        shared.counters.attempts.fetch_add(1, Relaxed);
        let attempt = with_hedge(shared, store, key, range.clone(), deadline, &mut hedged);
        let (error, latency) =
            match patiently(shared, attempt, start, deadline, bytes, given_up).await {
                Some((Ok((bytes, first_byte)), latency)) => {
                    return Outcome {
                        result: Ok(bytes),
                        began,
                        first_byte,
                        latency,
                        attempts,
                        hedged,
                    };
                }
                Some((Err(error), latency)) => (error, latency),
                None => {
                    given_up += 1;
                    shared.counters.given_up.fetch_add(1, Relaxed);
                    // What was given up is a latency too: a store that has become slow makes patience grow.
                    shared.record_latency(start.elapsed(), bytes);
                    let text = format!(
                        "{}: {key} did not come within {:.1?}",
                        store.name(),
                        start.elapsed()
                    );
                    (
                        StoreError::new(StoreErrorKind::Deadline, text),
                        start.elapsed(),
                    )
                }
            };
        if error.kind == StoreErrorKind::Busy {
            shared.counters.busy.fetch_add(1, Relaxed);
            shared.slow_down();
        }
        shared.note(&error.message);
        let wait = pause(attempts - 1);
        let now = Instant::now();
        if !is_passing(error.kind) || now + wait >= deadline {
            let result = Err(explained(error, attempts, began.elapsed(), options.timeout));
            return Outcome {
                result,
                began,
                first_byte: None,
                latency,
                attempts,
                hedged,
            };
        }
        shared.counters.retries.fetch_add(1, Relaxed);
        let _absent = shared.absent();
        sleep(wait).await;
    }
}

/// Waits for an attempt; None when patience is over. What is usual may be learnt while one waits, so it is looked at
/// again whenever the time that was known is over.
async fn patiently<T>(
    shared: &Shared,
    attempt: impl Future<Output = T>,
    start: Instant,
    deadline: Instant,
    bytes: u64,
    given_up: u32,
) -> Option<T> {
    let mut attempt = std::pin::pin!(attempt);
    loop {
        let now = Instant::now();
        let patience = shared
            .usual(bytes)
            .map(|usual| {
                (usual * PATIENCE).max(PATIENCE_LEAST) * (1 << given_up.saturating_sub(1).min(6))
            })
            .filter(|_| shared.counters.share(&shared.counters.given_up) < GIVEN_UP);
        let until = match patience {
            Some(patience) if start + patience <= now => return None,
            Some(patience) => start + patience,
            None => now + LOOK,
        };
        if let Ok(came) = timeout_at(until.min(deadline).into(), &mut attempt).await {
            return Some(came);
        }
        if Instant::now() >= deadline {
            return None;
        }
    }
}

fn explained(
    mut error: StoreError,
    attempts: u32,
    elapsed: Duration,
    timeout: Duration,
) -> StoreError {
    if is_passing(error.kind) {
        error.message += &format!(
            " ({attempts} attempts in {:.1} s, of {:.0} s allowed)",
            elapsed.as_secs_f64(),
            timeout.as_secs_f64()
        );
    }
    error
}

/// Bytes, and when the first of them came.
type Came = Result<(Bytes, Option<Instant>), StoreError>;

/// One attempt, and a second copy when the first is late and the budget allows it. With the time that the copy which
/// came took.
async fn with_hedge(
    shared: &Shared,
    store: &dyn AsyncStore,
    key: &str,
    range: Option<Range<u64>>,
    deadline: Instant,
    hedged: &mut bool,
) -> (Came, Duration) {
    let start = Instant::now();
    let bytes = range.as_ref().map_or(0, |range| range.end - range.start);
    let (noted, noted_again) = (FirstByte::default(), FirstByte::default());
    let of = |result: Result<Bytes, StoreError>, noted: &FirstByte| {
        result.map(|bytes| (bytes, noted.at()))
    };
    let mut first = store.get_noting(key, range.clone(), deadline, &noted);
    loop {
        let usual = shared.usual(bytes).map(|usual| usual.max(HEDGE_LEAST));
        if usual.is_some_and(|usual| start.elapsed() >= usual) {
            break;
        }
        let until = usual.map_or_else(|| Instant::now() + LOOK, |usual| start + usual);
        if let Ok(result) = timeout_at(until.into(), &mut first).await {
            return (of(result, &noted), start.elapsed());
        }
    }
    let _absent = shared.absent();
    if !shared.may_hedge() {
        return (of(first.await, &noted), start.elapsed());
    }
    *hedged = true;
    let again = Instant::now();
    let mut second = store.get_noting(key, range, deadline, &noted_again);
    let (result, of_first) = tokio::select! {
        result = &mut first => (result, true),
        result = &mut second => (result, false),
    };
    // Where one copy failed, the other decides.
    match (result, of_first) {
        (Ok(bytes), true) => (Ok((bytes, noted.at())), start.elapsed()),
        (Ok(bytes), false) => {
            shared.counters.hedges_won.fetch_add(1, Relaxed);
            (Ok((bytes, noted_again.at())), again.elapsed())
        }
        (Err(_), true) => (of(second.await, &noted_again), again.elapsed()),
        (Err(_), false) => (of(first.await, &noted), start.elapsed()),
    }
}
