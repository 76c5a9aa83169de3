//! Which peers are accepted and rejected, and with what errors. The tests make their certificates, so that none
//! expires.

mod ranks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rein_proto::internal::{InfoRequest, engine_client::EngineClient};
use rein_worker::EngineOptions;
use rein_worker::sim::{Sim, SimOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

use super::*;

/// A CA of the test.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// Chain and key, in PEM.
    fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &self.issuer).expect("signed").pem(), key.serialize_pem())
    }

    /// A process of the cluster with this name in its certificate.
    pub fn peer(&self, name: &str) -> (Dir, Peers) {
        self.peer_with(name, |_| {})
    }

    fn peer_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> (Dir, Peers) {
        let dir = Dir::new();
        let (cert, key) = self.sign(&[name], change);
        let mut args = dir.peer_args(&self.pem, &cert, &key);
        args.peer_name = name.into();
        // At a time at which its certificate is valid: the peers under test do not check themselves.
        let clocks: [peer::Clock; 3] = [UnixTime::now, || years_since_1970(49), || years_since_1970(2031)];
        let opened = clocks.into_iter().find_map(|clock| Peers::open_at(&args, clock).ok());
        let peers = opened.expect("right").expect("asked for");
        (dir, peers)
    }
}

fn years_since_1970(years: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(years * 365 * 86_400 + years / 4 * 86_400))
}

/// A directory that is removed after the test.
pub struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("rein-tls-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Dir(dir)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    fn peer_args(&self, ca: &str, cert: &str, key: &str) -> PeerArgs {
        PeerArgs {
            peer_ca: Some(self.file("ca.pem", ca)),
            peer_cert: Some(self.file("cert.pem", cert)),
            peer_key: Some(self.file("key.pem", key)),
            peer_name: "rein-peer".into(),
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Accepts one connection, and echoes one byte.
async fn echo(tls: ServerTls) -> (SocketAddr, tokio::task::JoinHandle<std::io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let serving = tokio::spawn(async move {
        let mut socket = tls.accept(listener.accept().await?.0).await?;
        let byte = socket.read_u8().await?;
        socket.write_u8(byte).await?;
        socket.flush().await
    });
    (address, serving)
}

/// Connects two peers. Returns the result of each side.
async fn meet(client: &Peers, server: &Peers) -> [Result<(), String>; 2] {
    let (address, serving) = echo(server.server()).await;
    let uri = format!("http://{address}").parse().expect("an address");
    let called = async {
        let mut stream = client.clone().connect(uri).await?.into_inner();
        stream.write_u8(7).await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    let called = called.await.map(|byte| assert_eq!(byte, 7)).map_err(|error| error.to_string());
    [called, serving.await.expect("no panic").map_err(|error| error.to_string())]
}

#[tokio::test]
async fn only_peers_with_the_same_authority_and_name_connect() {
    let (ours, theirs, forged) = (Authority::new("ours"), Authority::new("theirs"), Authority::new("ours"));
    let (_a, a) = ours.peer("rein-peer");
    let (_b, b) = ours.peer("rein-peer");
    assert_eq!(meet(&a, &b).await, [Ok(()), Ok(())]);

    // Another CA with the right name, another name under the same CA, and certificates that are expired or not yet
    // valid, in both roles.
    let (_c, other_authority) = theirs.peer("rein-peer");
    let (_h, forgery) = forged.peer("rein-peer");
    let (_d, other_name) = ours.peer("rein-other");
    let over = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    let (_e, expired) = ours.peer_with("rein-peer", over);
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(4000, 1, 1);
    let (_f, early) = ours.peer_with("rein-peer", early);
    for (stranger, why) in [
        (&other_authority, "UnknownIssuer"),
        (&forgery, "BadSignature"),
        (&other_name, "rein-"),
        (&expired, "xpired"),
        (&early, "not valid yet"),
    ] {
        let [called, served] = meet(stranger, &a).await;
        assert!(called.is_err() && served.is_err(), "{why}: accepted as a client");
        let errors = [called, served].map(Result::unwrap_err);
        assert!(errors.iter().any(|error| error.contains(why)), "{errors:?}");
        let [called, served] = meet(&a, stranger).await;
        assert!(called.is_err() && served.is_err(), "{why}: accepted as a server");
    }
    // A peer that differs only in a valid expiry time is accepted.
    let (_g, same) = ours.peer_with("rein-peer", |params| params.not_after = date_time_ymd(4000, 1, 1));
    assert_eq!(meet(&same, &a).await, [Ok(()), Ok(())]);
}

/// Checks the name alone: one CA signs all certificates.
#[tokio::test]
async fn the_server_rejects_a_client_without_the_name() {
    let ours = Authority::new("ours");
    let (_a, server) = ours.peer("rein-peer");
    let (cert, key) = ours.sign(&["somebody.example"], |_| {});
    let files = [ours.pem.clone(), cert, key].map(String::into_bytes);
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().expect("both");
    let builder = builder.with_root_certificates(authorities(&files, 0).expect("an authority"));
    let (chain, key) = (certificates(&files, 1).expect("PEM"), private_key(&files, 2).expect("PEM"));
    let named = builder.clone().with_client_auth_cert(chain, key).expect("they match");
    for (config, why) in [(named, "rein-peer"), (builder.with_no_client_auth(), "no certificate")] {
        let (address, serving) = echo(server.server()).await;
        let name = ServerName::try_from("rein-peer").expect("a name");
        let socket = TcpStream::connect(address).await.expect("it listens");
        let called = async {
            let mut stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
            stream.write_u8(7).await?;
            stream.read_u8().await
        };
        assert!(called.await.is_err(), "{why}");
        let refused = serving.await.expect("no panic").expect_err("refused").to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

#[tokio::test]
async fn a_client_without_tls_gets_no_data_from_a_peer() {
    let (_dir, server) = Authority::new("ours").peer("rein-peer");
    let (address, serving) = echo(server.server()).await;
    let mut socket = TcpStream::connect(address).await.expect("it listens");
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sent");
    assert!(serving.await.expect("no panic").is_err());
    let mut received = Vec::new();
    // At most an alert, then the end.
    let _ = socket.read_to_end(&mut received).await;
    assert!(received.len() <= 7, "{received:?}");
}

#[tokio::test]
async fn grpc_works_over_mutual_tls() {
    let ours = Authority::new("ours");
    let (_a, client) = ours.peer("rein-peer");
    let (_b, server) = ours.peer("rein-peer");
    let engine = rein_worker::start(Box::new(Sim::new(SimOptions::default())), EngineOptions::default());
    let app = tonic::service::Routes::new(engine.into_server()).prepare().into_axum_router();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let tls = server.server();
    let serving = tokio::spawn(async move {
        let socket = tls.accept(listener.accept().await?.0).await?;
        let service = TowerToHyperService::new(app);
        let served = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
        served.map_err(std::io::Error::other)
    });
    let endpoint = tonic::transport::Endpoint::try_from(format!("http://{address}")).expect("an address");
    let channel = client.channel(&endpoint);
    let info = EngineClient::new(channel).info(InfoRequest::default()).await.expect("an answer").into_inner();
    assert_eq!(info.kind, "sim");
    serving.await.expect("no panic").expect("a clean end");
}

#[tokio::test]
async fn a_new_authority_replaces_the_old_one() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (_a, client) = old.peer("rein-peer");
    let (dir, server) = old.peer("rein-peer");
    assert_eq!(meet(&client, &server).await, [Ok(()), Ok(())]);
    let (cert, key) = new.sign(&["rein-peer"], |_| {});
    // While the new files do not match, the old ones stay in use.
    dir.file("cert.pem", &cert);
    server.configs.refresh();
    assert_eq!(meet(&client, &server).await, [Ok(()), Ok(())]);
    dir.peer_args(&new.pem, &cert, &key);
    server.configs.refresh();
    assert!(meet(&client, &server).await.iter().all(Result::is_err));
    let (_b, renewed) = new.peer("rein-peer");
    assert_eq!(meet(&renewed, &server).await, [Ok(()), Ok(())]);
}

#[test]
fn errors_name_the_option_and_the_file() {
    let ours = Authority::new("ours");
    let (dir, (cert, key)) = (Dir::new(), ours.sign(&["rein-peer", "localhost"], |_| {}));
    let (_, other_key) = ours.sign(&["rein-peer"], |_| {});
    let fails = |change: &dyn Fn(&mut PeerArgs)| {
        let mut args = dir.peer_args(&ours.pem, &cert, &key);
        change(&mut args);
        Peers::open(&args).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(fails(&|_| {}), "");
    let error = fails(&|args| args.peer_ca = None);
    assert_eq!(error, "--peer-cert needs --peer-ca");
    let error = fails(&|args| args.peer_name = "10.0.0.1".into());
    assert!(error.starts_with("--peer-name: '10.0.0.1' is not a DNS name"), "{error}");
    let error = fails(&|args| args.peer_key = Some(dir.0.join("none.pem")));
    assert!(error.starts_with("--peer-key: cannot read ") && error.contains("none.pem"), "{error}");
    for (flag, text, what) in [
        ("--peer-ca", "", "holds no certificate"),
        ("--peer-cert", "hello", "holds no certificate"),
        ("--peer-cert", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n", "is not PEM"),
        ("--peer-key", cert.as_str(), "holds no private key"),
        ("--peer-key", other_key.as_str(), "keys may not be consistent"),
    ] {
        let bad = dir.file("bad.pem", text);
        let error = fails(&|args| {
            let option = match flag {
                "--peer-ca" => &mut args.peer_ca,
                "--peer-cert" => &mut args.peer_cert,
                _ => &mut args.peer_key,
            };
            *option = Some(bad.clone());
        });
        assert!(
            error.starts_with(&format!("{flag}: ")) && error.contains("bad.pem") && error.contains(what),
            "{error}"
        );
        assert!(!error.contains("PRIVATE"), "{error}");
    }
    let error = fails(&|args| args.peer_name = "other-name".into());
    assert!(error.starts_with("--peer-cert: ") && error.contains("other-name"), "{error}");

    let public = |cert, key| TlsArgs { tls_cert: cert, tls_key: key }.listener(HTTP);
    assert!(public(None, None).expect("nothing asked for").is_none());
    let error = public(Some(dir.file("c.pem", &cert)), None).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("--tls-cert needs --tls-key"));
    let tls = public(Some(dir.file("c.pem", &cert)), Some(dir.file("k.pem", &key))).expect("right").expect("asked");
    assert_eq!(tls.config().alpn_protocols, [HTTP]);
}

#[test]
fn a_process_rejects_its_own_certificate_if_its_peers_would() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let dir = Dir::new();
    let fails = |signer: &Authority, change: &dyn Fn(&mut CertificateParams)| {
        let (cert, key) = signer.sign(&["rein-peer"], change);
        let error = Peers::open(&dir.peer_args(&ours.pem, &cert, &key)).err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        assert!(error.is_empty() || error.starts_with("--peer-cert: ") && error.contains("cert.pem: "), "{error}");
        error
    };
    assert_eq!(fails(&ours, &|_| {}), "");
    assert_eq!(fails(&ours, &|params| params.extended_key_usages.clear()), "");
    let over = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(4000, 1, 1);
    let server =
        |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let client =
        |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    type Change<'a> = &'a dyn Fn(&mut CertificateParams);
    let cases: [(&Authority, Change, &str); 6] = [
        (&theirs, &|_| {}, "not signed by a CA in --peer-ca"),
        (&Authority::new("ours"), &|_| {}, "does not match its issuer"),
        (&ours, &over, "expired on 2020-01-01 00:00:00 UTC"),
        (&ours, &early, "not valid before 4000-01-01 00:00:00 UTC"),
        (&ours, &server, "serverAuth and clientAuth"),
        (&ours, &client, "serverAuth and clientAuth"),
    ];
    for (signer, change, why) in cases {
        let error = fails(signer, change);
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn a_public_certificate_must_be_valid_when_it_is_read() {
    let (ours, dir) = (Authority::new("ours"), Dir::new());
    let open = |chain: &[&str], key: &str| {
        let (cert, key) = (dir.file("c.pem", &chain.concat()), dir.file("k.pem", key));
        TlsArgs { tls_cert: Some(cert), tls_key: Some(key) }.listener(HTTP)
    };
    let over = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(4000, 1, 1);
    let (expired, expired_key) = ours.sign(&["localhost"], over);
    let (future, future_key) = ours.sign(&["localhost"], early);
    for (cert, key, why) in [
        (&expired, &expired_key, "c.pem: the certificate expired on 2020-01-01 00:00:00 UTC; replace it"),
        (&future, &future_key, "c.pem: the certificate is not valid before 4000-01-01 00:00:00 UTC"),
    ] {
        let error = open(&[cert], key).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("--tls-cert: ") && error.contains(why), "{error}");
    }
    // Clients may trust an expired issuer by another path. The metric shows it.
    let (cert, key) = ours.sign(&["localhost"], |_| {});
    let tls = open(&[&cert, &expired], &key).expect("right").expect("asked for");
    assert!(tls.certificate.seconds_left().is_some_and(|left| left < 0));
}

#[test]
fn the_expiry_time_follows_the_certificate_in_the_file() {
    let ours = Authority::new("ours");
    let (dir, peers) = ours.peer_with("rein-peer", |params| params.not_after = date_time_ymd(2040, 1, 1));
    let certificate = peers.certificate();
    let left = certificate.seconds_left().expect("it expires");
    assert!(left > 0, "{left}");
    let (cert, key) = ours.sign(&["rein-peer"], |params| params.not_after = date_time_ymd(2041, 1, 1));
    dir.peer_args(&ours.pem, &cert, &key);
    peers.configs.refresh();
    let later = certificate.seconds_left().expect("it expires");
    assert!((later - left - 366 * 86_400).abs() < 10, "{left} s, then {later} s");
    // An expired certificate does not replace the one in use.
    let (cert, key) = ours.sign(&["rein-peer"], |params| params.not_after = date_time_ymd(2020, 1, 1));
    dir.peer_args(&ours.pem, &cert, &key);
    peers.configs.refresh();
    assert!(certificate.seconds_left().expect("it expires") > left);
}
