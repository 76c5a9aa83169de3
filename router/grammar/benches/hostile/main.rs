//! Processor time for hostile schemas and grammars: `cargo bench -p rein-grammar --bench hostile [-- NAME]`. Linux
//! only: the times are the kernel's.

use rein_grammar::{Grammars, Response, Rules, Tool, by_name};

mod cases;
#[path = "../tokens/mod.rs"]
mod tokens;

use tokens::{Tokens, computed};

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let [_, tokens] = Tokens::demo_and_kimi();
    println!("{}: {} tokens", tokens.name, tokens.vocab.size());
    let format = by_name("kimi_k2").expect("a format");
    println!("{:<36} {:>9} {:>9} {:>9} {:>7} {:>9}  result", "", "compile", "a matcher", "worst", "tokens", "state");
    println!("{:<36} {:>9} {:>9} {:>9} {:>7} {:>9}", "", "ms", "ms", "token ms", "", "MiB");
    for case in cases::all() {
        if only.as_ref().is_some_and(|only| !case.name.contains(only.as_str())) {
            continue;
        }
        let grammars = Grammars::new(format, tokens.vocab.clone());
        let began = computed();
        let compiled = grammars.compile(&case.rules);
        let compile = computed() - began;
        let show = |ns: u64| format!("{:.1}", ns as f64 / 1e6);
        let compiled = match compiled {
            Ok(compiled) => compiled.expect("something to enforce"),
            Err(error) => {
                let error: String = error.to_string().chars().take(120).collect();
                println!("{:<36} {:>9} {:>38}  refused: {error}", case.name, show(compile), "");
                continue;
            }
        };
        let began = computed();
        let matcher = compiled.matcher();
        let copy = computed() - began;
        let text = match case.rules.response {
            Some(_) => case.text,
            None => format!(
                "⟦<|tool_calls_section_begin|>⟧⟦<|tool_call_begin|>⟧functions.f:0⟦<|tool_call_argument_begin|>⟧{}⟦<|tool_call_end|>⟧",
                case.text
            ),
        };
        let ids = tokens.encode(&text);
        let (mut worst, mut total, mut taken, mut bytes) = (0, 0, 0, 0);
        let mut result =
            format!("relaxed {:?}", compiled.relaxations().iter().map(ToString::to_string).take(3).collect::<Vec<_>>());
        match matcher {
            Err(error) => result = format!("no matcher: {error}"),
            Ok(mut matcher) => {
                for id in ids {
                    let began = computed();
                    let masked = matcher.mask();
                    let accepted = matcher.accept(id);
                    let took = computed() - began;
                    worst = worst.max(took);
                    total += took;
                    bytes = matcher.bytes();
                    match (masked, accepted) {
                        (Ok(_), Ok(true)) => taken += 1,
                        (Ok(_), Ok(false)) => {
                            result += "; refuses the text";
                            break;
                        }
                        (Err(error), _) | (_, Err(error)) => {
                            result += &format!("; {error}");
                            break;
                        }
                    }
                }
            }
        }
        println!(
            "{:<36} {:>9} {:>9} {:>9} {:>7} {:>9.1}  {result} (expected: {:?}); {} ms in all",
            case.name,
            show(compile),
            show(copy),
            show(worst),
            taken,
            bytes as f64 / f64::from(1 << 20),
            case.outcome,
            show(total)
        );
    }
}
