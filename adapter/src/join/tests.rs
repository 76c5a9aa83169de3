use super::*;

fn deployment() -> Deployment {
    Deployment {
        served_name: Some("demo".into()),
        vocab_size: 400,
        context: Some(2048),
        least_context: None,
        probes: vec![],
    }
}

fn facts() -> EngineFacts {
    EngineFacts { models: vec!["/models/demo".into()], context: Some(4096), ..EngineFacts::default() }
}

#[test]
fn an_engine_that_fits_joins_with_the_smaller_context() {
    let joined = compare(facts(), &deployment()).expect("it fits");
    assert_eq!(
        (joined.model.as_str(), joined.context, joined.block_size, joined.blocks),
        ("/models/demo", 2048, 16, 256)
    );
    assert!(joined.prefix_cache && !joined.lacks_cache);
    // Small pages are counted in blocks of several.
    for (page, pages, block_size, blocks) in [(1, 4000, 16, 250), (12, 100, 24, 50), (16, 9, 16, 9), (64, 9, 64, 9)] {
        let facts = EngineFacts { block_size: Some(page), blocks: Some(pages), ..facts() };
        let joined = compare(facts, &deployment()).expect("it fits");
        assert_eq!((joined.engine_block, joined.block_size, joined.blocks), (page, block_size, blocks));
    }
    assert_eq!(joined.kind(EngineDialect::Vllm), "vllm unknown version, /models/demo");
    let several = EngineFacts { models: vec!["a".into(), "demo".into()], context: Some(1000), ..facts() };
    let joined = compare(several, &Deployment { context: None, ..deployment() }).expect("it fits");
    assert_eq!((joined.model.as_str(), joined.context), ("demo", 1000));
    let own = compare(facts(), &Deployment { served_name: None, ..deployment() }).expect("it fits");
    assert_eq!((own.served_name.as_str(), joined.served_name.as_str()), ("/models/demo", "demo"));
}

#[test]
fn an_engine_that_does_not_fit_is_refused_by_name() {
    for (facts, deployment, part) in [
        (EngineFacts { models: vec![], ..facts() }, deployment(), "lists no model"),
        (EngineFacts { models: vec!["a".into(), "b".into()], ..facts() }, deployment(), "a, b, none of which is demo"),
        (
            EngineFacts { models: vec!["a".into(), "b".into()], ..facts() },
            Deployment { served_name: None, ..deployment() },
            "a, b; set --served-name",
        ),
        (EngineFacts { context: None, ..facts() }, deployment(), "context length"),
        (facts(), Deployment { least_context: Some(5000), ..deployment() }, "its context is 4096 tokens"),
        (EngineFacts { context: Some(1), ..facts() }, deployment(), "at least 2 tokens"),
        (EngineFacts { block_size: Some(0), ..facts() }, deployment(), "block size"),
    ] {
        let error = compare(facts, &deployment).expect_err(part);
        assert!(error.contains(part), "{error}");
    }
}
