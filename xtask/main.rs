//! Generated files and repository checks.

fn main() {}
