//! The lines of a batch as they travel, and what their answers mean.

use std::hash::{DefaultHasher, Hasher};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    feeder::{Answer, Batch, Home, What},
    flights::{Flights, write_text},
};

/// Appends a batch as newline-delimited JSON.
pub fn write(batch: &Batch, flights: &Flights, out: &mut Vec<u8>) {
    for line in &batch.lines {
        let tailnum = flights.aircraft()[line.aircraft as usize].tailnum.as_bytes();
        out.extend_from_slice(b"{\"type\":\"aircraft\",\"key\":");
        write_text(tailnum, out);
        match line.what {
            What::Report => out.extend_from_slice(b",\"op\":\"report\",\"body\":{}}\n"),
            What::Flight(seq) => {
                out.extend_from_slice(b",\"op\":\"flight\",\"body\":{");
                flights.write_members(line.aircraft, seq, out);
                out.extend_from_slice(format!(",\"seq\":{seq}}}}}\n").as_bytes());
            }
        }
    }
}

#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    served_by: Option<&'a RawValue>,
    status: Option<u16>,
    code: Option<String>,
    detail: Option<String>,
}

#[derive(Deserialize)]
struct Applied {
    applied: u64,
}

/// What the node said to each line of the batch.
///
/// An error means that the demo itself did something wrong, or that this is no wingbeat node: sending again would not help.
pub fn read(batch: &Batch, body: &[u8]) -> Result<Vec<Answer>, String> {
    let mut lines = body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let mut answers = Vec::with_capacity(batch.lines.len());
    for line in &batch.lines {
        let Some(text) = lines.next() else {
            return Err(format!("{} answers to a batch of {} lines", answers.len(), batch.lines.len()));
        };
        answers.push(meaning(line.what, text)?);
    }
    match lines.next() {
        None => Ok(answers),
        Some(_) => Err(format!("more answers than the {} lines of the batch", batch.lines.len())),
    }
}

fn hash(text: &str) -> Home {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

fn meaning(what: What, text: &[u8]) -> Result<Answer, String> {
    let reply: Reply<'_> = serde_json::from_slice(text).map_err(|error| format!("an answer that is no JSON object: {error}"))?;
    if let Some(result) = reply.result {
        let home = hash(reply.served_by.map_or("", RawValue::get));
        let Applied { applied } = serde_json::from_str(result.get()).map_err(|error| format!("a result without `applied`: {error}"))?;
        return Ok(match what {
            What::Flight(_) => Answer::Applied { applied, home },
            What::Report => Answer::Report { applied, json: result.get().to_owned(), home },
        });
    }
    let shown = || format!("{} {}", reply.code.as_deref().unwrap_or("?"), reply.detail.as_deref().unwrap_or("without detail"));
    match reply.status {
        // The aircraft itself answered no: it awaits another flight.
        Some(409) => Ok(Answer::Refused),
        Some(408 | 425 | 429) => Ok(Answer::Failed(shown())),
        Some(status @ 400..=499) => Err(format!("the node refuses what the demo sends: {status} {}", shown())),
        Some(_) => Ok(Answer::Failed(shown())),
        None => Err("an answer with neither `result` nor `status`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{feeder::Line, flights::Source};
    use super::*;

    fn batch(what: &[What]) -> Batch {
        Batch { lines: what.iter().map(|&what| Line { aircraft: 0, what }).collect(), ..Batch::default() }
    }

    #[test]
    fn a_line_is_an_operation_that_the_entities_take() {
        let flights = Flights::read(&Source::open(None).unwrap()).unwrap();
        let mut out = Vec::new();
        write(&batch(&[What::Flight(1), What::Report]), &flights, &mut out);
        let lines: Vec<serde_json::Value> =
            out.split(|&b| b == b'\n').filter(|l| !l.is_empty()).map(|l| serde_json::from_slice(l).unwrap()).collect();
        for line in &lines {
            let part = |name: &str| line[name].as_str().unwrap();
            wingbeat::builtin::Operation::parse(part("type"), part("key"), part("op"), &line["body"]).unwrap();
        }
        assert_eq!((lines.len(), &lines[0]["body"]["seq"]), (2, &1.into()));
    }

    #[test]
    fn answers_are_read_by_what_they_mean_for_the_aircraft() {
        let text = b"{\"result\":{\"applied\":4},\"served_by\":\"a:1:00\",\"epoch\":3}\n\
            {\"result\":{\"applied\":4,\"flights\":3},\"served_by\":\"a:1:00\",\"epoch\":3}\n\
            {\"status\":409,\"code\":\"E-ASK-008\",\"detail\":\"5 is awaited\"}\n\
            {\"status\":504,\"code\":\"E-ASK-003\",\"detail\":\"late\"}\n";
        let answers = read(&batch(&[What::Flight(4), What::Report, What::Flight(6), What::Flight(7)]), text).unwrap();
        let home = hash("\"a:1:00\"");
        let report = Answer::Report { applied: 4, json: "{\"applied\":4,\"flights\":3}".into(), home };
        assert_eq!(answers, [Answer::Applied { applied: 4, home }, report, Answer::Refused, Answer::Failed("E-ASK-003 late".into())]);
    }

    #[test]
    fn what_sending_again_cannot_mend_is_an_error() {
        let one = batch(&[What::Flight(1)]);
        assert!(read(&one, b"{\"status\":400,\"code\":\"E-HTTP-020\",\"detail\":\"`seq` is 0\"}\n").unwrap_err().contains("`seq` is 0"));
        assert!(read(&one, b"").unwrap_err().contains("0 answers to a batch of 1"));
        assert!(read(&one, b"hello\n").is_err());
        assert!(read(&one, b"{}\n{}\n").is_err());
    }
}
