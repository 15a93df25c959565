//! Messages and requests within one node.

use std::time::{Duration, Instant};

use wingbeat::{AskQueue, EntityRef, HostOptions, Region};

use super::{
    BenchArgs, alloc,
    entity::{Bench, BenchEntity, Echo, Payload, Told},
    inside::Inside,
    limits, open_loop,
    report::{Report, Run},
    rig::{self, Error, PATIENCE},
};

/// The limit of what is not asked one by one.
const CHANNEL_TELL: &str = "Q_xb: crossbeam channel with entity look-up";

/// Sends notes round robin for about `window`, in batches if there is a region, then waits until all were handled: the run, and how many were
/// sent.
pub fn tell_for<T: Told>(all: &[EntityRef<T>], region: Option<&Region<T>>, window: Duration) -> Result<(Run, u64), Error> {
    let (result, allocated) = alloc::counted(|| {
        let (began, mut teller) = (Instant::now(), rig::Teller::new(all, region.map(Region::batch)));
        while began.elapsed() < window {
            teller.tell(rig::BATCH)?;
        }
        Ok::<_, Error>((teller.finish()?, began.elapsed()))
    });
    let (sent, took) = result?;
    let throughput = Some(sent as f64 / took.as_secs_f64());
    Ok((Run { throughput, allocations: Some(allocated as f64 / sent as f64), ..Run::default() }, sent))
}

/// Fails unless this is the answer of question `i`.
pub fn check_answer(i: u64, back: &Payload) -> Result<(), Error> {
    if back.0 == [i; 8] { Ok(()) } else { Err(format!("request {i} got the answer of another: {:?}", back.0).into()) }
}

/// Asks round robin, one in flight, for `window`.
pub fn ask_for(all: &[EntityRef<Bench>], window: Duration) -> Result<Run, Error> {
    let mut seen = limits::histogram();
    let (result, allocated) = alloc::counted(|| {
        let (began, mut i) = (Instant::now(), 0u64);
        while began.elapsed() < window {
            let sent = Instant::now();
            let back = all[(i % all.len() as u64) as usize].ask(Echo(Payload([i; 8])), PATIENCE)?;
            seen.saturating_record(sent.elapsed().as_nanos() as u64);
            check_answer(i, &back)?;
            i += 1;
        }
        Ok::<_, Error>((i, began.elapsed()))
    });
    let (done, took) = result?;
    let allocations = Some(allocated as f64 / done as f64);
    Ok(Run { allocations, ..Run::of(&seen, Some(done as f64 / took.as_secs_f64())) })
}

/// Asks with `window` requests in flight: each answer lets the next request go.
pub fn ask_many(all: &[EntityRef<Bench>], in_flight: u32, window: Duration) -> Result<Run, Error> {
    let queue = AskQueue::new(in_flight as usize);
    let mut seen = limits::histogram();
    let (result, allocated) = alloc::counted(|| {
        let (began, mut sent, mut done) = (Instant::now(), 0u64, 0u64);
        // The question that each place is taken by, and when it was sent.
        let mut asked = vec![(0, began); in_flight as usize];
        let (mut free, mut answers) = ((0..u64::from(in_flight)).collect::<Vec<u64>>(), Vec::with_capacity(in_flight as usize));
        let due = |began: Instant| began.elapsed() < window;
        while done < sent || due(began) {
            while let Some(tag) = free.pop_if(|_| due(began)) {
                asked[tag as usize] = (sent, Instant::now());
                all[(sent % all.len() as u64) as usize].ask_into(Echo(Payload([sent; 8])), PATIENCE, tag, &queue)?;
                sent += 1;
            }
            if queue.wait(&mut answers, PATIENCE) == 0 {
                return Err("no answer in time".into());
            }
            for answer in answers.drain(..) {
                let (i, at) = asked[answer.tag as usize];
                seen.saturating_record(at.elapsed().as_nanos() as u64);
                check_answer(i, &answer.result?)?;
                free.push(answer.tag);
                done += 1;
            }
        }
        Ok::<_, Error>((done, began.elapsed()))
    });
    let (done, took) = result?;
    let allocations = Some(allocated as f64 / done as f64);
    Ok(Run { allocations, ..Run::of(&seen, Some(done as f64 / took.as_secs_f64())) })
}

/// Fails if entities have not handled exactly what was sent.
pub fn nothing_is_lost<T: Told>(all: &[EntityRef<T>], sent: u64) -> Result<(), Error> {
    let handled = rig::handled(all)?;
    if handled == sent { Ok(()) } else { Err(format!("{sent} messages were sent and {handled} handled").into()) }
}

/// `local-tell`.
pub fn tell(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let cluster = rig::start(&args.settings(), &[])?;
    let region = cluster.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default())?;
    let all = rig::warm(&region, args.entities())?;
    let inside = args.inside.then(|| Inside::new(&cluster, &region, &all)).transpose()?;
    let mut total = 0;
    report.rounds(
        CHANNEL_TELL,
        args.runs(),
        || {
            let throughput = Some(limits::channel_tell((args.secs() * 5e6) as u64, args.entities()));
            Ok(Run { throughput, ..Run::default() })
        },
        || {
            let (run, sent) = match &inside {
                Some(inside) => inside.tell_for(!args.single, args.window())?,
                None => tell_for(&all, (!args.single).then_some(&region), args.window())?,
            };
            total += sent;
            Ok(run)
        },
    )?;
    nothing_is_lost(&all, total)
}

/// `local-ask`.
pub fn ask(args: &BenchArgs, report: &mut Report) -> Result<(), Error> {
    let cluster = rig::start(&args.settings(), &[])?;
    let region = cluster.host::<BenchEntity>(HostOptions::new(), |_| BenchEntity::default())?;
    let all = rig::warm(&region, args.entities())?;
    let inside = args.inside.then(|| Inside::new(&cluster, &region, &all)).transpose()?;
    let rate = args.rate.map(|rate| open_loop::rate_of(rate, &all, args.window(), report)).transpose()?;
    if rate.is_some() {
        report.compare_tails();
    } else if args.window > 1 {
        let limit = || {
            let throughput = Some(limits::channel_tell((args.secs() * 5e6) as u64, args.entities()));
            Ok(Run { throughput, ..Run::default() })
        };
        return report.rounds(CHANNEL_TELL, args.runs(), limit, || ask_many(&all, args.window, args.window()));
    }
    report.rounds(
        "X_ask: crossbeam channels with entity look-up",
        args.runs(),
        || Ok(Run::of(&limits::channel_ask(args.window() / 2, args.entities()), None)),
        || match (rate, &inside) {
            (Some(rate), _) => open_loop::at_rate(&all, rate, args.window()),
            (_, Some(inside)) => inside.ask_for(args.window()),
            _ => ask_for(&all, args.window()),
        },
    )
}

#[cfg(test)]
mod tests {
    use wingbeat::{Cx, Entity};

    use super::{super::entity::BenchMsg, *};

    /// Gives the answer of the question before.
    struct Mistaken(u64);

    impl Entity for Mistaken {
        type Type = Bench;

        fn handle(&mut self, msg: BenchMsg, cx: &mut Cx<'_, Self>) {
            match msg {
                BenchMsg::Note(_) => {}
                BenchMsg::Echo(Echo(Payload([i, ..])), reply) => cx.reply(reply, Payload([std::mem::replace(&mut self.0, i); 8])),
                BenchMsg::Count(_, reply) => cx.reply(reply, 0),
            }
        }
    }

    #[test]
    fn many_are_told_a_batch_at_a_time() {
        assert_eq!(rig::batches(10, 130).collect::<Vec<_>>(), [10..74, 74..138, 138..140]);
        assert_eq!((rig::batches(0, rig::BATCH).count(), rig::batches(5, 0).count()), (1, 0));
    }

    #[test]
    fn an_answer_of_another_question_fails_the_measurement() {
        let cluster = rig::start(&[], &[]).unwrap();
        let region = cluster.host::<Mistaken>(HostOptions::new(), |_| Mistaken(u64::MAX)).unwrap();
        let (all, window) = (rig::warm(&region, 2).unwrap(), Duration::from_millis(50));
        for run in [ask_for(&all, window), ask_many(&all, 4, window), open_loop::at_rate(&all, 1000.0, window)] {
            let error = run.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("got the answer of another"), "{error}");
        }
    }
}
