//! The contents of the requests. It does not send them.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use super::{BenchOptions, EndpointKind};

/// Common words. With the space before it, each is one token for most tokenizers.
const WORDS: &[&str] = &[
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "member",
    "law",
    "car",
    "city",
    "community",
    "name",
    "president",
    "team",
    "minute",
    "idea",
    "kid",
    "body",
    "information",
    "back",
    "parent",
    "face",
    "others",
    "level",
    "office",
    "door",
    "health",
    "person",
    "art",
    "war",
    "history",
    "party",
    "result",
    "change",
    "morning",
    "reason",
    "research",
    "girl",
    "guy",
    "moment",
    "air",
    "teacher",
    "force",
    "education",
    "food",
    "light",
    "music",
    "market",
    "price",
    "paper",
    "space",
    "ground",
    "form",
    "event",
    "matter",
    "center",
    "couple",
    "site",
    "project",
    "base",
    "star",
    "table",
    "need",
    "court",
    "oil",
    "situation",
    "cost",
    "industry",
    "figure",
    "street",
    "image",
    "phone",
    "data",
    "picture",
];

/// The requests of one benchmark. Equal options give equal requests.
#[derive(Debug)]
pub struct BenchRequests {
    options: BenchOptions,
    model: String,
    tools: Vec<Value>,
    /// Number of words per prompt; the warm-up calibrates it.
    words: f64,
    next: AtomicU64,
}

impl BenchRequests {
    pub fn new(options: &BenchOptions, model: &str) -> Self {
        let tools = (0..options.tools).map(tool).collect();
        Self {
            options: options.clone(),
            model: model.to_owned(),
            tools,
            words: f64::from(options.prompt_tokens),
            next: AtomicU64::new(0),
        }
    }

    pub fn path(&self) -> &'static str {
        match self.options.endpoint {
            EndpointKind::Chat => "/chat/completions",
            EndpointKind::Completions => "/completions",
        }
    }

    pub fn stream(&self) -> bool {
        self.options.stream
    }

    /// Corrects the number of words, given that current prompts have `measured` tokens. This is approximate: the
    /// template and the tools add tokens that do not depend on the number of words.
    pub fn calibrate(&mut self, measured: u64) {
        if self.options.prompt_ids.is_none() && measured > 0 {
            let missing = f64::from(self.options.prompt_tokens) - measured as f64;
            let per_word = (measured as f64 / self.words.max(1.0)).clamp(0.5, 4.0);
            self.words = (self.words + missing / per_word).max(1.0);
        }
    }

    /// The body of the next request. The numbering continues from one concurrency to the next, so no prompt is sent
    /// twice.
    pub fn next_body(&self) -> Bytes {
        self.body(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The body of request `n`.
    pub fn body(&self, n: u64) -> Bytes {
        let o = &self.options;
        let mut body = Map::new();
        body.insert("model".into(), json!(self.model));
        match o.endpoint {
            EndpointKind::Chat => {
                body.insert("messages".into(), json!([{ "role": "user", "content": self.text(n) }]));
            }
            EndpointKind::Completions if o.prompt_ids.is_some() => {
                body.insert("prompt".into(), json!(self.ids(n)));
            }
            EndpointKind::Completions => {
                body.insert("prompt".into(), json!(self.text(n)));
            }
        }
        if !self.tools.is_empty() {
            body.insert("tools".into(), json!(self.tools));
        }
        body.insert("max_tokens".into(), json!(o.output_tokens));
        if o.ignore_eos {
            body.insert("ignore_eos".into(), json!(true));
        }
        if let Some(t) = o.temperature {
            body.insert("temperature".into(), json!(t));
        }
        body.insert("stream".into(), json!(o.stream));
        if o.stream {
            body.insert("stream_options".into(), json!({ "include_usage": true }));
        }
        for (key, value) in o.extra.iter().flatten() {
            body.insert(key.clone(), value.clone());
        }
        Bytes::from(Value::Object(body).to_string())
    }

    /// Draws `total` random numbers for request `n`; the first `shared` are the same for all requests.
    fn draws(&self, n: u64, total: usize, shared: usize, below: u32) -> impl Iterator<Item = u32> {
        let shared = shared.min(total);
        let mut common = StdRng::seed_from_u64(self.options.seed);
        let mut own =
            StdRng::seed_from_u64(self.options.seed.wrapping_add(1).wrapping_mul(0x9E37_79B9).wrapping_add(n));
        (0..total).map(move |i| if i < shared { common.random_range(0..below) } else { own.random_range(0..below) })
    }

    fn text(&self, n: u64) -> String {
        let total = self.words.round() as usize;
        let shared = f64::from(self.options.shared_prefix) * self.words / f64::from(self.options.prompt_tokens);
        let mut text = String::new();
        for i in self.draws(n, total, shared.round() as usize, WORDS.len() as u32) {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(WORDS[i as usize]);
        }
        text
    }

    fn ids(&self, n: u64) -> Vec<u32> {
        let vocab = self.options.prompt_ids.unwrap_or(2);
        self.draws(n, self.options.prompt_tokens as usize, self.options.shared_prefix as usize, vocab).collect()
    }
}

/// Random words.
pub fn words(rng: &mut StdRng, count: usize) -> String {
    (0..count.max(1)).map(|_| WORDS[rng.random_range(0..WORDS.len())]).collect::<Vec<_>>().join(" ")
}

/// Generates a tool with one to four parameters of different types.
pub fn tool(i: u32) -> Value {
    let word = |k: u32| WORDS[(i.wrapping_mul(7).wrapping_add(k * 13) as usize) % WORDS.len()];
    let types = [
        json!({ "type": "string", "description": format!("The {} to look for", word(1)) }),
        json!({ "type": "integer", "minimum": 0, "maximum": 1000 }),
        json!({ "type": "string", "enum": [word(2), word(3), word(4)] }),
        json!({ "type": "array", "items": { "type": "string" } }),
    ];
    let count = 1 + (i as usize) % types.len();
    let names: Vec<String> = (0..count).map(|k| format!("{}_{k}", word(k as u32 + 5))).collect();
    let properties: Map<String, Value> = names.iter().cloned().zip(types).collect();
    json!({
        "type": "function",
        "function": {
            "name": format!("find_{}_{i}", word(0)),
            "description": format!("Finds a {} by its {}.", word(0), word(1)),
            "parameters": { "type": "object", "properties": properties, "required": [names[0]] },
        },
    })
}
