//! `--one-core`: this process, its threads and the processes that it starts share one core.

use super::rig::Error;

/// Binds this thread, and all that it will start, to the first core that it may use. Called before there is another thread.
pub fn bind() -> Result<(), Error> {
    bind_to(*cores()?.first().ok_or("this process may use no core")?)
}

/// The cores that this thread may use.
#[cfg(target_os = "linux")]
pub fn cores() -> Result<Vec<usize>, Error> {
    // SAFETY: `cpu_set_t` is a plain array of integers, for which all zeroes is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is writable for the whole call and as long as is said.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: each number is below the number of bits of the set.
    Ok((0..8 * size_of::<libc::cpu_set_t>()).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect())
}

/// Binds this thread, and all that it will start, to one of its [`cores`].
#[cfg(target_os = "linux")]
pub fn bind_to(core: usize) -> Result<(), Error> {
    let most = 8 * size_of::<libc::cpu_set_t>();
    if core >= most {
        return Err(format!("core {core}: this program knows cores below {most}").into());
    }
    // SAFETY: as above.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the core is below the number of bits of the set, as was just seen; the set outlives the call.
    let failed = unsafe {
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if failed == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// Binding threads to cores is offered on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn cores() -> Result<Vec<usize>, Error> {
    Err("threads are bound to cores (`--one-core`) on Linux only".into())
}

/// See [`cores`].
#[cfg(not(target_os = "linux"))]
pub fn bind_to(_: usize) -> Result<(), Error> {
    cores().map(drop)
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
