//! Holds the numbers of messages, which are their positions, by a file.

use std::{fmt::Write, fs, io, path::Path};

use crate::EntityType;

/// Fails the test if the messages of `T` no longer have the numbers that the file says: a message's number on the wire is its position in
/// the `messages!` block, so that reordering, removing or inserting makes two versions of a program misunderstand each other.
///
/// Writes the file if it is missing, and extends it by new messages at the end: commit it. Where the environment has `CI`, nothing is
/// written, and a file that lacks something fails the test. What is inside a message is not looked at.
///
/// ```
/// wingbeat::messages! { pub enum PlaneMsg for Plane(String) = "doc.unchanged" { Departed { origin: String }, Tick } }
/// # let dir = std::env::temp_dir().join(format!("wingbeat-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir).unwrap();
/// # let file = dir.join("plane.messages");
/// // let file = "tests/plane.messages";
/// # if std::env::var_os("CI").is_none() {
/// wingbeat::testkit::assert_wire_unchanged::<Plane>(&file);
/// assert!(std::fs::read_to_string(&file).unwrap().ends_with("\n0 Departed\n1 Tick\n"));
/// # }
/// # std::fs::remove_dir_all(&dir).unwrap();
/// ```
///
/// # Panics
/// If a message has another number than in the file, or the file cannot be read or written.
#[track_caller]
pub fn assert_wire_unchanged<T: EntityType>(file: impl AsRef<Path>) {
    check::<T>(file.as_ref(), std::env::var_os("CI").is_none()).unwrap_or_else(|why| panic!("{why}"));
}

fn check<T: EntityType>(file: &Path, may_write: bool) -> Result<(), String> {
    let shown = file.display();
    if T::MESSAGES.is_empty() {
        return Err(format!("`{}` names no messages: `EntityType::MESSAGES` is empty, and only `messages!` fills it", T::TYPE));
    }
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && may_write => String::new(),
        Err(error) => return Err(format!("{shown} cannot be read: {error}; run the test where it may write the file, and commit that")),
    };
    let known: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    if let Some(name) = known.first()
        && *name != T::TYPE
    {
        return Err(format!("{shown} is of `{name}`, not of `{}`: give each type a file of its own", T::TYPE));
    }
    let now: Vec<String> = T::MESSAGES.iter().enumerate().map(|(number, name)| format!("{number} {name}")).collect();
    for (number, was) in known.iter().skip(1).enumerate() {
        match now.get(number) {
            Some(is) if is == was => {}
            Some(is) => {
                return Err(format!(
                    "`{}`: message `{was}` of {shown} is `{is}` now. Numbers are positions: add new messages at the end, and leave a removed one \
                     where it was. If it was only renamed, rename it in the file",
                    T::TYPE
                ));
            }
            None => {
                return Err(format!(
                    "`{}`: message `{was}` of {shown} is gone. Nodes of other versions may still send it: keep it",
                    T::TYPE
                ));
            }
        }
    }
    let new = &now[known.len().saturating_sub(1)..];
    if new.is_empty() {
        return Ok(());
    }
    if !may_write {
        return Err(format!("{shown} lacks {}: run the test outside of CI, which adds it, and commit the file", new.join(", ")));
    }
    let mut text = match known.is_empty() {
        true => format!("# Messages and their numbers on the wire, held by a test: new ones are added at the end.\n{}\n", T::TYPE),
        false => text.trim_end().to_owned() + "\n",
    };
    for line in new {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{line}");
    }
    fs::write(file, text).map_err(|error| format!("{shown} cannot be written: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    mod first {
        crate::messages! { pub enum M for T(u64) = "test.wire" { A, B { n: u64 } -> u64 } }
    }
    mod longer {
        crate::messages! { pub enum M for T(u64) = "test.wire" { A, B { n: u64 } -> u64, C } }
    }
    mod swapped {
        crate::messages! { pub enum M for T(u64) = "test.wire" { B { n: u64 } -> u64, A } }
    }
    mod other {
        crate::messages! { pub enum M for T(u64) = "test.other" { A } }
    }

    struct Dir(std::path::PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("wingbeat-unchanged-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_file_is_written_and_extended_and_then_holds() {
        let dir = Dir::new("grows");
        let file = dir.0.join("t.messages");
        let missing = check::<first::T>(&file, false).unwrap_err();
        assert!(missing.contains("cannot be read"), "{missing}");
        check::<first::T>(&file, true).unwrap();
        check::<first::T>(&file, false).unwrap();
        let lacks = check::<longer::T>(&file, false).unwrap_err();
        assert!(lacks.contains("lacks 2 C"), "{lacks}");
        check::<longer::T>(&file, true).unwrap();
        assert!(fs::read_to_string(&file).unwrap().ends_with("\ntest.wire\n0 A\n1 B\n2 C\n"));
        let gone = check::<first::T>(&file, true).unwrap_err();
        assert!(gone.contains("`2 C`") && gone.contains("is gone"), "{gone}");
    }

    #[test]
    fn what_has_another_number_is_named() {
        let dir = Dir::new("swapped");
        let file = dir.0.join("t.messages");
        check::<first::T>(&file, true).unwrap();
        let before = fs::read_to_string(&file).unwrap();
        let why = check::<swapped::T>(&file, true).unwrap_err();
        assert!(why.contains("message `0 A`") && why.contains("is `0 B` now"), "{why}");
        let why = check::<other::T>(&file, true).unwrap_err();
        assert!(why.contains("is of `test.wire`"), "{why}");
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
    }
}
