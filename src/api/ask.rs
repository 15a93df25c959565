//! Many asks in flight from one thread, and answers as futures.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::{
    context::{read_answer, resolve},
    reference::newest,
};
use crate::{
    AskError, Deadline, EntityRef, EntityType, Refusal, Request, TellError, Wire,
    engine::{completion::Completions, panics, parcel::Answered, slot::Waiter},
};

/// Many asks in flight from one thread: [`EntityRef::ask_into`] sends, and the answers come out here, each with the tag of its ask.
///
/// Room for the answer is reserved when an ask is accepted, so answers are never lost and the queue never grows: while as many answers are
/// owed as it has room for, asks are refused with [`Refusal::Full`]. An answer whose asker has dropped the queue is dropped.
///
/// # Guaranteed
/// Each accepted ask comes out exactly once: with its reply, or with the reason why there is none, at its deadline at the latest, and when
/// the node stops.
///
/// # Not guaranteed
/// Answers come in the order in which they arrive, not in that of the asks.
///
/// ```no_run
/// # use std::{sync::Arc, time::Duration};
/// # use wingbeat::*;
/// # messages! { pub enum CounterMsg for Counter(String) = "doc.counter" { Get -> u64 } }
/// # fn send(counters: Region<Counter>) -> Result<(), TellError<CounterMsg>> {
/// let queue = AskQueue::new(1024);
/// for number in 0..1000 {
///     counters.get(format!("c{number}")).ask_into(Get, Duration::from_secs(1), number, &queue)?;
/// }
/// let mut answers = Vec::new();
/// while queue.in_flight() > 0 {
///     queue.wait(&mut answers, Duration::from_secs(1));
///     for Answer { tag, result, .. } in answers.drain(..) {
///         println!("{tag}: {result:?}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct AskQueue<V: Wire> {
    inner: Arc<Completions>,
    _value: PhantomData<fn() -> V>,
}

impl<V: Wire> Clone for AskQueue<V> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), _value: PhantomData }
    }
}

impl<V: Wire> fmt::Debug for AskQueue<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AskQueue({} in flight)", self.in_flight())
    }
}

/// What came of one ask.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Answer<V> {
    /// What the asker called it.
    pub tag: u64,
    /// The reply, or why there is none.
    pub result: Result<V, AskError>,
}

impl<V: Wire> AskQueue<V> {
    /// With room for so many asks in flight and answers not taken, together; at least 1. The memory for all of them is taken at once.
    pub fn new(capacity: usize) -> Self {
        Self { inner: Arc::new(Completions::new(capacity)), _value: PhantomData }
    }

    /// Called from now on after each answer that comes in, on the thread that brings it: any of the library's, or one of yours that fulfils or drops a
    /// [`Promise`](crate::Promise). It writes to an eventfd, or wakes mio or a runtime: it must be quick and must not block; on a thread that others wait
    /// for, a call of the library that would is `WouldDeadlock`. Called at once if there are answers already. Replaces the one before.
    pub fn set_wake(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.inner.set_wake(wake);
    }

    /// Appends the answers that are there, and says how many. Does not wait.
    pub fn poll(&self, out: &mut Vec<Answer<V>>) -> usize {
        let before = out.len();
        // No more than were there at the start, so that a flood does not keep the caller.
        for _ in 0..self.inner.reserved() {
            let Some((tag, answered)) = self.inner.take() else { break };
            out.push(Answer { tag, result: read_answer(answered) });
        }
        out.len() - before
    }

    /// As [`poll`](Self::poll), but waits for the first answer until the deadline. On a worker or the network thread it does not wait, and neither if
    /// no ask is in flight.
    pub fn wait(&self, out: &mut Vec<Answer<V>>, deadline: impl Into<Deadline>) -> usize {
        let n = self.poll(out);
        if n > 0 || self.in_flight() == 0 || super::reference::on_engine_thread() {
            return n;
        }
        self.inner.wait(deadline);
        self.poll(out)
    }

    /// Asks in flight and answers not taken.
    pub fn in_flight(&self) -> usize {
        self.inner.reserved()
    }
}

impl<T: EntityType> EntityRef<T> {
    /// Asks without waiting; the answer comes out of `queue` with `tag`, exactly once. Allocates nothing for a small request.
    ///
    /// # Errors
    /// [`TellError`] with the [`Refusal`] and the message; nothing was queued, and no answer comes. [`Refusal::Full`] also if the queue owes as
    /// many answers as it has room for.
    #[inline(always)]
    pub fn ask_into<R: Request<T>>(
        &self,
        req: R,
        deadline: impl Into<Deadline>,
        tag: u64,
        queue: &AskQueue<R::Reply>,
    ) -> Result<(), TellError<T::Msg>> {
        let mut msg = Some(req.into_msg());
        match self.ask_into_made(&mut msg, newest::<R::Reply>(), deadline.into(), tag, &queue.inner) {
            Ok(()) => Ok(()),
            Err(refusal) => Err(self.refused(refusal, msg)),
        }
    }

    #[inline(never)]
    fn ask_into_made(
        &self,
        msg: &mut Option<T::Msg>,
        reads: u8,
        deadline: Deadline,
        tag: u64,
        queue: &Arc<Completions>,
    ) -> Result<(), Refusal> {
        let room = queue.reserve().ok_or(Refusal::Full)?;
        queue.asked_by(&self.node, self.is_abroad());
        self.open_or_back(msg, reads, resolve(&self.node, deadline), Waiter::Queue(room, tag)).map(drop)
    }

    /// Asks; the answer is a future of the standard library, for any runtime: it needs no timer of the runtime's and no feature. The request
    /// is sent at once, not when the future is first polled.
    ///
    /// Dropping the future drops the answer; the request runs all the same. The task is woken on the thread that brings the answer, as the hook of an
    /// [`AskQueue`] is called.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use wingbeat::*;
    /// # messages! { pub enum CounterMsg for Counter(String) = "doc.counter" { Get -> u64 } }
    /// async fn total(counters: Region<Counter>) -> Result<u64, AskError> {
    ///     let a = counters.get("a").ask_async(Get, Duration::from_secs(1));
    ///     let b = counters.get("b").ask_async(Get, Duration::from_secs(1));
    ///     Ok(a.await? + b.await?)
    /// }
    /// ```
    pub fn ask_async<R: Request<T>>(&self, req: R, deadline: impl Into<Deadline>) -> AskFuture<R::Reply> {
        let shared = Arc::new(Mutex::new(State::Waiting(None)));
        let theirs = shared.clone();
        // On the thread that brings the answer: it wakes, no more. Decoding is left to who polls.
        let waiter = Waiter::Call(Box::new(move |answered| finish(&theirs, Ok(answered))));
        if let Err(error) = self.open(&mut Some(req.into_msg()), newest::<R::Reply>(), resolve(&self.node, deadline), waiter) {
            finish(&shared, Err(error));
        }
        AskFuture { shared, _value: PhantomData }
    }
}

/// An answer to come; made by [`EntityRef::ask_async`].
#[must_use = "the answer comes out of the future"]
pub struct AskFuture<V> {
    shared: Arc<Mutex<State>>,
    _value: PhantomData<fn() -> V>,
}

enum State {
    Waiting(Option<Waker>),
    Done(Result<Answered, AskError>),
    Taken,
}

fn finish(shared: &Mutex<State>, result: Result<Answered, AskError>) {
    let mut state = shared.lock();
    if matches!(*state, State::Taken) {
        drop(state);
        // Of users' making, too.
        panics::caught(|| drop(result));
        return;
    }
    let before = std::mem::replace(&mut *state, State::Done(result));
    drop(state);
    if let State::Waiting(Some(waker)) = before {
        // Of a runtime, on a thread of the engine that must go on.
        if panics::caught(|| waker.wake()).is_none() {
            tracing::error!(target: "wingbeat::engine", "waking the task that awaits an answer panicked");
        }
    }
}

impl<V> fmt::Debug for AskFuture<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskFuture")
    }
}

impl<V> Drop for AskFuture<V> {
    fn drop(&mut self) {
        // Nobody is to be woken, and the task need not stay in memory until the answer comes. Its end is code of others, and runs without the lock.
        let before = std::mem::replace(&mut *self.shared.lock(), State::Taken);
        drop(before);
    }
}

impl<V: Wire> Future for AskFuture<V> {
    type Output = Result<V, AskError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The code of a waker, which may be the last that holds a task, runs without the lock.
        let waker = cx.waker().clone();
        let mut state = self.shared.lock();
        let before = match &*state {
            State::Waiting(_) => std::mem::replace(&mut *state, State::Waiting(Some(waker))),
            State::Done(_) | State::Taken => std::mem::replace(&mut *state, State::Taken),
        };
        drop(state);
        match before {
            State::Waiting(_) => Poll::Pending,
            State::Done(result) => Poll::Ready(result.and_then(read_answer)),
            State::Taken => panic!("a future is not polled again after it is ready"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use super::*;
    use crate::{CodecError, proto::handoff::ReplyBody};

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_future_that_is_dropped_lets_go_of_its_task() {
        let shared = Arc::new(Mutex::new(State::Waiting(None)));
        let mut future = AskFuture::<u64> { shared: shared.clone(), _value: PhantomData };
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        drop((future, waker));
        assert_eq!(Arc::strong_count(&task), 1, "nobody else has it");
        finish(&shared, Err(AskError::Shutdown));
        assert_eq!(task.0.load(Ordering::SeqCst), 0, "nobody is woken");
    }

    #[derive(Debug)]
    struct Unreadable;

    impl Wire for Unreadable {
        const NAME: &'static str = "unreadable";

        fn encode(&self, _: u16, _: &mut Vec<u8>) -> Result<(), CodecError> {
            Ok(())
        }

        fn decode(_: u16, _: &mut &[u8]) -> Result<Self, CodecError> {
            std::panic::resume_unwind(Box::new("a decoder's end"))
        }
    }

    #[test]
    fn an_answer_whose_decoder_panics_is_an_outcome() {
        let queue = AskQueue::<Unreadable>::new(1);
        let version = crate::api::reference::newest::<Unreadable>();
        queue.inner.reserve().unwrap().put(7, Answered::Wire(ReplyBody::Value(vec![version].into())));
        let mut answers = vec![];
        assert_eq!((queue.poll(&mut answers), queue.in_flight()), (1, 0));
        let Answer { tag: 7, result: Err(AskError::Undecodable(why)) } = &answers[0] else { panic!("{answers:?}") };
        assert!(why.contains("`unreadable` panicked"), "{why}");
    }
}
