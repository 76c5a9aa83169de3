use super::*;

struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn replaced_files_are_reloaded_and_invalid_ones_are_ignored() {
    let dir = Dir(std::env::temp_dir().join(format!("rein-reloaded-{}", std::process::id())));
    std::fs::create_dir_all(&dir.0).unwrap();
    let [a, b] = ["a", "b"].map(|name| WatchedFile { flag: "--number", path: dir.0.join(name) });
    let sum = |contents: &[Vec<u8>]| {
        let number = |(file, bytes): (usize, &Vec<u8>)| {
            let text = String::from_utf8_lossy(bytes);
            text.trim().parse::<u32>().map_err(|error| FileProblem::new(file, error))
        };
        contents.iter().enumerate().map(number).sum::<Result<u32, FileProblem>>()
    };
    let open = || HotReloaded::open(vec![a.clone(), b.clone()], sum);
    std::fs::write(&a.path, "1").unwrap();
    let error = open().err().unwrap().to_string();
    assert!(error.starts_with("--number: cannot read ") && error.contains("/b: "), "{error}");
    std::fs::write(&b.path, "x").unwrap();
    let error = open().err().unwrap().to_string();
    assert!(error.ends_with("/b: invalid digit found in string"), "{error}");
    std::fs::write(&b.path, "2").unwrap();
    let reloaded = open().unwrap();
    assert_eq!(*reloaded.get(), 3);
    // Contents are compared, not sizes or dates: this file has the same size and possibly the same date.
    std::fs::write(&b.path, "3").unwrap();
    assert_eq!(*reloaded.refresh(), 4);
    for wrong in ["x", "", "9999999999999"] {
        std::fs::write(&b.path, wrong).unwrap();
        assert_eq!(*reloaded.refresh(), 4, "{wrong}");
    }
    std::fs::remove_file(&b.path).unwrap();
    assert_eq!(*reloaded.refresh(), 4);
    std::fs::write(&b.path, "5").unwrap();
    assert_eq!(*reloaded.refresh(), 6);
    std::fs::write(&b.path, vec![b' '; FILE_BYTES as usize + 1]).unwrap();
    assert_eq!(*reloaded.refresh(), 6);
}

/// Where a network disk hangs, a FIFO shows it: what was read stays in use, and callers do not wait.
#[test]
fn a_file_that_cannot_be_read_holds_nobody() {
    let dir = Dir(std::env::temp_dir().join(format!("rein-fifo-{}", std::process::id())));
    std::fs::create_dir_all(&dir.0).unwrap();
    let file = WatchedFile { flag: "--number", path: dir.0.join("a") };
    let number = |contents: &[Vec<u8>]| Ok(contents[0].len());
    std::fs::write(&file.path, "12").unwrap();
    let reloaded = HotReloaded::open(vec![file.clone()], number).unwrap();
    std::fs::remove_file(&file.path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file.path).status().unwrap();
    assert!(made.success());
    assert_eq!(*reloaded.refresh(), 2);
    let error = HotReloaded::open(vec![file.clone()], number).err().unwrap().to_string();
    assert!(error.ends_with("not a regular file"), "{error}");
    std::fs::remove_file(&file.path).unwrap();
    std::fs::write(&file.path, "123").unwrap();
    // The thread finds it by itself.
    let until = Instant::now() + 5 * INTERVAL;
    while *reloaded.get() != 3 {
        assert!(Instant::now() < until);
        thread::yield_now();
    }
}
