//! Who may do what to a gate, and to what quota is counted by.

mod objects;
mod others;
mod policies;
mod tampering;
