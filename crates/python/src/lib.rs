//! The Python bindings of penstock: thin, no logic.
