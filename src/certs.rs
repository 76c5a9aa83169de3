//! `rein certs`: an authority, and the certificates that it signs: for the processes of a cluster and for listeners.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use chrono::{Datelike, Days, NaiveDate, Utc};
use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use crate::option_values;
use crate::terminal;

/// Time that an authority is valid.
const AUTHORITY_DAYS: u64 = 3650;
const AUTHORITY_NAME: &str = "rein-ca";

#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Run it again to renew the certificates: the authority in DIR signs again. Processes read renewed files within a second. Keep ca.key apart: who has it can join the cluster."
)]
pub struct CertsArgs {
    /// Directory for the files: ca.pem, ca.key, peer.pem, peer.key, and with --hosts server.pem, server.key
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Comma-separated host names and IP addresses under which clients reach HTTP, gRPC or etcd
    #[arg(long, value_delimiter = ',', value_name = "HOSTS", value_parser = option_values::host)]
    pub hosts: Vec<String>,
    /// Days that the certificates are valid
    #[arg(long, default_value_t = 90, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3650))]
    pub days: u64,
    /// DNS name in the certificates of the cluster's processes
    #[arg(long, default_value = "rein-peer", value_name = "NAME", value_parser = option_values::host)]
    pub peer_name: String,
}

pub fn run(args: &CertsArgs) -> Result<(), Box<dyn Error>> {
    let dir = &args.dir;
    fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let (issuer, is_new) = authority(dir)?;
    let signed = |file: &str, names: Vec<String>| -> Result<(), Box<dyn Error>> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, format!("rein-{file}"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // etcd's servers are clients of each other.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, args.days);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        // The key first: a process that reads one old and one new file tries again.
        write(&dir.join(format!("{file}.key")), &key.serialize_pem(), true)?;
        write(&dir.join(format!("{file}.pem")), &certificate.pem(), false)
    };
    signed("peer", vec![args.peer_name.clone()])?;
    if !args.hosts.is_empty() {
        signed("server", args.hosts.clone())?;
    }
    let made = if is_new { "a new authority" } else { "the authority that was there" };
    let shown = |file: &str| dir.join(file).display().to_string();
    terminal::out(format_args!("certificates for {} days, signed by {made}", args.days));
    let name = if args.peer_name == "rein-peer" { String::new() } else { format!(" --peer-name {}", args.peer_name) };
    terminal::out(format_args!(
        "between processes:  --peer-ca {} --peer-cert {} --peer-key {}{name}",
        shown("ca.pem"),
        shown("peer.pem"),
        shown("peer.key")
    ));
    if !args.hosts.is_empty() {
        let (cert, key) = (shown("server.pem"), shown("server.key"));
        terminal::out(format_args!("HTTP and gRPC:      --tls-cert {cert} --tls-key {key}"));
        terminal::out(format_args!("clients trust:      {} (SSL_CERT_FILE, --ca-file)", shown("ca.pem")));
    }
    Ok(())
}

/// The authority of a directory, and whether it was made.
fn authority(dir: &Path) -> Result<(Issuer<'static, KeyPair>, bool), Box<dyn Error>> {
    let (pem, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, AUTHORITY_DAYS);
    match (pem.exists(), key.exists()) {
        (true, true) => {
            let text = fs::read_to_string(&key).map_err(|error| format!("{}: {error}", key.display()))?;
            let key = KeyPair::from_pem(&text).map_err(|error| format!("{}: {error}", key.display()))?;
            Ok((Issuer::new(params, key), false))
        }
        (true, false) => Err(format!("{} is there, but not its key {}", pem.display(), key.display()).into()),
        (false, true) => Err(format!("{} is there, but not its certificate {}", key.display(), pem.display()).into()),
        (false, false) => {
            let pair = KeyPair::generate()?;
            let certificate = params.self_signed(&pair)?;
            write(&key, &pair.serialize_pem(), true)?;
            write(&pem, &certificate.pem(), false)?;
            Ok((Issuer::new(params, pair), true))
        }
    }
}

/// From yesterday on, because clocks differ, until the end of the last day.
fn valid_for(params: &mut CertificateParams, days: u64) {
    let today = Utc::now().date_naive();
    let time = |date: NaiveDate| date_time_ymd(date.year(), date.month() as u8, date.day() as u8);
    params.not_before = time(today - Days::new(1));
    params.not_after = time(today + Days::new(days + 1));
}

/// Writes a file whole or not at all. A secret one is its owner's alone.
fn write(path: &Path, text: &str, secret: bool) -> Result<(), Box<dyn Error>> {
    let draft = path.with_extension("new");
    let written = || {
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mode = if secret { 0o600 } else { 0o644 };
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    written().map_err(|error| format!("{}: {error}", path.display()).into())
}
