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
    // No model card is known for these, or they are no family of models.
    let without = ["kimi_k3", "deepseek_v4", "deepseek_v4_1", "longcat_2", "minicpm5", "command_5", "plain"];
    for format in crate::formats().iter().filter(|format| !format.models.is_empty()) {
        assert_eq!(recommendations(format.name).next().is_none(), without.contains(&format.name), "{}", format.name);
        // A card stands with the format that the name selects.
        for known in recommendations(format.name).filter(|known| known.note.is_empty()) {
            let name = known.repository.split('/').next_back().unwrap_or_default();
            let named = |models: &[&str]| models.iter().any(|model| name.starts_with(model.trim_end_matches('*')));
            let other = crate::formats().iter().find(|other| named(other.models) && other.name != format.name);
            assert!(other.is_none() || named(format.models), "{name}: {}", format.name);
        }
    }
    let kimi: Vec<String> = recommendations("kimi_k2").map(Recommendation::sampling).collect();
    assert_eq!(kimi[..2], ["temperature 0.6", "temperature 0.6"]);
}
