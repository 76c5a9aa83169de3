use super::*;
use crate::budget::Budget;
use crate::lark::{Price, price};

#[test]
fn known_formats_are_affordable_and_have_texts() {
    for name in KNOWN {
        let StringFormat::Known(texts) = format(name) else { panic!("{name}") };
        let body = format!("/{}/", texts.spelled(Quotes::Raw));
        assert_eq!(price(&body, &mut Budget::default()).expect("a price"), Price::Affordable, "{name}");
    }
}
