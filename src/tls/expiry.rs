//! When the certificates in use expire: for the log, for metrics and for the cluster. It does not check who trusts
//! them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, NaiveDateTime};
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};

/// How often the certificates are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The first warning comes when 1/5 of a certificate's validity is left. Each further warning comes when half of the
/// time that was left at the last one has passed.
const WARN_PART: i64 = 5;

/// In seconds since 1970, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub from: i64,
    pub until: i64,
}

impl Validity {
    /// The time in which all certificates of a chain are valid. None if one of them is not X.509 (RFC 5280).
    pub fn of(chain: &[CertificateDer]) -> Option<Self> {
        let all = chain.iter().map(|certificate| validity(certificate)).collect::<Option<Vec<_>>>()?;
        let (from, until) = (all.iter().map(|one| one.from).max()?, all.iter().map(|one| one.until).min()?);
        Some(Validity { from, until })
    }

    /// Why no client accepts it at this time.
    pub fn why_not(&self, now: UnixTime) -> Option<String> {
        let now = now.as_secs() as i64;
        if now > self.until {
            return Some(format!("the certificate expired on {}; replace it with a valid one", at(self.until)));
        }
        (now < self.from).then(|| format!("the certificate is not valid before {}; check the clock", at(self.from)))
    }
}

/// A time in UTC, for people.
pub fn at(seconds: i64) -> String {
    DateTime::from_timestamp(seconds, 0).map_or_else(|| seconds.to_string(), |at| at.format("%F %T UTC").to_string())
}

/// A certificate that this process uses.
#[derive(Clone)]
pub struct Certificate {
    /// `peer` or `tls`.
    pub usage: &'static str,
    pub flag: &'static str,
    read: Arc<dyn Fn() -> Option<Validity> + Send + Sync>,
}

impl Certificate {
    pub fn new(
        usage: &'static str,
        flag: &'static str,
        read: impl Fn() -> Option<Validity> + Send + Sync + 'static,
    ) -> Self {
        Certificate { usage, flag, read: Arc::new(read) }
    }

    /// Of the certificate that is loaded now.
    pub fn validity(&self) -> Option<Validity> {
        (self.read)()
    }

    /// Seconds until it expires; negative after that.
    pub fn seconds_left(&self) -> Option<i64> {
        self.validity().map(|validity| validity.until - now())
    }

    /// When it expires, in seconds since 1970.
    pub fn until(&self) -> Option<u64> {
        self.validity().and_then(|validity| validity.until.try_into().ok())
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64)
}

/// Logs warnings before certificates expire, for the rest of the process's life. The returned channel has the time at
/// which the certificate for peers expires, in seconds since 1970.
pub fn watch(certificates: Vec<Certificate>) -> watch::Receiver<Option<u64>> {
    let of_peer = certificates.iter().find(|certificate| certificate.usage == "peer").cloned();
    let until = move || of_peer.as_ref().and_then(Certificate::until);
    let (sender, expiry) = watch::channel(until());
    tokio::spawn(async move {
        let mut warnings: Vec<Warning> = certificates.into_iter().map(Warning::new).collect();
        // It also runs when nothing receives from the channel, because the warnings are for people.
        loop {
            warnings.iter_mut().for_each(|warning| warning.look(now()));
            let valid = until();
            sender.send_if_modified(|expiry| std::mem::replace(expiry, valid) != valid);
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    });
    expiry
}

struct Warning {
    certificate: Certificate,
    /// A warning is due when fewer than this many seconds of this validity are left.
    of: Option<(Validity, i64)>,
}

impl Warning {
    fn new(certificate: Certificate) -> Self {
        Warning { certificate, of: None }
    }

    fn look(&mut self, now: i64) {
        let Some(validity) = self.certificate.validity() else { return };
        let due = match self.of {
            Some((known, due)) if known == validity => due,
            _ => (validity.until - validity.from) / WARN_PART,
        };
        let (flag, left) = (self.certificate.flag, validity.until - now);
        let is_due = left < due;
        if is_due && left < 0 {
            tracing::error!("{flag}: the certificate expired on {}; peers and clients reject it", at(validity.until));
        } else if is_due {
            tracing::warn!("{flag}: the certificate expires on {}, in {left} s", at(validity.until));
        }
        let next = if left < 0 { i64::MIN } else { left / 2 };
        self.of = Some((validity, if is_due { next } else { due }));
    }
}

/// Splits DER into its first element's tag and contents, and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |len, &byte| len << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    Some((tag, contents, rest))
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Of a certificate: it follows the version, serial number, algorithm and issuer of the signed part (RFC 5280, 4.1).
fn validity(der: &[u8]) -> Option<Validity> {
    let sequence = |der| element(der).filter(|(tag, ..)| *tag == SEQUENCE).map(|(_, contents, _)| contents);
    let mut part = sequence(sequence(der)?)?;
    if let (VERSION, _, rest) = element(part)? {
        part = rest;
    }
    for _ in 0..3 {
        part = element(part)?.2;
    }
    let (tag, from, rest) = element(sequence(part)?)?;
    let (until_tag, until, _) = element(rest)?;
    Some(Validity { from: time(tag, from)?, until: time(until_tag, until)? })
}

fn time(tag: u8, text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        // Two digits stand for the years from 1950 to 2049.
        UTC_TIME if text.get(..2)? < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    NaiveDateTime::parse_from_str(&text, "%Y%m%d%H%M%SZ").ok().map(|time| time.and_utc().timestamp())
}

#[cfg(test)]
mod tests;
