//! Request fields of other servers that would change the answer and that this server does not support. Ignoring them
//! would give answers that the client did not request, so they are refused with an error that names the alternative.

use rein_text::fields::{NeutralValues, Refused, refused};

use NeutralValues::{Empty, Numbers, Texts, True};

const ONE: NeutralValues = Numbers(&[1.0]);
/// The values that turn a sampler off.
const OFF: NeutralValues = Numbers(&[0.0, -1.0]);

const SAMPLER: &str = "this sampler is not supported";
const LIMIT: &str = "use 'max_tokens'";
const MINIMUM: &str = "use 'min_tokens'";
const ORDER: &str = "the order is fixed: temperature, top_k, top_p, min_p";
const RANGE: &str = "penalties cover all generated tokens";
const STOP: &str = "use 'stop'";
const PROMPT: &str = "use 'truncate_prompt_tokens'";
const SEARCH: &str = "web search is not supported";
const TEXT_ONLY: &str = "models are text only";
const NO_REASONING: &str = "a completion has no reasoning apart from its text";
const ADAPTERS: &str = "name the adapter as the model; /v1/models lists adapters";
const LARK: &str = "use 'structured_outputs.grammar' (Lark)";

const WHOLE: &str = "a text that is longer than the context is an error; shorten it before";
const INSTRUCTION: &str = "write the instruction into 'input', as the model's page says";

/// Refused by `/v1/chat/completions` and `/v1/completions`.
pub const EVERYWHERE: &[Refused] = &[
    // vLLM
    refused("use_beam_search", Empty, "use 'n' with 'temperature' above 0"),
    refused("length_penalty", ONE, "beam search is not supported"),
    refused("early_stopping", Empty, "beam search is not supported"),
    refused(
        "logits_processors",
        Empty,
        "requests cannot carry code; use 'logit_bias', 'allowed_token_ids' or 'bad_words'",
    ),
    refused("kv_transfer_params", Empty, "KV caches cannot be transferred"),
    refused("prompt_embeds", NeutralValues::None, "prompts are text or token ids"),
    refused("truncation_side", Texts(&["left"]), "a truncated prompt always keeps its end"),
    refused("repetition_detection", Empty, "use 'repetition_penalty' or 'frequency_penalty'"),
    refused("vllm_xargs", Empty, "vLLM's extensions are not supported"),
    refused("spaces_between_special_tokens", True, "the tokenizer decides about spaces"),
    refused("return_tokens_as_token_ids", Empty, "use 'return_token_ids'"),
    refused("logprob_token_ids", Empty, "use 'top_logprobs'"),
    // SGLang
    refused("ebnf", Empty, LARK),
    refused("min_new_tokens", Empty, MINIMUM),
    refused("stop_regex", Empty, STOP),
    refused("custom_logit_processor", Empty, "requests cannot carry code"),
    refused("custom_params", Empty, "custom logit processors are not supported"),
    refused("lora_path", Empty, ADAPTERS),
    refused("session_params", Empty, "each request carries its whole conversation"),
    refused("input_ids", NeutralValues::None, "'/v1/completions' takes token ids as 'prompt'"),
    refused("input_embeds", NeutralValues::None, "prompts are text or token ids"),
    refused("return_hidden_states", Empty, "engines return tokens and logprobs only"),
    refused("separate_reasoning", True, "reasoning is always a separate field; see 'include_reasoning'"),
    refused("stream_reasoning", True, "reasoning is streamed as it comes"),
    // llama.cpp
    refused("n_predict", Numbers(&[-1.0]), LIMIT),
    refused("typical_p", ONE, SAMPLER),
    refused("tfs_z", ONE, SAMPLER),
    refused("top_n_sigma", OFF, SAMPLER),
    refused("mirostat", Empty, SAMPLER),
    refused("mirostat_mode", Empty, SAMPLER),
    refused("mirostat_target", Empty, SAMPLER),
    refused("dry_multiplier", Empty, SAMPLER),
    refused("xtc_probability", Empty, SAMPLER),
    refused("dynatemp_range", Empty, SAMPLER),
    refused("min_keep", Numbers(&[0.0, 1.0]), SAMPLER),
    refused("adaptive_target", OFF, SAMPLER),
    refused("samplers", Empty, ORDER),
    refused("repeat_penalty", ONE, "use 'repetition_penalty', which covers the prompt and all generated tokens"),
    refused("repeat_last_n", Numbers(&[-1.0]), RANGE),
    refused("n_probs", Empty, "use 'logprobs'"),
    refused("n_indent", Empty, "a minimum indentation is not supported"),
    refused("t_max_predict_ms", OFF, "use the header 'x-request-timeout'"),
    refused("grammar", Empty, "GBNF is not supported; use 'structured_outputs.grammar' (Lark)"),
    refused("grammar_lazy", Empty, LARK),
    refused("image_data", Empty, TEXT_ONLY),
    refused("multimodal_data", Empty, TEXT_ONLY),
    refused("lora", Empty, ADAPTERS),
    refused("input_prefix", Empty, "fill-in-the-middle is not supported"),
    refused("input_suffix", Empty, "fill-in-the-middle is not supported"),
    refused(
        "reasoning_format",
        Texts(&["auto", "deepseek", "parsed"]),
        "reasoning comes as 'reasoning_content'; see 'include_reasoning'",
    ),
    refused("parse_tool_calls", True, "calls are always parsed"),
    // Text Generation Inference
    refused("max_new_tokens", NeutralValues::None, LIMIT),
    refused("do_sample", True, "set 'temperature' to 0 for greedy decoding"),
    refused("truncate", NeutralValues::None, PROMPT),
    refused("watermark", Empty, SAMPLER),
    refused("adapter_id", Empty, ADAPTERS),
    refused("return_full_text", Empty, "use 'echo' of '/v1/completions'"),
    refused("top_n_tokens", Empty, "use 'top_logprobs'"),
    refused("decoder_input_details", Empty, "use 'prompt_logprobs'"),
    refused("tool_prompt", Empty, "the model's own template describes the tools"),
    refused("guideline", Empty, "write it in a message"),
    // Front ends of local models
    refused("tfs", ONE, SAMPLER),
    refused("typical", ONE, SAMPLER),
    refused("top_a", Empty, SAMPLER),
    refused("smoothing_factor", Empty, SAMPLER),
    refused("epsilon_cutoff", Empty, SAMPLER),
    refused("eta_cutoff", Empty, SAMPLER),
    refused("skew", Empty, SAMPLER),
    refused("nsigma", OFF, SAMPLER),
    refused("penalty_alpha", Empty, SAMPLER),
    refused("cfg_scale", ONE, SAMPLER),
    refused("dynamic_temperature", Empty, SAMPLER),
    refused("temperature_last", Empty, ORDER),
    refused("sampler_order", Empty, ORDER),
    refused("token_healing", Empty, "a prompt is tokenized as it is written"),
    refused("no_repeat_ngram_size", Empty, SAMPLER),
    refused("encoder_repetition_penalty", ONE, SAMPLER),
    refused("num_beams", ONE, "use 'n' with 'temperature' above 0"),
    refused("guidance_scale", ONE, SAMPLER),
    refused("negative_prompt", Empty, "write it in the prompt"),
    refused("custom_token_bans", Empty, "use 'logit_bias'"),
    refused("banned_tokens", Empty, "use 'bad_words' or 'logit_bias'"),
    refused("banned_strings", Empty, "use 'bad_words'"),
    refused("ban_eos_token", Empty, "use 'ignore_eos'"),
    refused("grammar_string", Empty, LARK),
    refused("penalize_nl", Empty, SAMPLER),
    refused("suppress_tokens", Empty, "use 'logit_bias'"),
    refused("bad_words_ids", Empty, "use 'bad_words' or 'logit_bias'"),
    refused("stop_strings", Empty, STOP),
    refused("web_search", Empty, SEARCH),
    refused("rep_pen", ONE, "use 'repetition_penalty'"),
    refused("repetition_penalty_range", OFF, RANGE),
    refused("max_length", NeutralValues::None, LIMIT),
    refused("min_length", Empty, MINIMUM),
    // Ollama
    refused("options", Empty, "send its fields in the request itself, such as 'temperature' and 'max_tokens'"),
    refused("format", Empty, "use 'response_format'"),
    refused("think", NeutralValues::None, "use 'thinking'"),
    refused("num_predict", Numbers(&[-1.0]), LIMIT),
    refused("raw", Empty, "'/v1/completions' takes prompts without a template"),
    refused("images", Empty, TEXT_ONLY),
    // Hosted services
    refused("random_seed", NeutralValues::None, "use 'seed'"),
    refused("safe_prompt", Empty, "write it in a system message"),
    refused("prompt_truncate_len", NeutralValues::None, PROMPT),
    refused("context_length_exceeded_behavior", Texts(&["error"]), PROMPT),
    refused("transforms", Empty, PROMPT),
    refused("plugins", Empty, SEARCH),
    refused("search_parameters", Empty, SEARCH),
    refused("enable_search", Empty, SEARCH),
    refused("data_sources", Empty, SEARCH),
];

/// Refused by `/v1/chat/completions` and `/v1/responses`.
pub const IN_CONVERSATIONS: &[Refused] = &[
    refused("stop_sequences", Empty, STOP),
    refused("audio", NeutralValues::None, "only text is generated"),
    refused("functions", Empty, "it is deprecated; use 'tools'"),
    refused("function_call", Texts(&["none"]), "it is deprecated; use 'tool_choice'"),
    refused("web_search_options", NeutralValues::None, SEARCH),
    refused("verbosity", Texts(&["medium"]), "there is no such setting; ask for it in the prompt"),
    refused("chat_template", NeutralValues::None, "the model's own template is used"),
    refused("mm_processor_kwargs", Empty, TEXT_ONLY),
    refused("media_io_kwargs", Empty, TEXT_ONLY),
    refused("echo", Empty, "answers do not repeat their prompt"),
    refused("suffix", Empty, "fill-in-the-middle is not supported"),
    refused("thinking_forced_open", Empty, "the template decides; see 'thinking'"),
    refused("prompt_mode", Empty, "use 'reasoning_effort'"),
];

/// Refused by `/v1/chat/completions` only.
pub const IN_CHATS: &[Refused] = &[
    refused("system", Empty, "send a message with the role 'system'"),
    refused("prompt", Empty, "a chat has 'messages'; '/v1/completions' takes a prompt"),
    refused("instructions", Empty, "send a message with the role 'system'"),
    refused("max_output_tokens", NeutralValues::None, LIMIT),
];

/// Refused by `/v1/completions` only.
pub const IN_COMPLETIONS: &[Refused] = &[
    refused("stop_sequences", Empty, STOP),
    refused("suffix", Empty, "fill-in-the-middle is not supported"),
    refused("messages", Empty, "a completion has a 'prompt'; '/v1/chat/completions' takes messages"),
    refused("tools", Empty, "completions cannot call tools; use '/v1/chat/completions'"),
    refused("instructions", Empty, "write them in the prompt"),
    refused("thinking_token_budget", NeutralValues::None, NO_REASONING),
    refused("thinking_budget_tokens", NeutralValues::None, NO_REASONING),
    refused("max_output_tokens", NeutralValues::None, LIMIT),
];

/// Refused by `/v1/embeddings`.
pub const IN_EMBEDDINGS: &[Refused] = &[
    refused("messages", Empty, "send the text as 'input'"),
    refused("prompt", Empty, "send the text as 'input'"),
    refused("truncate_prompt_tokens", NeutralValues::None, WHOLE),
    refused("truncation", Empty, WHOLE),
    refused("truncate", Empty, WHOLE),
    refused("normalize", True, "embeddings always have length 1"),
    refused("embed_dtype", Texts(&["float32"]), "numbers are always 32-bit floats"),
    refused("output_dtype", Texts(&["float", "float32"]), "numbers are always 32-bit floats"),
    refused("embedding_types", NeutralValues::None, "use 'encoding_format'"),
    refused("endianness", Texts(&["native", "little"]), "bytes are always little-endian"),
    refused("input_type", NeutralValues::None, INSTRUCTION),
    refused("task", NeutralValues::None, INSTRUCTION),
    refused("instruction", Empty, INSTRUCTION),
    refused("prompt_name", NeutralValues::None, INSTRUCTION),
    refused("late_chunking", Empty, "each text has one embedding"),
    refused("stream", Empty, "embeddings come in one answer"),
];

#[cfg(test)]
mod tests;
