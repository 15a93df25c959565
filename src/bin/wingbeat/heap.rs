//! How the heap of a node's process behaves over a long time.

/// Pieces of this size and above have pages of their own: the rings of a node, which go back to the system with it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES_BYTES: libc::c_int = 1 << 20;
/// So much may be free at the end of a heap before it goes back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const FREE_AT_END_BYTES: libc::c_int = 128 << 10;

/// And so much stays when the rest goes: a process has a heap for each of its threads, and more than that when one life follows another.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_AT_END_BYTES: libc::c_int = 16 << 10;

/// Keeps glibc from raising the first two by itself. It does so when the first ring is freed, to 2 MiB and twice that, and from then on a heap keeps up
/// to 4 MiB that are free at its end: each thread of each life of a process that rejoins left what it had used at most. Nothing else gives that
/// back: `malloc_trim` leaves the ends of the heaps of threads alone.
///
/// A program's own decision, so the library does not take it.
pub fn keep_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the calls set three numbers under the allocator's lock, and touch no memory of anybody.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREE_AT_END_BYTES);
        libc::mallopt(libc::M_TOP_PAD, KEPT_AT_END_BYTES);
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn resident() -> i64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() * 4096
    }

    #[test]
    fn what_a_thread_has_freed_goes_back_even_after_large_pieces_were_freed() {
        keep_small();
        drop(vec![1u8; 16 << 20]);
        let before = resident();
        let stays = || {
            std::thread::spawn(|| drop((0..256).map(|_| vec![1u8; 70 << 10]).collect::<Vec<_>>())).join().unwrap();
            resident() - before
        };
        // Other tests use memory meanwhile, so the least of some tries counts.
        let least = (0..5).map(|_| stays()).min().unwrap();
        assert!(least < 8 << 20, "{least} of 17.5 MiB stayed");
    }
}
