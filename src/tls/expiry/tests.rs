use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::*;

fn certificate(from: (i32, u8), until: (i32, u8)) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(vec!["rein-peer".to_owned(); 40]).expect("names");
    params.not_before = date_time_ymd(from.0, from.1, 1);
    params.not_after = date_time_ymd(until.0, until.1, 1);
    params.self_signed(&KeyPair::generate().expect("a key")).expect("signed").der().clone()
}

#[test]
fn a_chain_is_valid_while_all_its_certificates_are() {
    let days = |year, month| i64::from((year - 1970) * 365 + (year - 1969) / 4 + 31 * (month - 1)) * 86_400;
    let one = certificate((1999, 1), (2049, 1));
    assert_eq!(Validity::of(std::slice::from_ref(&one)), Some(Validity { from: days(1999, 1), until: days(2049, 1) }));
    let far = Validity::of(&[certificate((2049, 2), (2099, 2))]).expect("X.509");
    assert_eq!(
        (far.from, at(far.from).as_str(), at(far.until).as_str()),
        (days(2049, 2), "2049-02-01 00:00:00 UTC", "2099-02-01 00:00:00 UTC")
    );
    let chain = [one.clone(), certificate((2001, 1), (2020, 1))];
    assert_eq!(Validity::of(&chain), Some(Validity { from: days(2001, 1), until: days(2020, 1) }));
    assert_eq!(Validity::of(&[]), None);
    for cut in 0..one.len().min(300) {
        // A truncated certificate gives None, without a panic.
        assert_eq!(Validity::of(&[CertificateDer::from(one[..cut].to_vec())]), None);
    }
}

#[test]
fn warning_intervals_halve_and_restart_with_a_new_certificate() {
    let mut warning = Warning::new(Certificate::new("peer", "--peer-cert", || Some(Validity { from: 0, until: 1000 })));
    let mut warned_at = Vec::new();
    for now in 0..1100 {
        let before = warning.of.map(|(_, due)| due);
        warning.look(now);
        if before.is_some() && before != warning.of.map(|(_, due)| due) {
            warned_at.push(1000 - now);
        }
    }
    assert_eq!(warned_at, [199, 98, 48, 23, 10, 4, 1, -1]);
    warning.certificate = Certificate::new("peer", "--peer-cert", || Some(Validity { from: 1000, until: 3000 }));
    warning.look(1100);
    assert_eq!(warning.of, Some((Validity { from: 1000, until: 3000 }, 400)));
}
