mod recorded;

use rein_proto::internal::Sampling;
use serde_json::{Value, json};

use super::*;
use crate::draw::DrawReason;

fn request() -> DrawRequest {
    let sampling = Sampling {
        temperature: 0.5,
        top_p: 0.75,
        top_k: 0,
        min_p: 0.25,
        repetition_penalty: 1.5,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..Sampling::default()
    };
    DrawRequest {
        number: 1,
        why: DrawReason::Start,
        prompt: vec![1, 2, 3],
        max_tokens: 9,
        sampling,
        seed: u64::MAX >> 1,
        allow: vec![],
        exclude: vec![],
        bias: vec![],
        stop_token_ids: vec![7, 8],
        logprobs: -1,
        cache_salt: String::new(),
        width: None,
    }
}

fn body(dialect: EngineDialect, request: &DrawRequest) -> Value {
    serde_json::from_slice(&dialect.body(request, "demo")).expect("JSON")
}

fn ids(frame: &DrawFrame) -> Vec<u32> {
    frame.drawn.iter().map(|drawn| drawn.id).collect()
}

#[test]
fn vllm_gets_every_parameter_and_masks_as_lists() {
    let free = body(EngineDialect::Vllm, &request());
    let want = json!({
        "model": "demo", "prompt": [1, 2, 3], "max_tokens": 9, "min_tokens": 0, "n": 1, "echo": false,
        "add_special_tokens": false, "temperature": 0.5, "top_p": 0.75, "top_k": -1, "min_p": 0.25,
        "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 9223372036854775807u64,
        "stop": [], "stop_token_ids": [7, 8], "ignore_eos": true, "skip_special_tokens": false,
        "return_token_ids": true, "stream": true, "stream_options": {"include_usage": true},
    });
    assert_eq!(free, want);
    let masked = DrawRequest {
        max_tokens: 1,
        allow: vec![4, 5],
        exclude: vec![9],
        bias: vec![(4, 1.5)],
        logprobs: 2,
        cache_salt: "tenant".into(),
        ..request()
    };
    let masked = body(EngineDialect::Vllm, &masked);
    assert_eq!((&masked["stream"], &masked["stream_options"]), (&json!(false), &Value::Null));
    assert_eq!(masked["allowed_token_ids"], json!([4, 5]));
    assert_eq!(masked["logit_bias"], json!({"4": 1.5, "9": -100.0}));
    assert_eq!((&masked["logprobs"], &masked["cache_salt"]), (&json!(2), &json!("tenant")));
}

#[test]
fn llama_server_gets_allowed_ids_as_raised_logits_and_no_penalties_that_count_the_prompt() {
    let request = DrawRequest {
        allow: vec![4, 5],
        exclude: vec![9],
        bias: vec![(4, 1.5)],
        logprobs: 0,
        cache_salt: "tenant".into(),
        ..request()
    };
    assert!(!EngineDialect::LlamaServer.streams(&request));
    let body = body(EngineDialect::LlamaServer, &request);
    assert_eq!(body["logit_bias"], json!([[4, 101.5], [5, 100.0], [9, false]]));
    assert_eq!((&body["presence_penalty"], &body["frequency_penalty"]), (&json!(0.0), &json!(0.0)));
    assert_eq!(
        (&body["repeat_last_n"], &body["cache_prompt"], &body["n_probs"]),
        (&json!(12), &json!(false), &json!(1))
    );
    assert_eq!((&body["n_predict"], &body["stream"], &body["return_tokens"]), (&json!(9), &json!(false), &json!(true)));
}

#[test]
fn sglang_gets_allowed_ids_as_raised_logits() {
    let request = DrawRequest {
        allow: vec![4, 5],
        exclude: vec![9],
        bias: vec![(4, 1.5), (6, -2.0)],
        logprobs: 3,
        cache_salt: "tenant".into(),
        ..request()
    };
    let body = body(EngineDialect::Sglang, &request);
    let params = &body["sampling_params"];
    assert_eq!(params["logit_bias"], json!({"4": 101.5, "5": 100.0, "9": -100.0}));
    assert_eq!((&params["max_new_tokens"], &params["ignore_eos"]), (&json!(9), &json!(false)));
    assert_eq!((&body["return_logprob"], &body["top_logprobs_num"]), (&json!(true), &json!(3)));
    assert_eq!((&body["input_ids"], &body["extra_key"]), (&json!([1, 2, 3]), &json!("tenant")));
}

#[test]
fn biases_of_a_client_do_not_undo_a_mask() {
    // Nothing else is above the allowed tokens, whose distances stay.
    let request = DrawRequest { allow: vec![4, 5], bias: vec![(4, -100.0), (6, 100.0)], ..request() };
    assert_eq!(body(EngineDialect::LlamaServer, &request)["logit_bias"], json!([[4, 100.0], [5, 200.0]]));
    let sglang = body(EngineDialect::Sglang, &request);
    assert_eq!(sglang["sampling_params"]["logit_bias"], json!({"4": 100.0, "5": 200.0}));
    let free = DrawRequest { allow: vec![], ..request };
    assert_eq!(body(EngineDialect::LlamaServer, &free)["logit_bias"], json!([[4, -100.0], [6, 100.0]]));
}

#[test]
fn vllm_frames_are_read() {
    let mut reader = EngineDialect::Vllm.reader();
    let first =
        br#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"demo","choices":[{"index":0,"text":"a",
        "logprobs":{"text_offset":[0],"token_logprobs":[-0.5],"tokens":["token_id:4"],
        "top_logprobs":[{"token_id:4":-0.5,"token_id:9":-1.5}]},"finish_reason":null,"stop_reason":null,
        "token_ids":[4],"prompt_token_ids":[1,2,3]}],"usage":null}"#;
    let frame = reader.read(first).expect("a frame");
    assert_eq!((ids(&frame), frame.end), (vec![4], None));
    let logprob = frame.drawn[0].logprob.clone().expect("a logprob");
    assert_eq!((logprob.id, logprob.logprob, logprob.rank), (4, Some(-0.5), 1));
    assert_eq!(logprob.top.iter().map(|top| top.id).collect::<Vec<_>>(), [4, 9]);
    let last = br#"{"choices":[{"index":0,"text":"","finish_reason":"stop","stop_reason":7,"token_ids":[7]}]}"#;
    let frame = reader.read(last).expect("a frame");
    assert_eq!((ids(&frame), frame.end), (vec![7], Some(DrawEnd::Stop(Some(7)))));
    let usage = br#"{"choices":[],"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}"#;
    assert_eq!(reader.read(usage).expect("a frame").cached_tokens, Some(2));
    for (length, end) in [("length", DrawEnd::Length), ("stop", DrawEnd::Stop(None))] {
        let frame =
            format!(r#"{{"choices":[{{"text":"","finish_reason":"{length}","stop_reason":"x","token_ids":null}}]}}"#);
        assert_eq!(reader.read(frame.as_bytes()).expect("a frame").end, Some(end));
    }
}

#[test]
fn llama_server_answers_are_read() {
    let answer = br#"{"index":0,"content":"ab","tokens":[4,5],"id_slot":0,"stop":true,"model":"m","tokens_predicted":2,
        "tokens_evaluated":3,"generation_settings":{"n_predict":2},"prompt":"<s>","truncated":false,
        "stop_type":"limit","stopping_word":"","tokens_cached":4,"timings":{"cache_n":2,"prompt_n":1},
        "completion_probabilities":[{"id":4,"token":"a","bytes":[97],"logprob":-0.5,"top_logprobs":
        [{"id":9,"token":"x","bytes":[],"logprob":-0.25},{"id":4,"token":"a","bytes":[97],"logprob":-0.5}]},
        {"id":5,"token":"b","bytes":[98],"logprob":-1.0,"top_logprobs":[]}]}"#;
    let frame = EngineDialect::LlamaServer.reader().read(answer).expect("a frame");
    assert_eq!((ids(&frame), frame.cached_tokens, frame.end), (vec![4, 5], Some(2), Some(DrawEnd::Length)));
    let logprob = frame.drawn[0].logprob.clone().expect("a logprob");
    assert_eq!((logprob.logprob, logprob.rank, logprob.top[0].id), (Some(-0.5), 2, 9));
    let stop = br#"{"tokens":[4,7],"stop_type":"eos","timings":{}}"#;
    let frame = EngineDialect::LlamaServer.reader().read(stop).expect("a frame");
    assert_eq!((ids(&frame), frame.end), (vec![4, 7], Some(DrawEnd::Stop(Some(7)))));
}

#[test]
fn sglang_frames_are_read_cumulative_or_not() {
    let meta = |tokens: usize, finish: &str| {
        format!(r#""meta_info":{{"id":"x","completion_tokens":{tokens},"cached_tokens":2,"finish_reason":{finish}}}"#)
    };
    let stop = r#"{"type":"stop","matched":7}"#;
    for outputs in [["[4]", "[4,5,6]", "[4,5,6,7]"], ["[4]", "[5,6]", "[7]"]] {
        let mut reader = EngineDialect::Sglang.reader();
        let mut read = |ids: &str, tokens, finish: &str| {
            let data = format!(r#"{{"text":"","output_ids":{ids},{}}}"#, meta(tokens, finish));
            reader.read(data.as_bytes()).expect("a frame")
        };
        let frames = [read(outputs[0], 1, "null"), read(outputs[1], 3, "null"), read(outputs[2], 4, stop)];
        assert_eq!(frames.each_ref().map(ids), [vec![4], vec![5, 6], vec![7]]);
        assert_eq!((frames[0].cached_tokens, frames[2].end.clone()), (Some(2), Some(DrawEnd::Stop(Some(7)))));
    }
    let scored =
        br#"{"output_ids":[4,5],"meta_info":{"completion_tokens":2,"finish_reason":{"type":"length","length":2},
        "output_token_logprobs":[[-0.5,4,"a"],[-1.0,5,null]],
        "output_top_logprobs":[[[-0.5,4,"a"],[-2.0,9,null]],null]}}"#;
    let frame = EngineDialect::Sglang.reader().read(scored).expect("a frame");
    let logprobs: Vec<_> = frame.drawn.iter().map(|drawn| drawn.logprob.clone().expect("a logprob")).collect();
    assert_eq!((logprobs[0].rank, logprobs[0].top.len(), logprobs[1].logprob), (1, 2, Some(-1.0)));
    assert_eq!(frame.end, Some(DrawEnd::Length));
    let mut reader = EngineDialect::Sglang.reader();
    let short = format!(r#"{{"output_ids":[4],{}}}"#, meta(3, "null"));
    assert!(reader.read(short.as_bytes()).expect_err("too few ids").contains("3 new tokens"));
}

#[test]
fn errors_inside_an_answer_end_it() {
    let lost = |end: &Option<DrawEnd>| matches!(end, Some(DrawEnd::Lost(why)) if why.contains("EngineCore died"));
    let failed = |end: &Option<DrawEnd>| matches!(end, Some(DrawEnd::Failed(why)) if why.contains("too long"));
    for dialect in EngineDialect::ALL {
        let mut reader = dialect.reader();
        let dead = br#"{"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}"#;
        assert!(lost(&reader.read(dead).expect("a frame").end), "{dialect:?}");
        let text = br#"{"error":"EngineCore died"}"#;
        assert!(lost(&reader.read(text).expect("a frame").end), "{dialect:?}");
        let rejected = br#"{"error":{"message":"too long","code":400}}"#;
        assert!(failed(&reader.read(rejected).expect("a frame").end), "{dialect:?}");
        let done = reader.read(b"[DONE]").expect("a frame").end;
        assert!(matches!(&done, Some(DrawEnd::Lost(why)) if why.contains("without a finish reason")), "{done:?}");
        for wrong in [&b"{"[..], b"[]", br#"{"choices":[{"text":"a"}]}"#, br#"{"tokens":[-1]}"#, b"\xFF\xFE"] {
            let read = dialect.reader().read(wrong);
            let empty = read.as_ref().is_ok_and(|frame| frame.drawn.is_empty() && frame.end.is_none());
            assert!(read.is_err() || (dialect == EngineDialect::Vllm && empty), "{dialect:?}: {read:?}");
        }
    }
    let old = br#"{"object":"error","message":"EngineCore died","type":"x","code":500}"#;
    assert!(lost(&EngineDialect::Vllm.reader().read(old).expect("a frame").end));
    let abort = br#"{"output_ids":[],"meta_info":{"completion_tokens":0,
        "finish_reason":{"type":"abort","message":"too long","status_code":400}}}"#;
    assert!(failed(&EngineDialect::Sglang.reader().read(abort).expect("a frame").end));
}

#[test]
fn facts_of_engines_are_read() {
    let models = br#"{"object":"list","data":[{"id":"/models/demo","object":"model","max_model_len":2048}]}"#;
    let metrics =
        b"# HELP x\nvllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",\
        num_gpu_blocks=\"500\"} 1.0\n";
    let facts = EngineDialect::Vllm.facts(models, Some(br#"{"version":"0.11.0"}"#), Some(metrics)).expect("facts");
    assert_eq!((facts.context, facts.block_size, facts.blocks), (Some(2048), Some(16), Some(500)));
    assert_eq!((facts.version.as_deref(), facts.prefix_cache), (Some("0.11.0"), Some(true)));
    let props = br#"{"default_generation_settings":{"n_ctx":1024},"total_slots":4,"build_info":"b6100-abc"}"#;
    let models = br#"{"data":[{"id":"demo.gguf","meta":{"n_vocab":400}}]}"#;
    let facts = EngineDialect::LlamaServer.facts(models, Some(props), None).expect("facts");
    assert_eq!((facts.context, facts.slots, facts.version.as_deref()), (Some(1024), Some(4), Some("b6100-abc")));
    let info = br#"{"version":"0.5.3","page_size":1,"max_total_num_tokens":9000,"context_length":4096,
        "disable_radix_cache":true,"max_running_requests":64}"#;
    let facts = EngineDialect::Sglang.facts(models, Some(info), None).expect("facts");
    assert_eq!((facts.context, facts.blocks, facts.prefix_cache), (Some(4096), Some(9000), Some(false)));
    assert!(EngineDialect::Vllm.facts(b"<html>", None, None).expect_err("no JSON").contains("list of models"));
}

#[test]
fn dialects_have_names() {
    for dialect in EngineDialect::ALL {
        assert_eq!(dialect.name().parse(), Ok(dialect));
    }
    assert_eq!("llama".parse(), Ok(EngineDialect::LlamaServer));
    assert!("tgi".parse::<EngineDialect>().expect_err("unknown").contains("vllm, sglang or llama-server"));
}
