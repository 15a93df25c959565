//! A gate in front of a node, for links that stand still or trickle while datagrams pass.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

use wingbeat::NodeAddr;

/// What becomes of the bytes of connections.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Flow {
    /// They pass.
    Open,
    /// They stay where they are; nothing more is read.
    Closed,
    /// One passes now and then.
    Trickle,
}

/// Stands in front of a node: passes datagrams always, and bytes of connections as it is set.
pub struct Valve {
    pub addr: NodeAddr,
    flow: Arc<AtomicU8>,
}

impl Valve {
    /// In front of the node that listens on this port of the loopback.
    pub fn before(port: u16) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(at).unwrap();
        let flow = Arc::new(AtomicU8::new(Flow::Open as u8));
        thread::spawn(move || {
            let mut bytes = vec![0; 65_536];
            while let Ok((n, _)) = udp.recv_from(&mut bytes) {
                // The node may be gone already.
                let _ = udp.send_to(&bytes[..n], ("127.0.0.1", port));
            }
        });
        let gate = flow.clone();
        thread::spawn(move || {
            for outer in tcp.incoming().flatten() {
                let Ok(inner) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let (from, to) = (outer.try_clone().unwrap(), inner.try_clone().unwrap());
                let (one, other) = (gate.clone(), gate.clone());
                thread::spawn(move || pass(from, to, &one));
                thread::spawn(move || pass(inner, outer, &other));
            }
        });
        Self { addr: NodeAddr::new("127.0.0.1", at.port()), flow }
    }

    pub fn set(&self, flow: Flow) {
        self.flow.store(flow as u8, Ordering::SeqCst);
    }
}

/// A pause between two looks, and between two bytes that trickle.
const PAUSE: Duration = Duration::from_millis(5);

fn pass(mut from: TcpStream, mut to: TcpStream, flow: &AtomicU8) {
    from.set_read_timeout(Some(4 * PAUSE)).unwrap();
    let mut bytes = vec![0; 65_536];
    loop {
        let flow = flow.load(Ordering::SeqCst);
        if flow != Flow::Open as u8 {
            thread::park_timeout(PAUSE);
        }
        let most = match flow {
            f if f == Flow::Closed as u8 => continue,
            f if f == Flow::Trickle as u8 => 1,
            _ => bytes.len(),
        };
        match from.read(&mut bytes[..most]) {
            Ok(0) => break,
            Ok(n) => {
                if to.write_all(&bytes[..n]).is_err() {
                    break;
                }
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(_) => break,
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
