//! Mutual TLS between the processes of a cluster, for gRPC and for the links between ranks.
//!
//! A peer is a process whose certificate is signed by the cluster's CA *and* contains the cluster's name
//! (`--peer-name`, `rein-peer` by default). The name is not the address: processes have IP addresses that come and go,
//! and certificates would have to follow them. This is safe because a connection must prove that a process belongs to
//! the cluster, not which process it is: all processes of a cluster have the same rights, and the membership in etcd
//! decides which process has which role. Both sides check CA and name. So a company's CA can be used: its other
//! certificates are rejected, and the names separate two clusters under the same CA.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Instant;

use http::Uri;
use hyper_util::rt::TokioIo;
use rein_kernels::collective::tcp::{ConnectionSide, SecureConnection, TransportStream};
use rein_router::hot_reload::{FileProblem, HotReloaded};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerifier};
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, ClientConnection, ConnectionCommon, DigitallySignedStruct, DistinguishedName,
    Error, ServerConfig, ServerConnection, SideData, SignatureScheme,
};
use tonic::transport::{Channel, Endpoint};

use super::expiry::{self, Validity};
use super::{
    Certificate, GRPC, HANDSHAKE_TIME, PeerArgs, ServerTls, TlsError, all_or_none, authorities, certificates,
    private_key, provider,
};

/// ALPN name of the protocol between ranks. It keeps a gRPC connection from being routed to a rank, and the reverse.
const RANK: &[u8] = b"rein-rank";

/// This process's certificate, and the checks of its peers' certificates. Clones share the files.
#[derive(Clone)]
pub struct Peers {
    pub(super) configs: Arc<HotReloaded<Configs>>,
    name: ServerName<'static>,
}

pub(super) struct Configs {
    grpc: Pair,
    rank: Pair,
    validity: Option<Validity>,
}

/// The clock by which a certificate is valid or not.
pub(super) type Clock = fn() -> UnixTime;

struct Pair {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Peers {
    /// None if these options do not enable mutual TLS.
    pub fn open(args: &PeerArgs) -> Result<Option<Self>, TlsError> {
        Self::open_at(args, UnixTime::now)
    }

    /// `clock` is for the check of this process's own certificate.
    pub(super) fn open_at(args: &PeerArgs, clock: Clock) -> Result<Option<Self>, TlsError> {
        let options = [("--peer-ca", &args.peer_ca), ("--peer-cert", &args.peer_cert), ("--peer-key", &args.peer_key)];
        let Some(sources) = all_or_none(options)? else { return Ok(None) };
        let name = match ServerName::try_from(args.peer_name.clone()) {
            Ok(name @ ServerName::DnsName(_)) => name,
            _ => return Err(TlsError::PeerName(args.peer_name.clone())),
        };
        let expected = name.clone();
        let configs = HotReloaded::open(sources.into(), move |files| configs(files, &expected, clock()))?;
        Ok(Some(Peers { configs: Arc::new(configs), name }))
    }

    /// TLS for a gRPC listener that accepts only peers.
    pub fn server(&self) -> ServerTls {
        let configs = self.configs.clone();
        ServerTls::new(move || configs.get().grpc.server.clone(), self.certificate())
    }

    /// This process's certificate.
    pub fn certificate(&self) -> Certificate {
        let configs = self.configs.clone();
        Certificate::new("peer", "--peer-cert", move || configs.get().validity)
    }

    /// A gRPC channel to a peer, which connects on first use. The endpoint's address starts with `http://`, because
    /// tonic must not add TLS of its own.
    pub fn channel(&self, endpoint: &Endpoint) -> Channel {
        let peers = self.clone();
        endpoint.connect_with_connector_lazy(tower::service_fn(move |uri| peers.clone().connect(uri)))
    }

    pub(super) async fn connect(
        self,
        uri: Uri,
    ) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>> {
        let host = uri.host().ok_or_else(|| io::Error::other("the address has no host"))?;
        let port = uri.port_u16().ok_or_else(|| io::Error::other("the address has no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let connecting = async {
            let socket = tokio::net::TcpStream::connect((host, port)).await?;
            socket.set_nodelay(true)?;
            TlsConnector::from(self.configs.get().grpc.client.clone()).connect(self.name.clone(), socket).await
        };
        match tokio::time::timeout(HANDSHAKE_TIME, connecting).await {
            Ok(connected) => connected.map(TokioIo::new),
            Err(_) => Err(handshake_timeout()),
        }
    }

    /// For the links between ranks.
    pub fn secure(&self) -> SecureConnection {
        let peers = self.clone();
        Arc::new(move |socket, side| {
            let rank = &peers.configs.get().rank;
            match side {
                ConnectionSide::Connects => {
                    let connection = ClientConnection::new(rank.client.clone(), peers.name.clone());
                    handshake(connection.map_err(io::Error::other)?, socket)
                }
                ConnectionSide::Accepts => {
                    let connection = ServerConnection::new(rank.server.clone());
                    handshake(connection.map_err(io::Error::other)?, socket)
                }
            }
        })
    }
}

fn handshake_timeout() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake timed out")
}

/// Performs the handshake before any data is sent, with its own timeout. Later reads may have no timeout, or one that
/// is too short for a handshake.
fn handshake<C, S>(mut connection: C, mut socket: TcpStream) -> io::Result<Box<dyn TransportStream>>
where
    C: DerefMut<Target = ConnectionCommon<S>> + Send + 'static,
    S: SideData + 'static,
{
    let timeouts = (socket.read_timeout()?, socket.write_timeout()?);
    // The whole handshake may take as long as one read.
    let deadline = Instant::now() + timeouts.0.map_or(HANDSHAKE_TIME, |limit| limit.min(HANDSHAKE_TIME));
    while connection.is_handshaking() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(handshake_timeout());
        }
        socket.set_read_timeout(Some(left))?;
        socket.set_write_timeout(Some(left))?;
        if connection.wants_write() {
            connection.write_tls(&mut socket)?;
        } else if connection.read_tls(&mut socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        } else if let Err(error) = connection.process_new_packets() {
            // Sends the TLS alert, if the other side still reads.
            let _ = connection.write_tls(&mut socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }
    let mut link = Link { connection, socket };
    // The last message of the handshake may not have been sent yet.
    link.send()?;
    link.socket.set_read_timeout(timeouts.0)?;
    link.socket.set_write_timeout(timeouts.1)?;
    Ok(Box::new(link))
}

/// TLS over a blocking socket, with or without timeouts. (`rustls::StreamOwned` may read while it writes, and so wait
/// forever in spite of a write timeout.) A timeout loses no data: half a record stays for the next read, and data that
/// `write` has accepted is sent before any other.
struct Link<C> {
    connection: C,
    socket: TcpStream,
}

impl<C, S> Link<C>
where
    C: DerefMut<Target = ConnectionCommon<S>>,
    S: SideData,
{
    fn send(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut self.socket)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

impl<C, S> Read for Link<C>
where
    C: DerefMut<Target = ConnectionCommon<S>>,
    S: SideData,
{
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buf) {
                // No complete record has arrived yet.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            // The reader reports the end of the stream.
            self.connection.read_tls(&mut self.socket)?;
            if let Err(error) = self.connection.process_new_packets() {
                let _ = self.send();
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
}

impl<C, S> Write for Link<C>
where
    C: DerefMut<Target = ConnectionCommon<S>>,
    S: SideData,
{
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send()?;
        let taken = self.connection.writer().write(buf)?;
        match self.send() {
            // The data is accepted, so this must not fail; a lasting error is reported by the next call.
            Err(error) if taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

fn configs(files: &[Vec<u8>], name: &ServerName<'static>, now: UnixTime) -> Result<Configs, FileProblem> {
    const CA: usize = 0;
    const CERT: usize = 1;
    const KEY: usize = 2;
    let roots = Arc::new(authorities(files, CA)?);
    let (chain, key) = (certificates(files, CERT)?, private_key(files, KEY)?);
    let validity = Validity::of(&chain);
    // Checks this process's own certificate as its peers will.
    let own = ParsedCertificate::try_from(&chain[0]).map_err(|error| FileProblem::new(CERT, error))?;
    verify_server_name(&own, name).map_err(|error| FileProblem::new(CERT, error))?;

    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build();
    let as_server = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider()).build();
    let as_server = as_server.map_err(|error| FileProblem::new(CA, error))?;
    let verified = as_server.verify_server_cert(&chain[0], &chain[1..], name, &[], now).map(drop);
    let as_client =
        |verifier: &Arc<dyn ClientCertVerifier>| verifier.verify_client_cert(&chain[0], &chain[1..], now).map(drop);
    let verified = verified.and_then(|()| verifier.as_ref().map_or(Ok(()), as_client));
    verified.map_err(|error| FileProblem::new(CERT, rejection(&error)))?;
    let verifier = Named { signed: verifier.map_err(|error| FileProblem::new(CA, error))?, name: name.clone() };
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(|error| FileProblem::new(CERT, error))?.with_client_cert_verifier(Arc::new(verifier));
    let mut server =
        builder.with_single_cert(chain.clone(), key.clone_key()).map_err(|error| FileProblem::new(KEY, error))?;
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(|error| FileProblem::new(CERT, error))?.with_root_certificates(roots);
    let mut client = builder.with_client_auth_cert(chain, key).map_err(|error| FileProblem::new(KEY, error))?;
    // A resumed session would be accepted by the files of its first handshake, not by the current ones.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    client.resumption = Resumption::disabled();
    let pair = |protocol: &[u8]| {
        let (mut server, mut client) = (server.clone(), client.clone());
        server.alpn_protocols = vec![protocol.to_vec()];
        client.alpn_protocols = vec![protocol.to_vec()];
        Pair { server: Arc::new(server), client: Arc::new(client) }
    };
    Ok(Configs { grpc: pair(GRPC), rank: pair(RANK), validity })
}

/// Why the peers would reject this process's own certificate.
fn rejection(error: &Error) -> String {
    let Error::InvalidCertificate(error) = error else { return error.to_string() };
    let since_1970 = |time: &UnixTime| expiry::at(time.as_secs() as i64);
    match error {
        CertificateError::Expired => "the certificate has expired".into(),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the certificate, or one of its chain, expired on {}", since_1970(not_after))
        }
        CertificateError::NotValidYet => "the certificate is not valid yet".into(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("the certificate, or one of its chain, is not valid before {}", since_1970(not_before))
        }
        CertificateError::UnknownIssuer => {
            "the certificate is not signed by a CA in --peer-ca, directly or through its chain".into()
        }
        CertificateError::BadSignature => {
            "the signature of the certificate does not match its issuer in --peer-ca".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate's extended key usage must allow both serverAuth and clientAuth".into()
        }
        error => format!("the certificate is not valid: {error}"),
    }
}

/// Accepts clients whose certificate is signed by the CA and contains the cluster's name.
#[derive(Debug)]
struct Named {
    signed: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}
