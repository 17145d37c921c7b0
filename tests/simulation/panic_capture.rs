//! Records panics of this thread, because tokio does not propagate those of detached tasks.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static CAPTURED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

static INSTALL_HOOK: Once = Once::new();

/// Clears the recorded panics, and installs the hook on the first call.
pub fn reset() {
    INSTALL_HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            CAPTURED.with_borrow_mut(|seen| seen.push(format!("panicked: {panic}")));
            before(panic);
        }));
    });
    CAPTURED.with_borrow_mut(Vec::clear);
}

/// Returns the panics since the last [`forget`].
pub fn captured() -> Vec<String> {
    CAPTURED.with_borrow(Clone::clone)
}
