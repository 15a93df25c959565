//! Where code of users panicked: only the panic hook is told.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    mem::ManuallyDrop,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The calling thread runs code of users from now on: the place of its panics is remembered.
///
/// The hook is set once per process and calls the one that stood before. A program that sets one of its own later has places only if that
/// one calls its predecessor too.
pub fn watch_this_thread() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // While the thread is torn down there is nobody left to be told.
            if WATCHED.try_with(Cell::get).unwrap_or(false) {
                let place = info.location().map(ToString::to_string);
                let _ = PLACE.try_with(|last| last.replace(place));
            }
            before(info);
        }));
    });
    WATCHED.set(true);
}

/// File, line and column of the calling thread's last panic, once.
fn take_place() -> Option<String> {
    PLACE.take()
}

/// Runs code of users. `None`: it panicked.
pub fn caught<R>(f: impl FnOnce() -> R) -> Option<R> {
    panic::catch_unwind(AssertUnwindSafe(f)).map_err(discard).ok()
}

/// What somebody panicked with is of their making as well: its end may panic, too.
fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Not a third time: whose end panics has no end.
        let _ = ManuallyDrop::new(again);
    }
}

/// Where the calling thread's last panic was, and what it said.
pub fn told(panic: Box<dyn Any + Send>) -> (String, String) {
    let said = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    let place = take_place();
    discard(panic);
    (place.unwrap_or_else(|| "an unknown place".to_owned()), said.unwrap_or_else(|| "a panic without text".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its end panics once, and what that panics with again.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic::panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn what_somebody_panicked_with_may_panic_as_it_ends() {
        for depth in 0..3 {
            assert!(caught(|| panic::panic_any(Bomb(depth))).is_none());
            let panicked = panic::catch_unwind(|| panic::panic_any(Bomb(depth))).unwrap_err();
            assert_eq!(told(panicked).1, "a panic without text");
        }
        assert_eq!(caught(|| 7), Some(7));
    }

    #[test]
    fn the_place_of_a_panic_is_known_on_threads_that_are_watched() {
        let place = |watched: bool| {
            let thread = std::thread::spawn(move || {
                if watched {
                    watch_this_thread();
                }
                panic::catch_unwind(|| panic!("on purpose")).unwrap_err();
                take_place()
            });
            thread.join().unwrap()
        };
        let known = place(true).unwrap();
        assert!(known.contains("panics.rs:"), "{known}");
        assert_eq!(place(false), None);
    }
}
