//! `wingbeat config`: what a node runs with, or every setting that there is.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use wingbeat::Config;

use crate::{
    ask::{At, rows},
    fail::Failure,
    out::say,
    table::{colours, field, render},
};

/// Arguments of `wingbeat config`.
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    #[command(flatten)]
    at: At,
    /// Every setting with default, range and meaning; asks no node
    #[arg(long, conflicts_with = "diff")]
    defaults: bool,
    /// Only what differs from its default
    #[arg(long)]
    diff: bool,
}

/// Runs `wingbeat config`.
pub fn run(args: &ConfigArgs) -> Result<ExitCode, Failure> {
    if args.defaults {
        defaults(&args.at)?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = args.at.admin(None)?.get("/api/v1/config")?;
    let mut settings = rows(&answer, "config");
    if args.diff {
        settings.retain(|setting| setting["value"] != setting["default"]);
    }
    args.at.show(&json!({ "config": settings }), || match settings.is_empty() {
        true => "everything has its default".into(),
        false => render(
            &[field("KEY", "key"), field("VALUE", "value"), field("DEFAULT", "default"), field("FROM", "origin")],
            &settings,
            colours(),
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn defaults(at: &At) -> Result<(), Failure> {
    if !at.is_json() {
        return say(Config::reference_text().trim_end());
    }
    let settings = Config::reference().iter().map(|setting| {
        json!({
            "key": setting.key,
            "default": setting.default_text(),
            "range": setting.range(),
            "unit": setting.unit(),
            "must_match": setting.must_match() || setting.must_match_by_type(),
            "has_effect": setting.has_effect(),
            "meaning": setting.meaning(),
        })
    });
    say(&json!({ "settings": settings.collect::<Vec<Value>>() }).to_string())
}
