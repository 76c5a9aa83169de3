//! Validates requests before they reach the engine. It does not know the engine's state.

use std::time::Duration;

use rein_proto::checks::{self, InvalidStart, StartBounds};
use rein_proto::internal::{EventsRequest, Start};
use rein_proto::packed_ids;

use crate::executor::ExecutorShape;
use crate::limits;
use crate::scheduler::context_limit;

/// Moves a packed prompt to `prompt`.
pub fn unpack_prompt(start: &mut Start) -> Result<(), InvalidStart> {
    let packed = std::mem::take(&mut start.packed_prompt);
    if packed.is_empty() {
        return Ok(());
    }
    checks::require("packed_prompt", start.prompt.is_empty(), || "may only be set without prompt".into())?;
    let length = packed.len();
    let wrong = || format!("must have four bytes for each token id, got {length} bytes");
    start.prompt =
        packed_ids::unpack(&packed).ok_or_else(|| InvalidStart { field: "packed_prompt", problem: wrong() })?;
    Ok(())
}

/// Checks that every field is in range for an engine of this shape, which generates or only `embeds`.
pub fn check(start: &Start, shape: &ExecutorShape, embeds: bool) -> Result<(), InvalidStart> {
    let bounds = StartBounds {
        vocab_size: shape.vocab_size,
        context: context_limit(shape),
        embeds,
        scripted: shape.kind == "sim",
        most_logit_bias: limits::MAX_LOGIT_BIAS,
        most_stop_tokens: limits::MAX_STOP_TOKENS,
        most_request_id_bytes: limits::MAX_REQUEST_ID_BYTES,
        most_cache_salt_bytes: limits::MAX_CACHE_SALT_BYTES,
        most_logprobs: limits::MAX_LOGPROBS,
    };
    checks::start(start, &bounds)
}

/// The interval at which a listener wants messages.
pub fn interval(request: &EventsRequest) -> Result<Duration, InvalidStart> {
    let interval = Duration::from_millis(request.interval_ms.into());
    let (least, most) = (limits::EVENT_INTERVAL, limits::EVENT_SILENCE);
    checks::require("interval_ms", (least..=most).contains(&interval), || {
        format!("must be from {} to {}, got {}", least.as_millis(), most.as_millis(), request.interval_ms)
    })?;
    Ok(interval)
}
