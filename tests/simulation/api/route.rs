//! Parses request paths and queries.

use http::{Method, Uri};

use super::kinds::{self, ResourceKind};
use super::status_error::{FieldError, StatusError};

/// Parsed request path.
#[derive(Debug, PartialEq)]
pub enum RequestPath {
    /// The `/version` endpoint.
    Version,
    /// A collection, an object, or a subresource of one.
    Resource(ResourcePath),
    /// The proxy subresource of a Service or a pod.
    Proxy {
        /// Namespace of the Service or pod.
        namespace: String,
        /// Target Service or pod.
        target: ProxyTarget,
        /// Path and query of the forwarded request.
        path_and_query: String,
    },
}

/// Resource that a request addresses: a collection, an object, or a subresource of one.
#[derive(Debug)]
pub struct ResourcePath {
    /// Kind of the objects.
    pub kind: &'static ResourceKind,
    /// Namespace; empty for all namespaces and for cluster-scoped kinds.
    pub namespace: String,
    /// Object name; `None` for a collection.
    pub name: Option<String>,
    /// Subresource, like `status`.
    pub subresource: Option<String>,
}

impl PartialEq for ResourcePath {
    fn eq(&self, other: &Self) -> bool {
        let parts = |target: &Self| {
            (target.kind.index, target.namespace.clone(), target.name.clone(), target.subresource.clone())
        };
        parts(self) == parts(other)
    }
}

/// Target of a proxied request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyTarget {
    /// A Service.
    Service {
        /// Name of the Service.
        name: String,
        /// Port by name or number; `None` selects the only port.
        port: Option<String>,
    },
    /// A pod.
    Pod {
        /// Name of the pod.
        name: String,
        /// Port number; `None` selects the port of the first container.
        port: Option<String>,
    },
}

/// Parses the path of a request. Returns `None` if nothing is served at that path.
pub fn parse_path(uri: &Uri) -> Option<RequestPath> {
    let segments: Vec<String> =
        uri.path().split('/').filter(|part| !part.is_empty()).map(|part| percent_decode(part, false)).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let (group, version, rest) = match segments.as_slice() {
        ["version"] => return Some(RequestPath::Version),
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    if let ["namespaces", namespace, kind @ ("services" | "pods"), target, "proxy", ..] = rest {
        return (group.is_empty() && version == "v1").then(|| parse_proxy_path(uri, namespace, kind, target));
    }
    let (namespace, rest) = match rest {
        // Namespace is a kind itself and has subresources.
        ["namespaces", _, "status" | "finalize"] => ("", rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        _ => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some(*name), None),
        [plural, name, subresource] => (plural, Some(*name), Some(*subresource)),
        _ => return None,
    };
    let kind = kinds::by_path(group, version, plural)?;
    let scope_matches = if kind.namespaced { name.is_none() || !namespace.is_empty() } else { namespace.is_empty() };
    scope_matches.then(|| {
        RequestPath::Resource(ResourcePath {
            kind,
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
        })
    })
}

/// Parses a proxy target `[scheme:]name[:port]`. The path after `/proxy` stays percent-encoded.
fn parse_proxy_path(uri: &Uri, namespace: &str, kind: &str, target: &str) -> RequestPath {
    let (name, port) = match target.split(':').collect::<Vec<_>>().as_slice() {
        [name] => ((*name).to_owned(), None),
        ["http" | "https", name] => ((*name).to_owned(), None),
        [name, port] => ((*name).to_owned(), Some((*port).to_owned())),
        [_, name, port] => ((*name).to_owned(), Some((*port).to_owned()).filter(|port| !port.is_empty())),
        _ => (target.to_owned(), None),
    };
    let target = if kind == "pods" { ProxyTarget::Pod { name, port } } else { ProxyTarget::Service { name, port } };
    let path = uri.path().split_once("/proxy").map_or("", |(_, rest)| rest);
    let path = if path.starts_with('/') { path } else { "/" };
    let path_and_query = uri.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    RequestPath::Proxy { namespace: namespace.to_owned(), target, path_and_query }
}

/// Decoded query parameters of a request.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the query of `uri`.
    pub fn parse(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let decoded_pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(name, true), percent_decode(value, true))
        };
        Self(pairs.map(decoded_pair).collect())
    }

    /// Returns the value of a parameter, or an empty string if it is absent.
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Returns the value of a parameter as a number. `None` if it is absent or not a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name).parse().ok()
    }

    /// Returns true if a parameter is `true` or `1`.
    pub fn is_true(&self, name: &str) -> bool {
        matches!(self.get(name), "true" | "1")
    }
}

/// Returns the exact version that a list has to have; `None` if any version will do.
///
/// # Errors
/// Returns an error if `resourceVersionMatch` is set without a matching `resourceVersion`.
pub fn exact_list_version(query: &Query) -> Result<Option<u64>, StatusError> {
    match (query.get("resourceVersionMatch"), query.number("resourceVersion")) {
        ("", _) | ("NotOlderThan", Some(_)) => Ok(None),
        ("Exact", Some(version)) if version > 0 => Ok(Some(version)),
        (given, _) => {
            let error =
                FieldError::forbidden("resourceVersionMatch", &format!("{given} is forbidden without such a version"));
            Err(StatusError::invalid_as("ListOptions", "meta.k8s.io", "", &[error]))
        }
    }
}

/// Returns the API verb of a request; `None` if the method is not allowed on the resource.
pub fn verb(method: &Method, target: &ResourcePath, query: &Query) -> Option<&'static str> {
    Some(match (method.as_str(), target.name.is_some()) {
        ("GET", false) if query.is_true("watch") => "watch",
        ("GET", false) => "list",
        ("GET", true) => "get",
        ("POST", false) => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => return None,
    })
}

/// Decodes percent-encoding; in a query a plus sign is a space.
fn percent_decode(text: &str, in_query: bool) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |digit: &u8| char::from(*digit).to_digit(16);
        let escaped = match (first, tail) {
            (b'%', [high, low, ..]) => {
                hex(high).zip(hex(low)).and_then(|(high, low)| u8::try_from(high * 16 + low).ok())
            }
            _ => None,
        };
        match escaped {
            Some(byte) => bytes.push(byte),
            None => bytes.push(if in_query && *first == b'+' { b' ' } else { *first }),
        }
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn target(kind: &str, namespace: &str, name: Option<&str>, subresource: Option<&str>) -> Option<RequestPath> {
        Some(RequestPath::Resource(ResourcePath {
            kind: kinds::by_name(kind),
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
        }))
    }

    #[rstest]
    #[case::all_pods("/api/v1/pods", target("Pod", "", None, None))]
    #[case::pods_of_a_namespace("/api/v1/namespaces/ns/pods", target("Pod", "ns", None, None))]
    #[case::object("/apis/ray.io/v1/namespaces/ns/rayclusters/a", target("RayCluster", "ns", Some("a"), None))]
    #[case::status(
        "/apis/ray.io/v1/namespaces/ns/rayclusters/a/status",
        target("RayCluster", "ns", Some("a"), Some("status"))
    )]
    #[case::cluster_scoped("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/q", target("ClusterQueue", "", Some("q"), None))]
    #[case::a_namespace("/api/v1/namespaces/ns", target("Namespace", "", Some("ns"), None))]
    #[case::status_of_a_namespace("/api/v1/namespaces/ns/status", target("Namespace", "", Some("ns"), Some("status")))]
    #[case::object_without_namespace("/api/v1/pods/p", None)]
    #[case::unknown("/apis/ray.io/v1/rayjobs", None)]
    fn path_is_parsed(#[case] text: &str, #[case] expected: Option<RequestPath>) {
        assert_eq!(parse_path(&text.parse().expect("a path")), expected);
    }

    #[rstest]
    #[case::named_port("services/head:dashboard/proxy/api/x?a=b", "head", Some("dashboard"), "/api/x?a=b")]
    #[case::no_port("services/head/proxy", "head", None, "/")]
    #[case::scheme("services/http:head:8265/proxy/", "head", Some("8265"), "/")]
    fn proxy_path_is_parsed(
        #[case] text: &str,
        #[case] name: &str,
        #[case] port: Option<&str>,
        #[case] path_and_query: &str,
    ) {
        let uri = format!("/api/v1/namespaces/ns/{text}").parse().expect("a path");
        let target = ProxyTarget::Service { name: name.into(), port: port.map(Into::into) };
        let expected = RequestPath::Proxy { namespace: "ns".into(), target, path_and_query: path_and_query.into() };
        assert_eq!(parse_path(&uri), Some(expected));
    }

    #[test]
    fn query_is_decoded() {
        let query =
            Query::parse(&"/pods?&labelSelector=ray.io%2Fcluster+in+%28a%29&limit=500".parse().expect("a path"));
        assert_eq!(query.get("labelSelector"), "ray.io/cluster in (a)");
        assert_eq!(query.number("limit"), Some(500));
        assert_eq!(query.get("continue"), "");
    }
}
