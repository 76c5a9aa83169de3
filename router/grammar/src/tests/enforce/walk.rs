//! Random walks through the masks: every result is a turn that the parser reads and the validator accepts.

use super::{Bench, rules, tool};
use crate::tests::Random;
use crate::{Rules, ToolChoice, formats};

#[test]
fn walks_end_in_valid_calls() {
    let mut failures = Vec::new();
    let mut calls = 0;
    for format in formats().iter().filter(|f| f.has_calls()) {
        for spelled in [false, true] {
            if spelled && format.markers == crate::Markers::Special {
                continue;
            }
            let b = Bench::new(format, spelled);
            let mut random = Random::new(11);
            let (mut ended, mut bad) = (0, 0);
            for schema in super::schemas::nasty() {
                let r = Rules {
                    choice: ToolChoice::Required,
                    ..rules(vec![tool("f", schema.clone()), tool("f2", schema.clone())])
                };
                let compiled = match b.grammars.compile(&r) {
                    Ok(Some(compiled)) => compiled,
                    other => {
                        failures.push(format!("{} {spelled}: {schema}: {other:?}", format.name));
                        continue;
                    }
                };
                for _ in 0..2 {
                    let mut m = compiled.matcher().expect("a matcher");
                    // A walk does not spell a marker by chance.
                    let marker = format.begin.iter().chain(format.call).find_map(crate::format::marker);
                    let mut ids = Vec::new();
                    if spelled && format.calls == crate::CallPosition::AfterText {
                        ids = b.tokens.encode(marker.expect("a marker").as_bytes());
                        assert_eq!(b.run(&mut m, &ids).0, ids.len(), "{}", format.name);
                    }
                    let Some(rest) = b.walk(&mut m, &mut random, 1500) else { continue };
                    ids.extend(rest);
                    ended += 1;
                    let shown = b.tokens.show(&ids);
                    match b.parse(&r, &ids) {
                        Ok(found) if found.is_empty() => {
                            failures.push(format!("{}: no call in {shown:?}", format.name))
                        }
                        Ok(found) => {
                            for (name, arguments) in found {
                                calls += 1;
                                if let Err(e) = compiled.validate(&name, &arguments)
                                    && compiled.relaxations().is_empty()
                                {
                                    bad += 1;
                                    if bad < 4 {
                                        failures.push(format!(
                                            "{} {spelled}: {schema}: {e} in {arguments:?} of {shown:?}",
                                            format.name
                                        ));
                                    }
                                }
                            }
                        }
                        Err(e) => {
                            bad += 1;
                            if bad < 4 {
                                failures.push(format!("{} {spelled}: {e} in {shown:?}", format.name));
                            }
                        }
                    }
                }
            }
            if ended < 10 {
                failures.push(format!("{} {spelled}: {ended} walks ended", format.name));
            }
        }
    }
    println!("{calls} calls");
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

/// Text, reasoning and calls at random: each step compares the matcher's shortcuts with the parser.
#[test]
fn shortcuts_of_the_matcher_agree_with_the_parser() {
    let weather = serde_json::json!({"type": "object", "required": ["city"], "properties":
        {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}, "note": {"type": "string"}}});
    let mut ended = 0;
    for (format, spelled) in formats().iter().flat_map(|f| [(f, false), (f, true)]) {
        if spelled && format.markers == crate::Markers::Special {
            continue;
        }
        let b = Bench::new(format, spelled);
        let mut random = Random::new(5);
        for choice in [ToolChoice::Auto, ToolChoice::None] {
            let r = Rules { choice, ..rules(vec![tool("get_weather", weather.clone()), tool("f", weather.clone())]) };
            let Ok(Some(compiled)) = b.grammars.compile(&r) else { continue };
            for _ in 0..6 {
                let mut m = compiled.matcher().expect("a matcher");
                ended += usize::from(b.walk(&mut m, &mut random, 200).is_some());
            }
        }
    }
    assert!(ended > 50, "{ended} walks ended");
}
