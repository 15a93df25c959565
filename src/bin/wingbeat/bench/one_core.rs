//! `--one-core`: this process, its threads and the processes that it starts share one core.

use super::rig::Error;

/// Binds this thread, and all that it will start, to the first core that it may use. Called before there is another thread.
#[cfg(target_os = "linux")]
pub fn bind() -> Result<(), Error> {
    // SAFETY: `cpu_set_t` is a plain array of integers, for which all zeroes is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is writable for the whole call and as long as is said.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: each number is below the number of bits of the set.
    let first = (0..8 * size_of::<libc::cpu_set_t>()).find(|core| unsafe { libc::CPU_ISSET(*core, &set) });
    let first = first.ok_or("this process may use no core")?;
    // SAFETY: `first` is below the number of bits of the set; the set outlives the calls.
    let failed = unsafe {
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(first, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// Binding threads to cores is offered on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn bind() -> Result<(), Error> {
    Err("--one-core binds threads to a core, which this build can on Linux only".into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_a_bound_thread_starts_has_one_core() {
        let cores = std::thread::spawn(|| {
            bind().unwrap();
            std::thread::spawn(|| std::thread::available_parallelism().unwrap().get()).join().unwrap()
        });
        assert_eq!(cores.join().unwrap(), 1);
    }
}
