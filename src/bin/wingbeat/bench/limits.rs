//! The raw limits of the machine, measured in the same run as what is compared with them.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use wingbeat::channel::bounded;

use super::{
    entity::{PAYLOAD_BYTES, Payload},
    one_core,
    rig::Error,
};

/// A histogram of nanoseconds up to a minute, three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants that the crate accepts")
}

/// Messages per second through crossbeam's bounded channel to a thread that looks an entity up by key.
pub fn channel_tell(messages: u64, entities: u64) -> f64 {
    let (tx, rx) = bounded::<(u64, Payload)>(4096);
    let consumer = thread::spawn(move || {
        let mut table: HashMap<u64, u64, foldhash::fast::RandomState> = (0..entities).map(|k| (k, 0)).collect();
        for (key, payload) in rx {
            *table.entry(key).or_default() += payload.0[0];
        }
        table.values().copied().fold(0, u64::wrapping_add)
    });
    let began = Instant::now();
    for i in 0..messages {
        tx.send((i % entities, Payload([i; 8]))).expect("the consumer runs until the sender is dropped");
    }
    drop(tx);
    let sum = consumer.join().expect("the consumer does not panic");
    std::hint::black_box(sum);
    messages as f64 / began.elapsed().as_secs_f64()
}

/// Keys per second that come through crossbeam's bounded channel to a thread that makes an entry for each.
pub fn channel_start(keys: u64) -> f64 {
    let (tx, rx) = bounded::<(u64, Payload)>(4096);
    let consumer = thread::spawn(move || {
        let mut table: HashMap<u64, [u64; 2], foldhash::fast::RandomState> = HashMap::default();
        for (key, payload) in rx {
            let state = table.entry(key).or_default();
            *state = [state[0] + 1, payload.0[0]];
        }
        table.len()
    });
    let began = Instant::now();
    for key in 0..keys {
        tx.send((key, Payload([key; 8]))).expect("the consumer runs until the sender is dropped");
    }
    drop(tx);
    let entries = consumer.join().expect("the consumer does not panic");
    assert_eq!(entries as u64, keys, "each key has an entry");
    keys as f64 / began.elapsed().as_secs_f64()
}

/// Round trips through two crossbeam channels, entity look-up included.
pub fn channel_ask(window: Duration, entities: u64) -> Histogram<u64> {
    let (tx, rx) = bounded::<(u64, Payload)>(1);
    let (back_tx, back_rx) = bounded::<Payload>(1);
    let server = thread::spawn(move || {
        let mut table: HashMap<u64, u64, foldhash::fast::RandomState> = (0..entities).map(|k| (k, 0)).collect();
        for (key, payload) in rx {
            *table.entry(key).or_default() += 1;
            if back_tx.send(payload).is_err() {
                break;
            }
        }
    });
    let (began, mut seen, mut i) = (Instant::now(), histogram(), 0u64);
    while began.elapsed() < window {
        let sent = Instant::now();
        tx.send((i % entities, Payload([i; 8]))).expect("the server runs until the sender is dropped");
        back_rx.recv().expect("the server answers everything");
        seen.saturating_record(sent.elapsed().as_nanos() as u64);
        i += 1;
    }
    drop(tx);
    server.join().expect("the server does not panic");
    seen
}

/// The ends of a TCP connection on loopback, without waiting for more to send, and without sleep if both sides poll.
fn pair(polling: bool) -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let here = TcpStream::connect(listener.local_addr()?)?;
    let (there, _) = listener.accept()?;
    for end in [&here, &there] {
        end.set_nodelay(true)?;
        end.set_nonblocking(polling)?;
    }
    Ok((here, there))
}

/// Frames per second of one TCP stream on loopback: header and payload written 64 KiB at a time, split on the other side.
pub fn raw_stream(messages: u64) -> std::io::Result<f64> {
    const FRAME: usize = 4 + PAYLOAD_BYTES;
    let (mut stream, mut other) = pair(false)?;
    let reader = thread::spawn(move || -> std::io::Result<u64> {
        let (mut buffer, mut held, mut seen) = (vec![0u8; 256 * 1024], 0, 0u64);
        loop {
            let n = other.read(&mut buffer[held..])?;
            if n == 0 {
                return Ok(seen);
            }
            held += n;
            let mut at = 0;
            while held - at >= FRAME {
                let length = u32::from_le_bytes([buffer[at], buffer[at + 1], buffer[at + 2], buffer[at + 3]]) as usize;
                std::hint::black_box(&buffer[at + 4..at + 4 + length]);
                at += 4 + length;
                seen += 1;
            }
            buffer.copy_within(at..held, 0);
            held -= at;
        }
    });
    let mut block = Vec::with_capacity(64 * 1024);
    let began = Instant::now();
    for i in 0..messages {
        block.extend_from_slice(&(PAYLOAD_BYTES as u32).to_le_bytes());
        block.extend_from_slice(&[i as u8; PAYLOAD_BYTES]);
        if block.len() + FRAME > 64 * 1024 {
            stream.write_all(&block)?;
            block.clear();
        }
    }
    stream.write_all(&block)?;
    drop(stream);
    let seen = reader.join().expect("the reader does not panic")?;
    Ok(seen as f64 / began.elapsed().as_secs_f64())
}

/// Whether there is one core for both ends: by `--one-core`, by what this process was started with, or by its quota of time. Who polls then only
/// keeps the other end from answering, until the system takes the core away.
pub fn is_one_core() -> bool {
    thread::available_parallelism().is_ok_and(|cores| cores.get() == 1)
}

/// How an end waits that polls.
fn poll() -> fn() {
    if is_one_core() { thread::yield_now } else { std::hint::spin_loop }
}

/// What [`ping_pong`] does here.
pub fn ping_pong_name() -> &'static str {
    if is_one_core() { "R_same: TCP ping-pong, blocking, on one core" } else { "R_spin: TCP ping-pong, both sides polling" }
}

/// Round trips of 64 bytes over TCP on loopback: both sides polling without sleep (R_spin), or asleep while they wait where they have one core
/// (R_same).
pub fn ping_pong(window: Duration) -> Result<Histogram<u64>, Error> {
    if !is_one_core() {
        return Ok(round_trips(window, true, |stream, buffer| wait_read(stream, buffer, std::hint::spin_loop))?);
    }
    // A quota is no core: bound to one, the ends do not wake each other across two. What the caller starts later is not bound.
    let bound = || one_core::bind().and_then(|()| Ok(round_trips(window, false, block_read)?));
    thread::scope(|scope| scope.spawn(bound).join()).map_err(|_| "the limit's thread panicked")?
}

/// Two ends that poll, each with a core of its own, answer in a tenth of this.
const SPIN_MAX: Duration = Duration::from_micros(100);

/// Why what [`ping_pong`] has seen of ends that poll is no limit, if it is none.
pub fn doubt(seen: &Histogram<u64>) -> Option<&'static str> {
    let slow = u128::from(seen.value_at_quantile(0.5)) > SPIN_MAX.as_nanos();
    slow.then_some("the ping-pong took more than 100 us, so its two ends had no core each")
}

/// `read` fills a buffer; false at the end of the stream.
fn round_trips(
    window: Duration,
    polling: bool,
    read: fn(&mut TcpStream, &mut [u8]) -> std::io::Result<bool>,
) -> std::io::Result<Histogram<u64>> {
    let (mut stream, mut other) = pair(polling)?;
    let server = thread::spawn(move || -> std::io::Result<()> {
        let mut buffer = [0u8; PAYLOAD_BYTES];
        while read(&mut other, &mut buffer)? {
            other.write_all(&buffer)?;
        }
        Ok(())
    });
    let (began, mut seen, mut buffer) = (Instant::now(), histogram(), [7u8; PAYLOAD_BYTES]);
    while began.elapsed() < window {
        let sent = Instant::now();
        stream.write_all(&buffer)?;
        if !read(&mut stream, &mut buffer)? {
            break;
        }
        seen.saturating_record(sent.elapsed().as_nanos() as u64);
    }
    drop(stream);
    server.join().expect("the server does not panic")?;
    Ok(seen)
}

/// The same at a fixed rate whatever comes back, with what is due going out in one write: times from the moments at which 64 bytes were meant to go. Who
/// waits yields: one that spins until the system takes its core away loses it for longer (p99.9 4.5 to 7.2 ms instead of 1.5 to 3.5 on two cores).
pub fn ping_pong_at_rate(window: Duration, rate: f64) -> std::io::Result<Histogram<u64>> {
    let (mut stream, mut other) = pair(true)?;
    let server = thread::spawn(move || -> std::io::Result<()> {
        let mut buffer = vec![0u8; 64 * 1024];
        loop {
            match read_some(&mut other, &mut buffer, thread::yield_now)? {
                0 => return Ok(()),
                n => wait_write(&mut other, &buffer[..n], thread::yield_now)?,
            }
        }
    });
    let due = |i: u64| Duration::from_secs_f64(i as f64 / rate);
    let total = ((window.as_secs_f64() * rate) as u64).max(1);
    let (mut seen, block, mut buffer) = (histogram(), vec![7u8; 64 * 1024], vec![0u8; 64 * 1024]);
    let (began, mut written, mut read) = (Instant::now(), 0u64, 0u64);
    let size = PAYLOAD_BYTES as u64;
    while read < total * size {
        // Of what is due, as much as goes out at once.
        let meant = ((began.elapsed().as_secs_f64() * rate) as u64 + 1).min(total) * size;
        let length = (meant - written).min(block.len() as u64) as usize;
        if length > 0 {
            match stream.write(&block[..length]) {
                Ok(n) => written += n as u64,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                let (now, first) = (began.elapsed(), read / size);
                read += n as u64;
                (first..read / size).for_each(|i| seen.saturating_record(now.saturating_sub(due(i)).as_nanos() as u64));
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => thread::yield_now(),
            Err(e) => return Err(e),
        }
    }
    drop(stream);
    server.join().expect("the server does not panic")?;
    Ok(seen)
}

/// Bytes of an entity on its way: its key and its state.
const MOVED: usize = 24;

/// Times from the first byte of so many keys and states, taken out of a map, over TCP on loopback into another map, to the byte that says so. Both
/// sides poll, and yield where they have one core.
pub fn copy(window: Duration, entities: u64) -> std::io::Result<Histogram<u64>> {
    let (mut stream, mut other) = pair(true)?;
    let (length, wait) = (entities as usize * MOVED, poll());
    let server = thread::spawn(move || -> std::io::Result<()> {
        let mut buffer = vec![0u8; length];
        while wait_read(&mut other, &mut buffer, wait)? {
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a part of 8 bytes"));
            let mut table: HashMap<u64, [u64; 2], foldhash::fast::RandomState> = HashMap::default();
            for one in buffer.chunks_exact(MOVED) {
                table.insert(word(&one[..8]), [word(&one[8..16]), word(&one[16..])]);
            }
            std::hint::black_box(&table);
            wait_write(&mut other, &[1], wait)?;
        }
        Ok(())
    });
    let table: HashMap<u64, [u64; 2], foldhash::fast::RandomState> = (0..entities).map(|key| (key, [key, 1])).collect();
    let (began, mut seen, mut answer) = (Instant::now(), histogram(), [0u8; 1]);
    while began.elapsed() < window {
        let sent = Instant::now();
        let mut block = Vec::with_capacity(length);
        for (key, state) in &table {
            for word in [*key, state[0], state[1]] {
                block.extend_from_slice(&word.to_le_bytes());
            }
        }
        wait_write(&mut stream, &block, wait)?;
        if !wait_read(&mut stream, &mut answer, wait)? {
            break;
        }
        seen.saturating_record(sent.elapsed().as_nanos() as u64);
    }
    drop(stream);
    server.join().expect("the server does not panic")?;
    Ok(seen)
}

/// Writes all of it to a socket that does not block.
fn wait_write(stream: &mut TcpStream, mut bytes: &[u8], wait: fn()) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => wait(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// What a socket that does not block has as soon as it has something; 0 at the end of the stream.
fn read_some(stream: &mut TcpStream, buffer: &mut [u8], wait: fn()) -> std::io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => wait(),
            read => return read,
        }
    }
}

/// Fills `buffer` from a socket that does not block; false at the end of the stream.
fn wait_read(stream: &mut TcpStream, buffer: &mut [u8], wait: fn()) -> std::io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read_some(stream, &mut buffer[filled..], wait)? {
            0 => return Ok(false),
            n => filled += n,
        }
    }
    Ok(true)
}

/// Fills `buffer` from a socket that blocks; false at the end of the stream.
fn block_read(stream: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<bool> {
    match stream.read_exact(buffer) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn ends_that_share_a_core_do_not_poll() {
        let window = Duration::from_millis(50);
        let one_core = thread::spawn(move || {
            one_core::bind().unwrap();
            (ping_pong_name(), ping_pong(window).unwrap(), copy(window, 100).unwrap())
        });
        let (name, trips, copies) = one_core.join().unwrap();
        assert!(name.starts_with("R_same"), "{name}");
        assert!(!trips.is_empty() && !copies.is_empty());
    }

    #[test]
    fn a_ping_pong_of_slices_is_no_limit() {
        let of = |us: u64| {
            let mut seen = histogram();
            (0..100).for_each(|_| seen.record(us * 1000).unwrap());
            doubt(&seen)
        };
        assert!(of(10).is_none() && of(8000).is_some());
    }
}
