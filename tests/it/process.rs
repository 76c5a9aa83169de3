//! A `rein` process under test, and a plain HTTP client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn demo_model() -> PathBuf {
    repository().join("models/demo")
}

pub fn rein() -> Command {
    let binary = std::env::var_os("REIN_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_rein").into());
    let mut command = Command::new(binary);
    command.env_remove("REIN_CONFIG").env("REIN_LOG", "warn");
    command
}

pub fn run(args: &[&str]) -> Output {
    rein().args(args).output().expect("rein runs")
}

pub struct Server {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
}

impl Server {
    /// Serves the demo model on free ports; returns when both listeners are announced.
    pub fn start(extra: &[&str]) -> Server {
        Server::of(rein(), extra)
    }

    /// The same with a given command.
    pub fn of(command: Command, extra: &[&str]) -> Server {
        Server::serving(command, &demo_model(), extra)
    }

    /// The same with a given model.
    pub fn serving(mut command: Command, model: &Path, extra: &[&str]) -> Server {
        let mut child = command
            .args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model"])
            .arg(model)
            .args(extra)
            .stdout(Stdio::piped())
            .spawn()
            .expect("rein starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut next = |prefix: &str| -> SocketAddr {
            let mut line = String::new();
            output.read_line(&mut line).expect("a line");
            let address =
                line.trim().strip_prefix(prefix).unwrap_or_else(|| panic!("{prefix:?} expected, got {line:?}"));
            address.parse().expect("an address")
        };
        let http = next("rein: http listening on http://");
        let grpc = next("rein: grpc listening on ");
        Server { child, output, http, grpc }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for the end; returns the status and the remaining output.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("output");
        (self.child.wait().expect("ends"), rest)
    }

    pub fn request(&self, method: &str, path: &str, body: &str) -> Response {
        read_response(self.send(method, path, body))
    }

    pub fn post(&self, path: &str, body: serde_json::Value) -> Response {
        self.request("POST", path, &body.to_string())
    }

    /// Sends a request and leaves its answer unread.
    pub fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        send(self.http, method, path, "", body)
    }
}

/// Posts with additional headers, each with its line ending, and leaves the answer unread.
pub fn request_with(to: SocketAddr, path: &str, headers: &str, body: &str) -> TcpStream {
    send(to, "POST", path, headers, body)
}

pub fn get(from: SocketAddr, path: &str) -> TcpStream {
    send(from, "GET", path, "", "")
}

fn send(to: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(to).expect("connects");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: rein\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}\
         content-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body.as_bytes())).expect("sends");
    socket
}

impl Drop for Server {
    fn drop(&mut self) {
        // After wait() there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Response {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }
}

pub fn read_response(mut socket: TcpStream) -> Response {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).expect("an answer");
    let split = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..split].to_vec()).expect("utf-8 head");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    let body = bytes.split_off(split + 4);
    let body = if head.to_lowercase().contains("transfer-encoding: chunked") { unchunk(&body) } else { body };
    Response { status, head, body: String::from_utf8(body).expect("utf-8 body") }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = body.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&body[..end]).ok().and_then(|s| usize::from_str_radix(s.trim(), 16).ok());
        let size = size.expect("a chunk size");
        if size == 0 {
            break;
        }
        out.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
    }
    out
}
