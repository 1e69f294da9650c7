//! A loopback proxy with true delay, shared bandwidth and seeded faults, for tests.
fn main() {}
