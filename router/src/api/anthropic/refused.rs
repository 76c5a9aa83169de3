//! Fields of the OpenAI API that would change the answer and that have another name in the Messages API. They are
//! refused with that name.

use rein_text::fields::{NeutralValues, Refused, refused};

use NeutralValues::{Empty, Numbers};

const FORMAT: &str = "use 'output_config.format'";
const ONE_ANSWER: &str = "a message has one answer";
const LOGPROBS: &str = "'/v1/chat/completions' returns them";

/// Refused by `/v1/messages` and `/v1/messages/count_tokens`, besides the fields that no endpoint has.
pub const IN_MESSAGES: &[Refused] = &[
    refused("stop", Empty, "use 'stop_sequences'"),
    refused("max_completion_tokens", NeutralValues::None, "use 'max_tokens'"),
    refused("reasoning_effort", NeutralValues::None, "use 'output_config.effort'"),
    refused("parallel_tool_calls", NeutralValues::True, "use 'tool_choice.disable_parallel_tool_use'"),
    refused("response_format", NeutralValues::None, FORMAT),
    refused("structured_outputs", NeutralValues::None, FORMAT),
    refused("n", Numbers(&[1.0]), ONE_ANSWER),
    refused("best_of", Numbers(&[1.0]), ONE_ANSWER),
    refused("logprobs", Empty, LOGPROBS),
    refused("top_logprobs", Empty, LOGPROBS),
    refused("prompt_logprobs", NeutralValues::None, LOGPROBS),
    refused("prompt", Empty, "a request has 'messages'"),
    refused("fallbacks", Empty, "requests are answered by the model that they name"),
];
