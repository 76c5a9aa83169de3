use super::*;
use crate::by_name;

#[test]
fn every_recommendation_has_a_format_and_plausible_values() {
    for known in ALL {
        assert!(by_name(known.format).is_some(), "{}", known.format);
        assert!(known.temperature.is_none_or(|t| (0.0..=2.0).contains(&t)), "{}", known.model);
        assert!(known.top_p.is_none_or(|p| (0.0..=1.0).contains(&p)), "{}", known.model);
        assert_eq!(known.repository.split('/').count(), 2, "{}", known.repository);
    }
    let kimi: Vec<String> = recommendations("kimi_k2").map(Recommendation::sampling).collect();
    assert_eq!(kimi[..2], ["temperature 0.6", "temperature 0.6"]);
}
