//! How engines are called: over a connection or within the process. It does not know which engines there are.

use tonic::body::Body;
use tower::{Service, ServiceExt, util::BoxCloneSyncService};

/// Why an engine could not be called.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TransportError(Box<dyn std::error::Error + Send + Sync>);

/// A tonic `Channel`, or an `EngineServer` that is called without a socket. Both use the same code path.
pub type EngineTransport = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, TransportError>;

/// Makes a transport of a `Channel` or an `EngineServer`.
pub fn transport<S>(service: S) -> EngineTransport
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + Sync + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
    S::Future: Send + 'static,
{
    let wrap: fn(S::Error) -> TransportError = |error| TransportError(error.into());
    BoxCloneSyncService::new(service.map_err(wrap))
}
