//! What panicked on this thread: tokio keeps a panic of a task to itself.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

static LISTEN: Once = Once::new();

/// Forgets what panicked so far, and listens from now on.
pub fn forget() {
    LISTEN.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            SEEN.with_borrow_mut(|seen| seen.push(format!("it panicked: {panic}")));
            before(panic);
        }));
    });
    SEEN.with_borrow_mut(Vec::clear);
}

/// What panicked since then.
pub fn seen() -> Vec<String> {
    SEEN.with_borrow(Clone::clone)
}
