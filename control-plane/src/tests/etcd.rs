//! A real etcd on loopback, started by the test.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use crate::{Etcd, EtcdOptions, Store, store::Revision};

pub struct Server {
    process: Option<Child>,
    data: PathBuf,
    endpoint: String,
    peer: String,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

impl Server {
    pub fn start() -> Self {
        let (client, peer) = (free_port(), free_port());
        let data = std::env::temp_dir().join(format!("rein-etcd-{}-{client}", std::process::id()));
        let endpoint = format!("http://127.0.0.1:{client}");
        let mut server = Server { process: None, data, endpoint, peer: format!("http://127.0.0.1:{peer}") };
        server.resume();
        server
    }

    pub fn store(&self) -> Arc<dyn Store> {
        let options = EtcdOptions { endpoints: vec![self.endpoint.clone()], ..EtcdOptions::default() };
        Arc::new(Etcd::new(options).expect("an endpoint"))
    }

    /// Restarts on its existing data, if any.
    pub fn resume(&mut self) {
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(&self.data)
            .args(["--listen-client-urls", &self.endpoint, "--advertise-client-urls", &self.endpoint])
            .args(["--listen-peer-urls", &self.peer, "--initial-advertise-peer-urls", &self.peer])
            .args(["--initial-cluster", &format!("default={}", self.peer), "--log-level", "error", "--unsafe-no-fsync"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.process = Some(child.expect("etcd is installed (make test installs it)"));
    }

    /// Compacts the changes up to a revision.
    pub async fn compact(&self, revision: Revision) {
        let mut client = etcd_client::Client::connect([&self.endpoint], None).await.expect("an endpoint");
        client.compact(revision as i64, None).await.expect("a revision that there is");
    }

    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().and_then(|()| process.wait()).expect("etcd ends");
        }
    }

    pub fn lose_everything(&mut self) {
        self.stop();
        std::fs::remove_dir_all(&self.data).expect("etcd's data");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        // It may not have written any data.
        let _ = std::fs::remove_dir_all(&self.data);
    }
}
