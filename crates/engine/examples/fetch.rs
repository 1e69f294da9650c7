//! Fetches the objects below a URI once and says what that cost.
//!
//! ```text
//! cargo run --release --example fetch -- http://127.0.0.1:8080/bucket [repeat] [name=value of an option]…
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use penstock_engine::fetch::{Completion, FetchOptions, FetchRequest, Fetcher};
use penstock_engine::store::object::ObjectStorage;
use penstock_engine::store::AsyncStore;

fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let own: f64 = text
        .split(' ')
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0.0);
    let threads = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            text.split(' ')
                .next()
                .and_then(|word| word.parse::<f64>().ok())
                .unwrap_or(0.0)
        });
    threads.sum::<f64>().max(own) / 1e9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().ok_or("which URI?")?;
    let repeat: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let options: Vec<(String, String)> = arguments
        .filter_map(|text| {
            text.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        })
        .collect();
    let storage = Arc::new(ObjectStorage::open(&uri, &options)?);
    let deadline = Instant::now() + Duration::from_secs(60);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let entries = runtime.block_on(AsyncStore::list(&*storage, "", deadline))?;
    drop(runtime);
    let total = entries.len() as u64 * repeat;
    let keys: Vec<String> = entries.iter().map(|entry| entry.key.clone()).collect();

    let state = Arc::new((Mutex::new((0u64, Vec::<String>::new())), Condvar::new()));
    let bytes = Arc::new(AtomicU64::new(0));
    let (told, counted) = (Arc::clone(&state), Arc::clone(&bytes));
    let deliver = move |done: &mut Vec<Completion>| {
        let mut guard = told.0.lock().unwrap();
        for completion in done.drain(..) {
            guard.0 += 1;
            match completion.result {
                Ok(body) => {
                    counted.fetch_add(body.len() as u64, Ordering::Relaxed);
                }
                Err(error) => guard.1.push(error.to_string()),
            }
        }
        told.1.notify_all();
    };
    let storage: Arc<dyn AsyncStore> = storage;
    let fetcher = Fetcher::new(
        &storage,
        Arc::new(keys),
        FetchOptions::default(),
        Arc::new(deliver),
    )?;
    let (start, before) = (Instant::now(), cpu());
    // As a pipeline does it: batches of 256, some ahead.
    let (batch, ahead) = (256u64, 8 * 256u64);
    let mut sent = 0u64;
    let mut guard = state.0.lock().unwrap();
    while guard.0 < total {
        while sent < total && sent < guard.0 + ahead {
            let last = (sent + batch).min(total);
            let requests: Vec<FetchRequest> = (sent..last)
                .map(|ticket| FetchRequest {
                    ticket,
                    object: (ticket % entries.len() as u64) as u32,
                    offset: 0,
                    length: Some(entries[(ticket % entries.len() as u64) as usize].size),
                    step: ticket / batch,
                })
                .collect();
            sent = last;
            drop(guard);
            fetcher.submit(&requests);
            guard = state.0.lock().unwrap();
        }
        let (next, late) = state
            .1
            .wait_timeout(guard, Duration::from_secs(120))
            .unwrap();
        guard = next;
        if late.timed_out() {
            return Err(format!("{} of {total} came; {:?}", guard.0, fetcher.in_flight()).into());
        }
    }
    let (time, used) = (start.elapsed().as_secs_f64(), cpu() - before);
    let count = total as f64;
    println!(
        "{count} objects, {:.1} MB/s, {:.0}/s, {:.1} µs of CPU each, {:?} in flight of",
        bytes.load(Ordering::Relaxed) as f64 / time / 1e6,
        count / time,
        used / count * 1e6,
        fetcher.in_flight(),
    );
    let decisions = fetcher.decisions();
    let later = decisions
        .iter()
        .filter(|one| one.at.as_secs_f64() > time / 2.0)
        .map(|one| one.rate / 1e6);
    let later: Vec<f64> = later.collect();
    println!(
        "{:.1} MB/s on average in the second half",
        later.iter().sum::<f64>() / later.len().max(1) as f64
    );
    println!("{:?}", fetcher.counts());
    for decision in fetcher.decisions().iter().take(24) {
        println!(
            "{:>8.3} s  {:<12} limit {:>4}  {:>7.1} MB/s  latency {:>8.3?} unloaded {:>8.3?}",
            decision.at.as_secs_f64(),
            decision.reason.name(),
            decision.limit,
            decision.rate / 1e6,
            decision.latency,
            decision.unloaded
        );
    }
    for error in guard.1.iter().take(3) {
        println!("{error}");
    }
    Ok(())
}
