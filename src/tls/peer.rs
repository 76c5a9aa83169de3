//! Mutual TLS between the processes of a cluster: gRPC and the links between ranks.
//!
//! Who is a peer? Whoever holds a certificate that the cluster's authority signed *and* that bears the cluster's name
//! (`--peer-name`, `rein-peer` if nothing is said). The name is not the address: processes are found by IP addresses
//! that come and go, and a certificate per address would have to follow them. That is safe because the question that a
//! connection has to answer is "is this one of us", not "which of us is it": all processes of a cluster trust each
//! other with the same things, and who plays which role is decided by membership, not by the address that was dialled.
//! Both sides check the same two things, so that an authority that signs other things too (a company's) lets none of
//! those in, and two clusters under one authority keep apart by their names.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Instant;

use http::Uri;
use hyper_util::rt::TokioIo;
use rein_kernels::collective::tcp::{ConnectionSide, Secure, Stream};
use rein_router::hot_reload::{Reread, Wrong};
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

/// Names the protocol between ranks in a handshake, so that no gRPC connection can be led to a rank or the other way round.
const RANK: &[u8] = b"rein-rank";

/// What this process shows its peers, and what it asks of them. Clones share the certificates.
#[derive(Clone)]
pub struct Peers {
    pub(super) configs: Arc<Reread<Configs>>,
    name: ServerName<'static>,
}

pub(super) struct Configs {
    grpc: Pair,
    rank: Pair,
    validity: Option<Validity>,
}

/// What time it is: a certificate is judged by it.
pub(super) type Clock = fn() -> UnixTime;

struct Pair {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Peers {
    /// None: these options do not ask for it.
    pub fn open(args: &PeerArgs) -> Result<Option<Self>, TlsError> {
        Self::open_at(args, UnixTime::now)
    }

    /// `clock` is asked when this process judges its own certificate.
    pub(super) fn open_at(args: &PeerArgs, clock: Clock) -> Result<Option<Self>, TlsError> {
        let options = [("--peer-ca", &args.peer_ca), ("--peer-cert", &args.peer_cert), ("--peer-key", &args.peer_key)];
        let Some(sources) = all_or_none(options)? else { return Ok(None) };
        let name = match ServerName::try_from(args.peer_name.clone()) {
            Ok(name @ ServerName::DnsName(_)) => name,
            _ => return Err(TlsError::PeerName(args.peer_name.clone())),
        };
        let expected = name.clone();
        let configs = Reread::open(sources.into(), move |files| configs(files, &expected, clock()))?;
        Ok(Some(Peers { configs: Arc::new(configs), name }))
    }

    /// For a gRPC listener that serves peers only.
    pub fn server(&self) -> ServerTls {
        let configs = self.configs.clone();
        ServerTls::new(move || configs.get().grpc.server.clone(), self.certificate())
    }

    /// What this process shows its peers.
    pub fn certificate(&self) -> Certificate {
        let configs = self.configs.clone();
        Certificate::new("peer", "--peer-cert", move || configs.get().validity)
    }

    /// A gRPC channel to a peer, which connects when it is used. The endpoint's address begins with `http://`: what is
    /// spoken inside of TLS.
    pub fn channel(&self, endpoint: &Endpoint) -> Channel {
        let peers = self.clone();
        endpoint.connect_with_connector_lazy(tower::service_fn(move |uri| peers.clone().connect(uri)))
    }

    pub(super) async fn connect(
        self,
        uri: Uri,
    ) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>> {
        let host = uri.host().ok_or_else(|| io::Error::other("the address names no host"))?;
        let port = uri.port_u16().ok_or_else(|| io::Error::other("the address names no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let connecting = async {
            let socket = tokio::net::TcpStream::connect((host, port)).await?;
            socket.set_nodelay(true)?;
            TlsConnector::from(self.configs.get().grpc.client.clone()).connect(self.name.clone(), socket).await
        };
        match tokio::time::timeout(HANDSHAKE_TIME, connecting).await {
            Ok(connected) => connected.map(TokioIo::new),
            Err(_) => Err(too_long()),
        }
    }

    /// For the links between ranks.
    pub fn secure(&self) -> Secure {
        let peers = self.clone();
        Arc::new(move |socket, side| {
            let rank = &peers.configs.get().rank;
            match side {
                ConnectionSide::Connects => {
                    let connection = ClientConnection::new(rank.client.clone(), peers.name.clone());
                    shake_hands(connection.map_err(io::Error::other)?, socket)
                }
                ConnectionSide::Accepts => {
                    let connection = ServerConnection::new(rank.server.clone());
                    shake_hands(connection.map_err(io::Error::other)?, socket)
                }
            }
        })
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long")
}

/// The handshake is done here and not with the first bytes that are sent, because here it has a time limit of its own:
/// whoever reads later may have none, or one that is over before an answer can come.
fn shake_hands<C, S>(mut connection: C, mut socket: TcpStream) -> io::Result<Box<dyn Stream>>
where
    C: DerefMut<Target = ConnectionCommon<S>> + Send + 'static,
    S: SideData + 'static,
{
    let timeouts = (socket.read_timeout()?, socket.write_timeout()?);
    // All of it takes no longer than one read may.
    let deadline = Instant::now() + timeouts.0.map_or(HANDSHAKE_TIME, |limit| limit.min(HANDSHAKE_TIME));
    while connection.is_handshaking() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(too_long());
        }
        socket.set_read_timeout(Some(left))?;
        socket.set_write_timeout(Some(left))?;
        if connection.wants_write() {
            connection.write_tls(&mut socket)?;
        } else if connection.read_tls(&mut socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        } else if let Err(error) = connection.process_new_packets() {
            // The other side is told why, if it still listens.
            let _ = connection.write_tls(&mut socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }
    let mut link = Link { connection, socket };
    // The last word of the handshake may not have been sent.
    link.send()?;
    link.socket.set_read_timeout(timeouts.0)?;
    link.socket.set_write_timeout(timeouts.1)?;
    Ok(Box::new(link))
}

/// TLS over a socket that blocks, with or without time limits. (`rustls::StreamOwned` reads while it writes, if the
/// socket takes nothing for now, and so can wait for ever in spite of a time limit for writing.) A limit that is over
/// loses nothing: half a record stays for the next read, and what `write` has taken goes out before anything else does.
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
                // Nothing whole has come yet.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            // That nothing more comes is told by the reader.
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
            // What is taken is taken: an error that stays is told the next time.
            Err(error) if taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

fn configs(files: &[Vec<u8>], name: &ServerName<'static>, now: UnixTime) -> Result<Configs, Wrong> {
    const CA: usize = 0;
    const CERT: usize = 1;
    const KEY: usize = 2;
    let roots = Arc::new(authorities(files, CA)?);
    let (chain, key) = (certificates(files, CERT)?, private_key(files, KEY)?);
    let validity = Validity::of(&chain);
    // A process that its own peers would refuse learns it here.
    let own = ParsedCertificate::try_from(&chain[0]).map_err(|error| Wrong::new(CERT, error))?;
    verify_server_name(&own, name).map_err(|error| Wrong::new(CERT, error))?;

    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build();
    let as_server = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider()).build();
    let as_server = as_server.map_err(|error| Wrong::new(CA, error))?;
    let judged = as_server.verify_server_cert(&chain[0], &chain[1..], name, &[], now).map(drop);
    let as_client =
        |verifier: &Arc<dyn ClientCertVerifier>| verifier.verify_client_cert(&chain[0], &chain[1..], now).map(drop);
    let judged = judged.and_then(|()| verifier.as_ref().map_or(Ok(()), as_client));
    judged.map_err(|error| Wrong::new(CERT, refusal(&error)))?;
    let verifier = Named { signed: verifier.map_err(|error| Wrong::new(CA, error))?, name: name.clone() };
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(|error| Wrong::new(CERT, error))?.with_client_cert_verifier(Arc::new(verifier));
    let mut server =
        builder.with_single_cert(chain.clone(), key.clone_key()).map_err(|error| Wrong::new(KEY, error))?;
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(|error| Wrong::new(CERT, error))?.with_root_certificates(roots);
    let mut client = builder.with_client_auth_cert(chain, key).map_err(|error| Wrong::new(KEY, error))?;
    // A resumed session would be let in by what was right when it began, not by the files of today.
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

/// Why the peers would refuse this process's own certificate.
fn refusal(error: &Error) -> String {
    let Error::InvalidCertificate(error) = error else { return error.to_string() };
    let since_1970 = |time: &UnixTime| expiry::at(time.as_secs() as i64);
    match error {
        CertificateError::Expired => "the certificate has expired".into(),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the certificate, or one of its chain, expired on {}", since_1970(not_after))
        }
        CertificateError::NotValidYet => "the certificate is not valid yet".into(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("the certificate, or one of its chain, is valid only from {} on", since_1970(not_before))
        }
        CertificateError::UnknownIssuer => {
            "no authority in --peer-ca has signed the certificate, directly or by its chain".into()
        }
        CertificateError::BadSignature => {
            "the certificate was not signed with the key of the authority in --peer-ca that it names".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate's extended key usage must allow both serverAuth and clientAuth".into()
        }
        error => format!("the certificate is refused: {error}"),
    }
}

/// A client is signed by the authority, and bears the name.
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
