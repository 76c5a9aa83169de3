//! The vendors' recommendations for their models: sampling, and where the chat template is. No behavior depends on
//! them.

/// A model, or several of one family, with its vendor's recommendation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recommendation {
    /// The format that reads its output.
    pub format: &'static str,
    pub model: &'static str,
    /// The repository on huggingface.co with the model card and the official template.
    pub repository: &'static str,
    /// None: the card recommends nothing.
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<u32>,
    /// Conditions, or other remarks.
    pub note: &'static str,
}

const NONE: Recommendation =
    Recommendation { format: "", model: "", repository: "", temperature: None, top_p: None, top_k: None, note: "" };

const fn of(format: &'static str, model: &'static str, repository: &'static str) -> Recommendation {
    Recommendation { format, model, repository, ..NONE }
}

const fn sampled(known: Recommendation, temperature: f64, top_p: Option<f64>, top_k: Option<u32>) -> Recommendation {
    Recommendation { temperature: Some(temperature), top_p, top_k, ..known }
}

const fn noted(known: Recommendation, note: &'static str) -> Recommendation {
    Recommendation { note, ..known }
}

const P95: Option<f64> = Some(0.95);

static ALL: &[Recommendation] = &[
    sampled(of("kimi_k2", "Kimi-K2-Instruct", "moonshotai/Kimi-K2-Instruct"), 0.6, None, None),
    sampled(of("kimi_k2", "Kimi-K2-Instruct-0905", "moonshotai/Kimi-K2-Instruct-0905"), 0.6, None, None),
    sampled(of("kimi_k2", "Kimi-K2-Thinking", "moonshotai/Kimi-K2-Thinking"), 1.0, None, None),
    noted(sampled(of("kimi_k2", "Kimi-K2.5", "moonshotai/Kimi-K2.5"), 1.0, P95, None), "thinking"),
    noted(sampled(of("kimi_k2", "Kimi-K2.5", "moonshotai/Kimi-K2.5"), 0.6, P95, None), "instant (thinking: false)"),
    sampled(of("qwen3_coder", "Qwen3-Coder", "Qwen/Qwen3-Coder-480B-A35B-Instruct"), 0.7, Some(0.8), Some(20)),
    noted(sampled(of("hermes", "Qwen3", "Qwen/Qwen3-30B-A3B"), 0.6, P95, Some(20)), "thinking"),
    noted(sampled(of("hermes", "Qwen3", "Qwen/Qwen3-30B-A3B"), 0.7, Some(0.8), Some(20)), "not thinking"),
    sampled(of("hermes", "Qwen3-Instruct-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507"), 0.7, Some(0.8), Some(20)),
    sampled(of("hermes", "Qwen3-Thinking-2507", "Qwen/Qwen3-30B-A3B-Thinking-2507"), 0.6, P95, Some(20)),
    of("hermes", "Qwen2.5", "Qwen/Qwen2.5-7B-Instruct"),
    noted(sampled(of("hermes", "QwQ", "Qwen/QwQ-32B"), 0.6, P95, None), "top_k 20 to 40"),
    of("hermes", "Hermes-2-Pro", "NousResearch/Hermes-2-Pro-Llama-3-8B"),
    of("hermes", "Hermes-3", "NousResearch/Hermes-3-Llama-3.1-8B"),
    of("hermes_json", "Qwen2.5-Coder", "Qwen/Qwen2.5-Coder-1.5B-Instruct"),
    of("glm45", "GLM-4.5", "zai-org/GLM-4.5"),
    noted(sampled(of("glm45", "GLM-4.6", "zai-org/GLM-4.6"), 1.0, None, None), "top_p 0.95 and top_k 40 for code"),
    of("glm47", "GLM-4.7", "zai-org/GLM-4.7"),
    sampled(of("mistral_v11", "Mistral-Small-3.2", "mistralai/Mistral-Small-3.2-24B-Instruct-2506"), 0.15, None, None),
    sampled(of("mistral_v13", "Magistral-Small", "mistralai/Magistral-Small-2509"), 0.7, P95, None),
    of("mistral_v3", "Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
    sampled(of("mistral_v3_tekken", "Mistral-Nemo", "mistralai/Mistral-Nemo-Instruct-2407"), 0.3, None, None),
    noted(
        sampled(of("deepseek_v3_2", "DeepSeek-V3.2", "deepseek-ai/DeepSeek-V3.2"), 1.0, P95, None),
        "no Jinja template: Python code in the repository",
    ),
    of("mimo_v2", "MiMo-V2-Flash", "XiaomiMiMo/MiMo-V2-Flash"),
    of("hy3", "Hy3-preview", "tencent/Hy3-preview"),
    of("hunyuan_a13b", "Hunyuan-A13B", "tencent/Hunyuan-A13B-Instruct"),
    of("longcat", "LongCat-Flash", "meituan-longcat/LongCat-Flash-Chat"),
    noted(of("xlam", "xLAM-2", "Salesforce/Llama-xLAM-2-8b-fc-r"), "other templates of the family write other forms"),
    of("deepseek_v3", "DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3-0324"),
    sampled(of("deepseek_v3", "DeepSeek-R1", "deepseek-ai/DeepSeek-R1"), 0.6, P95, None),
    of("deepseek_v3_1", "DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3.1"),
    sampled(of("gpt_oss", "gpt-oss", "openai/gpt-oss-120b"), 1.0, Some(1.0), None),
    of("ernie45", "ERNIE-4.5-Thinking", "baidu/ERNIE-4.5-21B-A3B-Thinking"),
    of("gigachat3_1", "GigaChat3.1", "ai-sage/GigaChat3.1-10B-A1.8B"),
    of("gigachat3", "GigaChat3", "ai-sage/GigaChat3-10B-A1.8B"),
    of("step3", "Step3", "stepfun-ai/step3"),
    of("minimax_m3", "MiniMax-M3", "MiniMaxAI/MiniMax-M3"),
    sampled(of("minimax_m2", "MiniMax-M2", "MiniMaxAI/MiniMax-M2"), 1.0, P95, None),
    sampled(of("seed_oss", "Seed-OSS", "ByteDance-Seed/Seed-OSS-36B-Instruct"), 1.1, P95, None),
    of("llama_json", "Llama-3.1", "meta-llama/Llama-3.1-8B-Instruct"),
    of("llama_pythonic", "Llama-3.2", "meta-llama/Llama-3.2-3B-Instruct"),
    of("llama_pythonic", "Llama-4-Scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct"),
    of("command_r7b", "c4ai-command-r7b", "CohereLabs/c4ai-command-r7b-12-2024"),
    noted(of("functools", "Phi-4-mini", "microsoft/Phi-4-mini-instruct"), "with the functools prompt"),
    of("jamba", "AI21-Jamba-1.5", "ai21labs/AI21-Jamba-1.5-Mini"),
    of("internlm2", "InternLM2.5", "internlm/internlm2_5-7b-chat"),
    of("granite_20b_fc", "granite-20b-functioncalling", "ibm-granite/granite-20b-functioncalling"),
    of("granite", "granite-3.0", "ibm-granite/granite-3.0-8b-instruct"),
    of("granite_3_1", "granite-3.1", "ibm-granite/granite-3.1-8b-instruct"),
    of("granite_3_2", "granite-3.2", "ibm-granite/granite-3.2-8b-instruct"),
    of("granite_3_3", "granite-3.3", "ibm-granite/granite-3.3-8b-instruct"),
    of("lfm2", "LFM2.5", "LiquidAI/LFM2.5-1.2B-Instruct"),
    sampled(of("gemma4", "gemma-4", "google/gemma-4-31B-it"), 1.0, P95, Some(64)),
    sampled(of("functiongemma", "functiongemma", "google/functiongemma-270m-it"), 1.0, P95, Some(64)),
    of("olmo3", "Olmo-3", "allenai/Olmo-3-7B-Instruct"),
    of("apertus", "Apertus", "swiss-ai/Apertus-8B-Instruct-2509"),
    of("minicpm3", "MiniCPM3", "openbmb/MiniCPM3-4B"),
    of("phi4_mini", "Phi-4-mini", "microsoft/Phi-4-mini-instruct"),
    of("nemotron_v2", "Nemotron-Nano-v2", "nvidia/NVIDIA-Nemotron-Nano-9B-v2"),
];

/// The known models of this format.
pub fn recommendations(format: &str) -> impl Iterator<Item = &'static Recommendation> {
    ALL.iter().filter(move |known| known.format == format)
}

impl Recommendation {
    /// The model card, which is the source, beside the template.
    pub fn url(&self) -> String {
        format!("https://huggingface.co/{}", self.repository)
    }

    /// The recommended sampling as text. Empty: there is no recommendation.
    pub fn sampling(&self) -> String {
        let number = |name: &str, value: Option<f64>| value.map(|value| format!("{name} {value}"));
        let top_k = self.top_k.map(|value| format!("top_k {value}"));
        let all = [number("temperature", self.temperature), number("top_p", self.top_p), top_k];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests;
