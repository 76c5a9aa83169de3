//! Commands that are given a GGUF file, and the model directory that they make of it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::process::{Server, rein, repository};

fn fixture(name: &str, file: &str) -> PathBuf {
    repository().join("tests/fixtures/models").join(name).join(file)
}

fn one_file() -> PathBuf {
    fixture("gguf_llama", "model.gguf")
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("rein-gguf-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// `rein` with its cache here.
    fn rein(&self) -> Command {
        let mut command = rein();
        command.env("XDG_CACHE_HOME", self.path("cache")).env("TMPDIR", self.path("tmp"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.rein().args(args).output().expect("rein runs")
    }

    /// The model directories in the cache.
    fn made(&self) -> Vec<PathBuf> {
        directories_in(&self.path("cache/rein/gguf"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The directories in those in `parent`.
fn directories_in(parent: &Path) -> Vec<PathBuf> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        entries.map(|entry| entry.expect("entry").path()).collect()
    };
    let mut made: Vec<PathBuf> = list(parent).iter().flat_map(|dir| list(dir)).collect();
    made.sort();
    made
}

#[track_caller]
fn stdout(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{out}{error}");
    out
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

/// Log-probabilities of the tokens of the fixture's reference, compared with transformers'.
fn assert_score(scratch: &Scratch, file: &Path, reference: &Path) {
    let reference: Value = serde_json::from_slice(&fs::read(reference).expect("reference")).expect("json");
    let tokens = scratch.path("tokens.json");
    fs::write(&tokens, reference["tokens"].to_string()).expect("writes");
    let args = ["score", "--model", utf8(file), "--tokens", utf8(&tokens), "--dtype", "f32"];
    let scored: Value = serde_json::from_str(&stdout(&scratch.run(&args))).expect("json");
    let (ours, theirs) =
        (scored["logprobs"].as_array().expect("list"), reference["logprobs"].as_array().expect("list"));
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs).skip(1) {
        let (ours, theirs) = (ours.as_f64().expect("number"), theirs.as_f64().expect("number"));
        assert!((ours - theirs).abs() < 1e-3, "{}: {ours} and {theirs}", file.display());
    }
}

#[test]
fn commands_take_a_file_and_make_its_directory_once() {
    let scratch = Scratch::new();
    let file = one_file();
    let table = stdout(&scratch.run(&["check", "--model", utf8(&file)]));
    assert!(table.contains("hermes") && table.contains("read back") && !table.contains("BROKEN"), "{table}");
    let [made] = &scratch.made()[..] else { panic!("{:?}", scratch.made()) };
    assert_eq!(made.file_name(), file.file_stem());
    assert_eq!(fs::read_link(made.join("model.gguf")).expect("a link"), fs::canonicalize(&file).expect("a file"));
    let mut names: Vec<_> = fs::read_dir(made).expect("lists").map(|e| e.expect("entry").file_name()).collect();
    names.sort();
    let expected = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.gguf",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names, expected);
    let written = |name: &str| fs::metadata(made.join(name)).map(|meta| (meta.ino(), meta.mtime_nsec())).expect(name);
    let before = expected.map(written);

    let text = fs::read(made.join("generation_config.json")).expect("generation_config.json");
    let defaults: Value = serde_json::from_slice(&text).expect("json");
    for (name, value) in [("temperature", json!(0.6)), ("top_k", json!(20)), ("top_p", json!(0.95))] {
        assert_eq!(defaults[name], value, "{name}");
    }

    let table = stdout(&scratch.run(&["capacity", utf8(&file)]));
    assert!(table.contains("LlamaForCausalLM, 2 layers"), "{table}");
    assert_score(&scratch, &file, &fixture("gguf_llama", "reference.json"));
    // The directory is a model like any other.
    assert_score(&scratch, made, &fixture("gguf_llama", "reference.json"));
    assert_eq!(scratch.made(), vec![made.clone()]);
    assert_eq!(expected.map(written), before);
}

#[test]
fn a_model_in_two_files_is_given_by_the_first() {
    let scratch = Scratch::new();
    let [first, second] = [1, 2].map(|n| fixture("gguf_qwen3_moe", &format!("model-0000{n}-of-00002.gguf")));
    assert_score(&scratch, &first, &fixture("gguf_qwen3_moe", "reference.json"));
    let [made] = &scratch.made()[..] else { panic!("{:?}", scratch.made()) };
    assert_eq!(made.file_name(), Some("model".as_ref()));
    for part in [first, second] {
        let link = made.join(part.file_name().expect("a name"));
        assert_eq!(fs::read_link(link).expect("a link"), fs::canonicalize(part).expect("a file"));
    }
}

#[test]
fn prompts_are_rendered_and_tokenized_as_the_file_says() {
    let scratch = Scratch::new();
    let input = scratch.path("input");
    fs::write(&input, json!({"messages": [{"role": "user", "content": "hi the there"}]}).to_string()).expect("writes");
    let mut command = scratch.rein();
    command.args(["render", "--model"]).arg(one_file()).stdin(fs::File::open(input).expect("opens"));
    let rendered: Value = serde_json::from_str(&stdout(&command.output().expect("rein runs"))).expect("json");
    assert_eq!(rendered["prompt"], "<|im_start|>user\nhi the there<|im_end|>\n<|im_start|>assistant\n");
    // 256 bytes, 16 merges (260 "er", 258 " the", 262 "re"), then the special tokens.
    let user = [273, 117, 115, 260, 10, 104, 105, 258, 258, 262, 274, 10];
    let assistant = [273, 97, 115, 115, 105, 115, 116, 97, 110, 116, 10];
    assert_eq!(rendered["token_ids"], json!([&user[..], &assistant].concat()));
}

#[test]
fn the_server_takes_a_file_and_names_the_model_after_it() {
    let scratch = Scratch::new();
    let file = scratch.path("Tiny-Q4_0.gguf");
    fs::copy(one_file(), &file).expect("copies");
    let server = Server::serving(scratch.rein(), &file, &[]);
    let models = server.request("GET", "/v1/models", "").json();
    assert_eq!(models["data"][0]["id"], "Tiny-Q4_0", "{models}");
    let messages = json!([{"role": "user", "content": "hi"}]);
    let answer = server.post("/v1/chat/completions", json!({"messages": messages, "max_tokens": 8, "temperature": 0}));
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert!(answer["usage"]["completion_tokens"].as_u64().is_some_and(|n| n > 0), "{answer}");
    server.signal("TERM");
    let (status, rest) = server.wait();
    assert!(status.success() && rest.contains("(LlamaForCausalLM)"), "{status} {rest}");
}

#[test]
fn the_directory_is_made_elsewhere_if_the_cache_cannot_be_written() {
    let scratch = Scratch::new();
    fs::write(scratch.path("cache"), "not a directory").expect("writes");
    stdout(&scratch.run(&["capacity", utf8(&one_file())]));
    assert_eq!(directories_in(&scratch.path("tmp/rein/gguf")).len(), 1);

    fs::write(scratch.path("file"), "").expect("writes");
    let mut command = scratch.rein();
    command.env("TMPDIR", scratch.path("file")).args(["capacity", utf8(&one_file())]);
    let output = command.output().expect("rein runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("model.gguf: cannot write below ") && error.contains("file/rein/gguf: "), "{error}");
}

#[test]
fn errors_name_the_file_and_what_is_wrong_with_it() {
    let scratch = Scratch::new();
    let whole = fs::read(one_file()).expect("the fixture");
    let part = |n: u32| format!("model-0000{n}-of-00002.gguf");
    for n in [1, 2] {
        fs::copy(fixture("gguf_qwen3_moe", &part(n)), scratch.path(&part(n))).expect("copies");
    }
    fs::create_dir(scratch.path("alone")).expect("a directory");
    let alone = format!("alone/{}", part(1));
    fs::copy(scratch.path(&part(1)), scratch.path(&alone)).expect("copies");
    // The first value of the metadata, which has the same number of letters.
    let llama = whole.windows(5).position(|word| word == b"llama").expect("the architecture");
    let gemma = [&whole[..llama], b"gemma", &whole[llama + 5..]].concat();
    let write = |name: &str, bytes: &[u8]| fs::write(scratch.path(name), bytes).expect("writes");
    write("page.gguf", b"<html>not found</html>");
    write("notes.txt", b"no model");
    write("short.gguf", &whole[..1000]);
    write("gemma.gguf", &gemma);
    let first_part = format!("is part 2 of 2; give the first part, {}", part(1));
    let cases = [
        ("page.gguf", "page.gguf: magic: must be \"GGUF\", got \"<htm\""),
        ("notes.txt", "notes.txt is a file; expected a model directory or a GGUF file"),
        ("short.gguf", "truncated"),
        ("gemma.gguf", "gemma.gguf: general.architecture: must be one of llama, "),
        (&part(2), &first_part),
        (&alone, &format!("alone/{}: No such file", part(2))),
        ("missing.gguf", "missing.gguf: no such directory"),
    ];
    for (name, expected) in cases {
        let path = scratch.path(name);
        for command in ["check", "render"] {
            let args = [command, "--model", utf8(&path)];
            let output = scratch.run(&args);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
            assert!(error.contains(expected) && error.lines().count() == 1, "{args:?}: {error}");
        }
    }
    assert!(!scratch.path("cache").exists() && !scratch.path("tmp").exists());
}
