//! Logs on standard error, and traces to an OpenTelemetry collector if one is configured.

use std::error::Error;
use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry::{Array, Context, KeyValue, Value};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider};
use rein_proto::trace_context::{AttributeValue, Get, Propagation};
use tokio::runtime::Runtime;
use tracing::{Level, Metadata, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, SpanRef};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::stderr::{self, LogWriter};

/// Length of the queue of spans for the collector. When it is full, spans are dropped.
const QUEUE: usize = 8192;
/// Maximum number of spans in one message to the collector.
const BATCH: usize = 512;
/// Maximum delay of a finished span before it is sent.
const DELAY: Duration = Duration::from_secs(1);
/// Timeout for sending a message, and for sending the last spans when the process ends.
const EXPORT: Duration = Duration::from_secs(3);
/// Log lines show the spans with this field: the request, but not its stages.
const LOGGED: &str = "request_id";

/// Where traces go.
pub struct TraceTarget<'a> {
    pub endpoint: &'a str,
    /// Name of the service in traces, unless OTEL_SERVICE_NAME is set.
    pub service: &'static str,
}

/// Dropping it sends the remaining spans.
#[must_use]
pub struct Telemetry(Option<Exporting>);

struct Exporting {
    provider: SdkTracerProvider,
    /// Runs the connection to the collector.
    runtime: Runtime,
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        let Some(Exporting { provider, runtime }) = self.0.take() else { return };
        if let Err(error) = provider.shutdown_with_timeout(EXPORT) {
            tracing::warn!(%error, "the last traces were not sent to the collector");
        }
        runtime.shutdown_background();
    }
}

/// Sets up logs and traces. Logs go to standard error, because standard output is for a command's results.
pub fn init(target: Option<TraceTarget>) -> Result<Telemetry, Box<dyn Error>> {
    let exporting = target.map(|target| export(&target)).transpose()?;
    let traces = exporting.as_ref().map(|Exporting { provider, .. }| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("rein"))
            .with_tracked_inactivity(false)
            .with_threads(false)
            .with_location(false)
            .with_target(false)
            .with_filter(filter_fn(traced).with_max_level_hint(LevelFilter::INFO))
    });
    let level = EnvFilter::try_from_env("REIN_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Spans with a request id are always enabled, so that a warning names its request.
    let named = filter_fn(|metadata| metadata.is_span() && metadata.fields().field(LOGGED).is_some());
    // Without the hint, the trace events of all crates would be built and then dropped.
    let shown = level.or(named.with_max_level_hint(LevelFilter::INFO));
    let log = tracing_subscriber::fmt::layer().with_writer(|| LogWriter).with_ansi(std::io::stderr().is_terminal());
    // Reporting that standard error cannot be written would write to standard error, and panic.
    let log = log.log_internal_errors(false);
    let log = if stderr::is_json() { log.json().boxed() } else { log.boxed() };
    Registry::default().with(traces).with(log.with_filter(shown)).init();
    rein_proto::trace_context::install(match exporting {
        Some(_) => Propagation { headers, adopt, attribute },
        None => Propagation { headers: passed, adopt: pass, attribute: |_, _, _| {} },
    });
    Ok(Telemetry(exporting))
}

/// Traces contain Rein's own spans, and the warnings and errors within them.
fn traced(metadata: &Metadata) -> bool {
    let least = if metadata.is_span() { Level::INFO } else { Level::WARN };
    metadata.target().starts_with("rein") && *metadata.level() <= least
}

fn export(target: &TraceTarget) -> Result<Exporting, Box<dyn Error>> {
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio()?)));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("telemetry").enable_all().build()?;
    let exporter = {
        let _within = runtime.enter();
        let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(target.endpoint).with_timeout(EXPORT);
        if target.endpoint.starts_with("https:") {
            exporter = exporter.with_tls_config(tls()?);
        }
        exporter.build().map_err(|error| format!("--otlp-endpoint: {error}"))?
    };
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE)
        .with_max_export_batch_size(BATCH)
        .with_scheduled_delay(DELAY)
        .build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(config).build())
        .with_sampler(sampler)
        .with_resource(resource(target.service))
        .build();
    Ok(Exporting { provider, runtime })
}

/// Trusts the public certificate authorities, and the one in OTEL_EXPORTER_OTLP_CERTIFICATE.
fn tls() -> Result<ClientTlsConfig, String> {
    let config = ClientTlsConfig::new().trust_anchors(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let name = "OTEL_EXPORTER_OTLP_CERTIFICATE";
    let Some(file) = std::env::var_os(name).filter(|file| !file.is_empty()) else { return Ok(config) };
    let pem = std::fs::read(&file).map_err(|error| format!("{name}: {}: {error}", file.display()))?;
    Ok(config.ca_certificate(Certificate::from_pem(pem)))
}

/// None: the system does not tell.
pub fn host_name() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned())
}

/// The process's attributes. OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME take precedence.
fn resource(service: &'static str) -> Resource {
    let host = host_name().map(|name| KeyValue::new("host.name", name));
    let own = [
        KeyValue::new("service.name", service),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ];
    let detected = opentelemetry_sdk::resource::EnvResourceDetector::new();
    let named = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    let resource =
        Resource::builder_empty().with_attributes(own.into_iter().chain(host)).with_detector(Box::new(detected));
    match named {
        Some(name) => resource.with_service_name(name).build(),
        None => resource.build(),
    }
}

/// The share of traces to keep. It applies to traces that start here; for others, the caller has decided.
fn ratio() -> Result<f64, String> {
    let name = "OTEL_TRACES_SAMPLER_ARG";
    let Some(text) = std::env::var(name).ok().filter(|text| !text.is_empty()) else { return Ok(1.0) };
    text.parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| format!("{name} must be a number from 0 to 1, got {text:?}"))
}

fn attribute(span: &Span, name: &'static str, value: AttributeValue) {
    let value: Value = match value {
        AttributeValue::Text(text) => text.into(),
        AttributeValue::Texts(texts) => Value::Array(Array::String(texts.into_iter().map(Into::into).collect())),
        AttributeValue::Integer(number) => number.into(),
        AttributeValue::Number(number) => number.into(),
        AttributeValue::Flag(flag) => flag.into(),
    };
    span.set_attribute(name, value);
}

struct Headers(Vec<(String, String)>);

impl Injector for Headers {
    fn set(&mut self, name: &str, value: String) {
        self.0.push((name.to_owned(), value));
    }
}

fn headers(span: &Span) -> Vec<(String, String)> {
    let mut headers = Headers(Vec::new());
    TraceContextPropagator::new().inject_context(&span.context(), &mut headers);
    headers.0
}

struct Given<'a>(Get<'a>);

impl Extractor for Given<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        (self.0)(name)
    }

    fn keys(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// The caller's trace context and trace id.
fn caller(get: Get) -> Option<(Context, String)> {
    let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &Given(get));
    let trace =
        Some(caller.span().span_context()).filter(|span| span.is_valid()).map(|span| span.trace_id().to_string());
    trace.map(|trace| (caller, trace))
}

fn adopt(span: &Span, get: Get) -> Option<String> {
    let (caller, trace) = caller(get)?;
    // Setting the parent of a span that is not traced fails, which is harmless.
    let _ = span.set_parent(caller);
    Some(trace)
}

/// The caller's headers. Without an exporter they are forwarded unchanged, and this process is not part of the trace.
struct Caller(Vec<(String, String)>);

fn pass(span: &Span, get: Get) -> Option<String> {
    let (caller, trace) = caller(get)?;
    let mut headers = Headers(Vec::new());
    TraceContextPropagator::new().inject_context(&caller, &mut headers);
    within(span, |span| span.extensions_mut().insert(Caller(headers.0)));
    Some(trace)
}

fn passed(span: &Span) -> Vec<(String, String)> {
    let of = |span: SpanRef<Registry>| {
        span.scope().find_map(|span| span.extensions().get::<Caller>().map(|caller| caller.0.clone()))
    };
    within(span, of).flatten().unwrap_or_default()
}

fn within<T>(span: &Span, then: impl FnOnce(SpanRef<Registry>) -> T) -> Option<T> {
    let of = |(id, subscriber): (&tracing::span::Id, &tracing::Dispatch)| {
        subscriber.downcast_ref::<Registry>()?.span(id).map(then)
    };
    span.with_subscriber(of).flatten()
}
