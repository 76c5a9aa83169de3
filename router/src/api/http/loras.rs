//! `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, in vLLM's format.

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};

use super::{Shared, finish, incoming, read};
use crate::api::openai::{self, LoadLora, UnloadLora};

pub async fn load(State(state): Shared, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let (parsed, _charge) = read(&state, request, &mut incoming, openai::load_lora).await?;
        let LoadLora { request, model } = parsed.value;
        let lora = state.load_lora(request, model.as_deref(), incoming.caller()).await?;
        Ok(format!("Success: LoRA adapter '{}' added successfully.", lora.name).into_response())
    };
    finish(&state, "load_lora_adapter", state.admission.unless_aborted(answer).await)
}

pub async fn unload(State(state): Shared, request: Request) -> Response {
    let answer = async {
        let mut incoming = incoming(&state, &request).await?;
        let (parsed, _charge) = read(&state, request, &mut incoming, openai::unload_lora).await?;
        let UnloadLora { name } = parsed.value;
        state.unload_lora(&name, incoming.caller()).await?;
        Ok(format!("Success: LoRA adapter '{name}' removed successfully.").into_response())
    };
    finish(&state, "unload_lora_adapter", state.admission.unless_aborted(answer).await)
}
