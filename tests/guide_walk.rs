//! What a new user does: makes a crate, adds the library without its default features, and copies the programs of the README and of each page
//! of the guide as they are shown. They compile without a warning, run, and print what their pages say.
#![cfg(feature = "cli")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    fs,
    io::{BufRead, BufReader, Lines},
    net::{TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Pages of the guide, in the order in which it names them.
const PAGES: &[&str] =
    &["start", "entity", "shard", "ask", "ordering", "delivery", "moves", "failure", "versions", "life", "testing", "configuration"];

/// Blocks of code as a reader sees them: what stands behind the three backticks, and the lines below without those that are hidden.
fn blocks(markdown: &str) -> Vec<(&str, String)> {
    let (mut blocks, mut open): (Vec<(&str, String)>, bool) = (vec![], false);
    for line in markdown.lines() {
        match (line.strip_prefix("```"), open) {
            (Some(kind), false) => blocks.push((kind, String::new())),
            (None, true) if line != "#" && !line.starts_with("# ") => {
                let (_, text) = blocks.last_mut().unwrap();
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
        open ^= line.starts_with("```");
    }
    blocks
}

/// The first program of a page, and what it is said to print.
fn program(page: &str) -> (String, String) {
    let markdown = fs::read_to_string(format!("{ROOT}/src/guide/{page}.md")).unwrap();
    let blocks = blocks(&markdown);
    let at = blocks.iter().position(|(kind, _)| kind.is_empty()).unwrap_or_else(|| panic!("{page} has no program"));
    let prints = blocks[at..].iter().find(|(kind, _)| *kind == "text").unwrap_or_else(|| panic!("{page} does not say what it prints"));
    (blocks[at].1.clone(), prints.1.clone())
}

/// Asks for what was not built in.
const NO_SURFACE: &str = "fn main() {
    let node = wingbeat::Cluster::builder(\"walk\").listen(\"127.0.0.1:0\".parse().unwrap());
    println!(\"{}\", node.admin(\"127.0.0.1:0\".parse().unwrap()).start().unwrap_err());
}
";

/// The crate of the new user, made once. It is none of this workspace.
fn new_crate() -> &'static Path {
    static MADE: LazyLock<PathBuf> = LazyLock::new(make_crate);
    &MADE
}

fn make_crate() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("walk");
    let bin = dir.join("src/bin");
    drop(fs::remove_dir_all(&bin));
    fs::create_dir_all(&bin).unwrap();
    let manifest = format!(
        "[package]\nname = \"walk\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n[profile.dev]\ndebug = false\n\n[profile.abort]\ninherits = \"dev\"\npanic = \"abort\"\n\n\
         [dependencies]\n\
         wingbeat = {{ path = {ROOT:?}, default-features = false }}\nserde = {{ version = \"1\", features = [\"derive\"] }}\n"
    );
    fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    fs::copy(format!("{ROOT}/Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    for page in PAGES {
        fs::write(bin.join(format!("{page}.rs")), program(page).0).unwrap();
    }
    fs::write(bin.join("no_surface.rs"), NO_SURFACE).unwrap();
    // One line is another.
    let real = program("testing").0.replace("= World::simulated(3)", "= World::real(3)");
    fs::write(bin.join("testing_real.rs"), real).unwrap();
    let readme = fs::read_to_string(format!("{ROOT}/README.md")).unwrap();
    for (n, (_, text)) in blocks(&readme).iter().filter(|(kind, _)| *kind == "rust").enumerate() {
        fs::write(bin.join(format!("readme{}.rs", n + 1)), text).unwrap();
    }
    dir
}

fn cargo(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO"));
    // Everything was fetched to build this test.
    command.args(args).arg("--offline").current_dir(dir).env("CARGO_TARGET_DIR", dir.join("target")).env_remove("CARGO_ENCODED_RUSTFLAGS");
    let output = command.output().unwrap();
    assert!(output.status.success(), "cargo {args:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn the_readme_and_every_page_of_the_guide_can_be_followed_in_a_new_crate() {
    let dir = new_crate();
    let built = String::from_utf8(cargo(dir, &["build", "--bins"]).stderr).unwrap();
    assert!(!built.contains("warning"), "{built}");
    for bin in PAGES.iter().map(|page| (*page, Some(program(page).1))).chain([("readme1", None), ("readme2", None)]) {
        let run = Command::new(dir.join("target/debug").join(bin.0)).env("RUST_BACKTRACE", "0").output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{}: {:?}\n{out}{err}", bin.0, run.status);
        if let Some(prints) = bin.1 {
            assert_eq!(out, prints, "{}", bin.0);
        }
    }
    let refused = Command::new(dir.join("target/debug/no_surface")).output().unwrap();
    let refused = String::from_utf8_lossy(&refused.stdout);
    assert!(refused.contains("E-CFG-015 admin.listen: this program was built without the HTTP surface"), "{refused}");
    let tested = cargo(dir, &["test", "--bin", "testing", "--bin", "testing_real"]);
    let tested = String::from_utf8_lossy(&tested.stdout);
    assert_eq!(tested.matches("2 passed; 0 failed").count(), 2, "{tested}");
}

#[test]
fn a_test_of_the_guide_is_short() {
    let page = program("testing").0;
    let tests = page.split("#[test]").skip(1).map(|test| test.lines().skip(1).take_while(|line| !line.starts_with("    }")).count() + 1);
    assert!(tests.clone().count() == 2 && tests.clone().all(|lines| lines < 20), "{:?}", tests.collect::<Vec<_>>());
    assert_eq!(page.matches("= World::simulated(3)").count(), 1);
}

/// A program of the guide that stays.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts `bin` at `addr`, as a member of the cluster of `seed`. What it says before it stays.
    fn start(dir: &Path, bin: &str, addr: &str, seed: Option<&str>) -> (Self, Vec<String>) {
        let mut command = Command::new(dir.join("target/debug").join(bin));
        let mut child = command.arg(addr).args(seed).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = vec![];
        loop {
            match lines.next() {
                Some(Ok(line)) if line.contains("is up; Ctrl-C") => return (Self { child, lines }, said),
                Some(Ok(line)) => said.push(line),
                _ => panic!("{bin} at {addr} ended: {said:?}"),
            }
        }
    }

    fn leave(mut self) {
        assert!(Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap().success());
        while self.lines.next().is_some() {}
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two programs that were built from two pages of the guide: the second is a later release of the first.
#[test]
fn two_releases_of_the_guides_program_run_in_one_cluster_in_both_directions() {
    let dir = new_crate();
    cargo(dir, &["build", "--bin", "start", "--bin", "versions"]);
    let ports = [0; 4].map(|_| free_port());
    let at = |n: usize| format!("127.0.0.1:{}", ports[n]);
    let departed = |n: u32| format!("N14228 has departed {n} times, the last time from EWR");

    let (old, said) = Running::start(dir, "start", &at(0), None);
    assert_eq!(said, [departed(1)]);
    // Rolled out: the newer one joins, wherever the plane lives at that moment; then the older one leaves, and all that is there is its plane.
    let (new, said) = Running::start(dir, "versions", &at(1), Some(&at(0)));
    assert_eq!(said[0], departed(2));
    assert!(["nobody there knows about delays", "5 minutes late in all"].contains(&said[1].as_str()), "{said:?}");
    old.leave();
    // Rolled back: the plane goes from the newer one to the older one.
    let (old, said) = Running::start(dir, "start", &at(2), Some(&at(1)));
    assert_eq!(said, [departed(3)]);
    new.leave();
    let (new, said) = Running::start(dir, "versions", &at(3), Some(&at(2)));
    assert_eq!(said[0], departed(4));
    old.leave();
    let (last, said) = Running::start(dir, "versions", &at(0), Some(&at(3)));
    assert_eq!(said[0], departed(5));
    assert!(said[1].ends_with(" minutes late in all"), "{said:?}");
    [new, last].into_iter().for_each(drop);
}

/// Free for TCP and UDP, below those that systems give to outgoing connections.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = 10_000 + (std::process::id() % 15_000) as u16;
    let mut ports = std::iter::repeat_with(|| begin + NEXT.fetch_add(7, Ordering::Relaxed) % 5000);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok() && UdpSocket::bind(("127.0.0.1", *port)).is_ok();
    ports.find(is_free).unwrap()
}

// failures: row 45
#[test]
fn a_program_whose_panics_abort_is_told_so_when_its_node_starts() {
    let dir = new_crate();
    cargo(dir, &["build", "--bin", "readme1", "--profile", "abort"]);
    let run = Command::new(dir.join("target/abort/readme1")).output().unwrap();
    assert_eq!((run.status.code(), String::from_utf8_lossy(&run.stderr).trim_end()), (Some(1), "Error: PanicAbort"));
}

#[test]
fn every_page_of_the_guide_is_walked() {
    let pages = fs::read_dir(format!("{ROOT}/src/guide")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<String> = pages
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    pages.sort();
    let mut walked: Vec<_> = PAGES.iter().map(|page| (*page).to_owned()).collect();
    walked.sort();
    assert_eq!(pages, walked);
    // Each says what holds and what does not.
    for page in PAGES {
        let text = fs::read_to_string(format!("{ROOT}/src/guide/{page}.md")).unwrap();
        assert!(text.contains("\n# Guaranteed\n") && text.contains("\n# Not guaranteed\n"), "{page}");
    }
}
