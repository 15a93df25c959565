//! The only place of the engine with calls to the operating system that the standard library does not offer.

use std::{os::fd::RawFd, time::Duration};

use crate::Time;

/// Nanoseconds of a monotonic clock that goes on counting while the machine is suspended, so that a right to run ends in time.
pub fn now() -> Time {
    #[cfg(target_os = "linux")]
    const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;
    // The clock starts with the machine; the offset keeps `Time::ZERO` before every reading.
    Time::from_nanos(read(CLOCK) + 1)
}

/// For how long this thread has had a core.
pub fn worked() -> Duration {
    Duration::from_nanos(read(libc::CLOCK_THREAD_CPUTIME_ID))
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid, writable timespec for the whole call, and the call writes nothing else.
    let failed = unsafe { libc::clock_gettime(clock, &mut ts) };
    assert_eq!(failed, 0, "clock_gettime knows the clocks that POSIX and Linux 2.6.39 require");
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// A counter of the processor that goes on evenly, at 1 to 4 GHz; reading it costs a third of a reading of the clock. `None`: there is none.
#[inline]
pub fn ticks() -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every processor of this kind has the counter, and reading it touches no memory.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    None
}

/// Cores that this process may use; at least 1.
pub fn cores() -> usize {
    static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// Registers this process for [`fence_all`]. False: the system does not offer it, or somebody has forbidden it.
pub fn can_fence_all() -> bool {
    // An interpreter knows no such call.
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: a call with three numbers, which touches no memory.
    return unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 };
    #[cfg(not(all(target_os = "linux", not(miri))))]
    false
}

/// Has every thread of this process pass a full fence before it returns, the caller among them. False: that was refused, by a filter of calls
/// that came after the registration, say.
pub fn fence_all() -> bool {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: as above.
    return unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0 };
    #[cfg(not(all(target_os = "linux", not(miri))))]
    false
}

/// Waits until one of these files is readable, or so long. It may return sooner.
pub fn wait_for(files: [RawFd; 2], limit: Option<Duration>) {
    let mut what = files.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    #[cfg(target_os = "linux")]
    {
        let seconds = |limit: Duration| libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX);
        let limit = limit.map(|limit| libc::timespec { tv_sec: seconds(limit), tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32) });
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: two `pollfd`, and a time or none, live for the whole call; signals are left as they are. What is no open file is reported as such.
        unsafe { libc::ppoll(what.as_mut_ptr(), 2, limit, std::ptr::null()) };
    }
    #[cfg(not(target_os = "linux"))]
    {
        // Rounded up, or the last part of a millisecond would be spent in a loop.
        let ms = limit.map_or(-1, |limit| i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        // SAFETY: two `pollfd` live for the whole call. What is no open file is reported as such.
        unsafe { libc::poll(what.as_mut_ptr(), 2, ms) };
    }
}

/// Gives pages that hold nothing back to the system, where the allocator of the system keeps them: glibc's does, one heap for each few threads,
/// and what a thread has freed lies there when it has ended. Where a program has another allocator, glibc's has nothing and this does
/// nothing.
pub fn give_back_pages() {
    // An interpreter knows no such call.
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: the call locks each heap that it looks at, and touches only pages that no allocation has a part of.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives back pages when it is dropped: a last field, so that what stands before it is free by then.
#[derive(Debug, Default)]
pub struct GiveBackPages {
    not_now: bool,
}

impl GiveBackPages {
    /// Somebody else does it, later.
    pub fn leave(&mut self) {
        self.not_now = true;
    }
}

impl Drop for GiveBackPages {
    fn drop(&mut self) {
        if !self.not_now {
            give_back_pages();
        }
    }
}

/// Binds the calling thread to one core. `Err` carries the system's error.
#[cfg(target_os = "linux")]
pub fn pin(core: u16) -> std::io::Result<()> {
    // SAFETY: `cpu_set_t` is a plain array of integers, for which all zeroes is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if usize::from(core) >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
    }
    // SAFETY: `core` is below the number of bits of the set, as just checked; the set outlives both calls.
    let failed = unsafe {
        libc::CPU_SET(usize::from(core), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Binding threads to cores is offered on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn pin(_core: u16) -> std::io::Result<()> {
    Err(std::io::Error::from(std::io::ErrorKind::Unsupported))
}

/// How long the scheduler lets the calling thread run before it looks for another. `None`: this system has no such number, or not for this thread, as it
/// has a priority of its own kind, say.
pub fn slice() -> Option<Duration> {
    #[cfg(all(target_os = "linux", not(miri)))]
    return scheduling().map(|is| Duration::from_nanos(is.sched_runtime)).filter(|slice| !slice.is_zero());
    #[cfg(not(all(target_os = "linux", not(miri))))]
    None
}

/// Sets what [`slice`] says and nothing else of the thread. False: the system refuses it.
pub fn set_slice(slice: Duration) -> bool {
    #[cfg(all(target_os = "linux", not(miri)))]
    return scheduling().is_some_and(|is| {
        let wanted = libc::sched_attr { sched_runtime: slice.as_nanos() as u64, ..is };
        // SAFETY: the call reads as many bytes of a living `sched_attr` as its first field says.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(&wanted), 0) == 0 }
    });
    #[cfg(not(all(target_os = "linux", not(miri))))]
    {
        let _ = slice;
        false
    }
}

/// What the scheduler knows of the calling thread, if it is an ordinary one.
#[cfg(all(target_os = "linux", not(miri)))]
fn scheduling() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: a plain structure of integers, for which all zeroes is a valid value.
    let mut is: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes at most `size` bytes, which are those of `is`.
    let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, std::ptr::from_mut(&mut is), size, 0) };
    is.size = size;
    (failed == 0 && is.sched_policy == libc::SCHED_OTHER as u32).then_some(is)
}

/// 64 bits from the operating system's random source, for incarnations and secrets.
pub fn random_u64() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // `RandomState` is seeded from the system's random source once per thread and differs with each use; hashing the clock and the
    // process id separates threads and processes that were forked from one image.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u64(now().as_nanos());
    hasher.write_u32(std::process::id());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_forward() {
        let (a, b) = (now(), now());
        assert!(Time::ZERO < a && a <= b);
    }

    #[test]
    fn a_thread_gets_older_by_its_own_work_and_not_by_waiting_for_that_of_another() {
        let work = || {
            let before = worked();
            while worked() - before < Duration::from_millis(20) {}
            worked() - before
        };
        let before = worked();
        let others = std::thread::spawn(work).join().unwrap();
        assert!(worked() - before < others, "who only waited has worked as long as who worked");
        assert!(work() >= Duration::from_millis(20));
    }

    #[test]
    fn the_counter_goes_forward() {
        assert!(ticks() <= ticks());
    }

    #[test]
    fn who_may_fence_all_threads_can() {
        assert!(!can_fence_all() || fence_all());
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    fn pages_without_content_go_back_to_the_system() {
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() * 4096
        };
        let given = || {
            // The last one stays and holds the top of the heap.
            let mut boxes: Vec<Box<[u8]>> = (0..32 << 10).map(|_| vec![1; 1000].into()).collect();
            let _last = boxes.pop();
            drop(boxes);
            let before = resident();
            give_back_pages();
            before - resident()
        };
        // Other tests of this process take memory meanwhile.
        let most = (0..5).map(|_| given()).find(|&given| given > 16 << 20);
        assert!(most.is_some(), "of 32 MiB less than half was given back");
    }

    #[test]
    fn a_slice_is_what_it_was_set_to() {
        // A thread of its own, as those of the harness go on.
        let (asked, set, is) = std::thread::spawn(|| (slice(), set_slice(Duration::from_micros(200)), slice())).join().unwrap();
        assert_eq!(set, asked.is_some(), "who tells it lets it be set");
        assert_eq!(is, asked.map(|_| Duration::from_micros(200)));
    }

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random_u64(), random_u64());
    }
}
