//! The engine: stores, window, slabs and the threads between them. No Python.
//!
//! A [`pipeline::Pipeline`] takes steps (which samples, from which addresses), reads and decodes their samples
//! straight into slabs, and gives the finished steps back in order.

pub mod cache;
pub mod checksum;
mod copiers;
pub mod encoded;
pub mod fetch;
pub mod keys;
pub mod order;
pub mod pipeline;
pub mod probe;
mod rows;
pub mod slab;
pub mod step;
pub mod store;
pub mod stream;
pub mod trace;
pub mod window;
mod worker;
