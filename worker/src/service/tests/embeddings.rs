//! An engine that computes embeddings.

use rein_proto::packed_ids;

use super::*;

fn embedder(options: EngineOptions) -> EngineService {
    engine(EngineOptions { embeds: true, ..options })
}

fn embed(prompt: Vec<u32>) -> Start {
    Start { prompt, embed: true, ..request(&[]) }
}

async fn embedding(service: &EngineService, prompt: Vec<u32>) -> Admitted {
    let mut router = open(service, embed(prompt)).await.unwrap();
    let admitted = router.admitted().await;
    let finish = router.finish().await;
    assert_eq!((finish.reason(), finish.generated), (FinishReason::Stop, 0));
    assert!(router.responses.next().await.is_none(), "the stream ends after Finish");
    admitted
}

#[tokio::test]
async fn a_prompt_gives_its_embedding_and_ends() {
    let service = embedder(EngineOptions::default());
    assert_eq!(service.engine_info().embedding_size, 64);
    let first = embedding(&service, vec![1, 2, 3, 4, 5]).await;
    assert_eq!((first.prompt_tokens, first.cached_tokens, first.embedding.len()), (5, 0, 64));
    // The second time, a block is cached, and the numbers are the same.
    let second = embedding(&service, vec![1, 2, 3, 4, 5]).await;
    assert_eq!((second.cached_tokens, &second.embedding), (4, &first.embedding));
    assert_ne!(embedding(&service, vec![1, 2, 3, 4, 6]).await.embedding, first.embedding);
    assert_eq!((service.engine_stats().generated_tokens, service.engine_stats().used_blocks), (0, 0));
}

#[tokio::test]
async fn a_prompt_may_fill_the_context_and_is_computed_in_chunks() {
    let service = embedder(EngineOptions { max_sequences: 2, token_budget: 7, ..EngineOptions::default() });
    let whole = embedder(EngineOptions { token_budget: 5000, prefix_cache: false, ..EngineOptions::default() });
    for length in [1, 8, 100, context_limit(&sim().shape())] {
        let prompt: Vec<u32> = (0..length as u32).map(|i| i % VOCAB).collect();
        let chunked = embedding(&service, prompt.clone()).await;
        assert_eq!(chunked.embedding, embedding(&whole, prompt).await.embedding, "{length} tokens");
    }
    let too_long = vec![1; context_limit(&sim().shape()) + 1];
    let status = open(&service, embed(too_long)).await.map(drop).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn an_engine_has_one_task() {
    for (service, start, want) in [
        (embedder(EngineOptions::default()), request(&[1]), "embed must be true"),
        (engine(EngineOptions::default()), embed(vec![1]), "embed must be false: this engine generates"),
        (embedder(EngineOptions::default()), Start { hold: true, ..embed(vec![1]) }, "embed must be false with resume"),
        (embedder(EngineOptions::default()), Start { resume: vec![1], ..embed(vec![1]) }, "embed must be false with"),
    ] {
        let status = open(&service, start).await.map(drop).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(want), "{status}");
    }
    assert_eq!(engine(EngineOptions::default()).engine_info().embedding_size, 0);
}

#[tokio::test]
async fn a_packed_prompt_is_the_same_prompt() {
    let service = embedder(EngineOptions { prefix_cache: false, ..EngineOptions::default() });
    let ids = vec![1, 2, 99, 4, 5];
    let plain = embedding(&service, ids.clone()).await;
    let packed = |prompt, bytes: &[u8]| Start { packed_prompt: bytes.to_vec().into(), ..embed(prompt) };
    let bytes = packed_ids::pack(ids.clone());
    let mut router = open(&service, packed(Vec::new(), &bytes)).await.unwrap();
    assert_eq!(router.admitted().await, plain);
    for (start, want) in [
        (packed(Vec::new(), &bytes[..18]), "packed_prompt must have four bytes for each token id, got 18 bytes"),
        (packed(ids, &bytes), "packed_prompt may only be set without prompt"),
        (packed(Vec::new(), &[255; 8]), "prompt"),
    ] {
        let status = open(&service, start).await.map(drop).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(want), "{status}");
    }
}
