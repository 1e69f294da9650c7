//! Stores, window, slabs and the threads between them. No Python.
