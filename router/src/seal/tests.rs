use super::*;

const CONTEXT: SealContext<'static> =
    SealContext { purpose: SealPurpose::Reasoning, model: "demo", caller: Some("team") };

#[test]
fn a_sealed_text_opens_with_the_same_key_and_context_only() {
    let seal = Seal::new(&[7; KEY_BYTES]);
    for plain in ["", "a", "I must read the file first."] {
        let sealed = seal.seal(CONTEXT, plain.as_bytes());
        // A short text may occur in a random one.
        assert!(plain.len() < 8 || !sealed.contains(plain));
        assert_ne!(sealed, seal.seal(CONTEXT, plain.as_bytes()), "equal texts must not be seen to be equal");
        // Another router with the cluster's key.
        assert_eq!(Seal::new(&[7; KEY_BYTES]).open(CONTEXT, &sealed).as_deref(), Some(plain.as_bytes()));
        assert_eq!(Seal::random().open(CONTEXT, &sealed), None);
        for other in [
            SealContext { purpose: SealPurpose::Thinking, ..CONTEXT },
            SealContext { model: "demo2", ..CONTEXT },
            SealContext { caller: Some("other"), ..CONTEXT },
            SealContext { caller: None, ..CONTEXT },
            SealContext { model: "demoteam", caller: Some(""), ..CONTEXT },
        ] {
            assert_eq!(seal.open(other, &sealed), None, "{other:?}");
        }
    }
}

#[test]
fn a_changed_or_foreign_text_does_not_open() {
    let seal = Seal::random();
    let sealed = seal.seal(CONTEXT, b"first the file");
    for at in 0..sealed.len() {
        let mut changed = sealed.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).expect("ASCII");
        assert_eq!(seal.open(CONTEXT, &changed), None, "byte {at}");
        assert_eq!(seal.open(CONTEXT, &sealed[..at]), None, "cut at {at}");
    }
    for foreign in ["", "AAAA", "not base64!", "EqQBCgIYAhIkYjE3"] {
        assert_eq!(seal.open(CONTEXT, foreign), None);
    }
}
