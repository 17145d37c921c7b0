//! The command line of Sluice.
fn main() {}
