//! Annotations of a RayService that select the Gateway or HTTPRoute of its traffic.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::annotations::{AllowedValues, AnnotationError, annotation_value};

/// Annotation of a RayService: existing Gateway of its traffic, as `NAMESPACE/NAME`, or `NAME` in
/// the service's namespace. No Gateway is created then.
pub const GATEWAY_ANNOTATION: &str = "sluice.dev/gateway";
/// Annotation of a RayService: user-provided HTTPRoute in its namespace that routes its traffic. No
/// Gateway and no HTTPRoute are created then.
pub const ROUTE_ANNOTATION: &str = "sluice.dev/http-route";
/// Annotation of a RayService: user-provided HTTPRoute that its clusters were added to as backends,
/// and must be removed from again.
pub const ADOPTED_ROUTE_ANNOTATION: &str = "sluice.dev/adopted-http-route";

/// Maximum length of a DNS name, in characters.
const MAX_DNS_NAME_CHARS: usize = 253;
/// Maximum length of a DNS label, in characters.
const MAX_DNS_LABEL_CHARS: usize = 63;

/// Reference to a Gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayRef<'a> {
    /// Namespace of the Gateway. None means that of the service.
    pub namespace: Option<&'a str>,
    /// Name of the Gateway.
    pub name: &'a str,
}

/// Returns the Gateway that the service names. None if the annotation is absent.
///
/// # Errors
/// Returns an error that names the annotation if its value is invalid. The annotation is ignored
/// then.
pub fn gateway_ref(meta: &ObjectMeta) -> Result<Option<GatewayRef<'_>>, AnnotationError> {
    let Some(text) = annotation_value(meta, GATEWAY_ANNOTATION) else { return Ok(None) };
    let (namespace, name) = text.split_once('/').map_or((None, text), |(namespace, name)| (Some(namespace), name));
    if is_dns_name(name) && namespace.is_none_or(is_dns_label) {
        Ok(Some(GatewayRef { namespace, name }))
    } else {
        Err(AnnotationError::ignored(
            GATEWAY_ANNOTATION,
            text,
            AllowedValues::Either("NAME", "NAMESPACE/NAME of a Gateway"),
        ))
    }
}

/// Returns the HTTPRoute that the service names. None if the annotation is absent.
///
/// # Errors
/// Returns an error that names the annotation if its value is invalid. The annotation is ignored
/// then.
pub fn http_route_name(meta: &ObjectMeta) -> Result<Option<&str>, AnnotationError> {
    match annotation_value(meta, ROUTE_ANNOTATION) {
        Some(text) if !is_dns_name(text) => {
            Err(AnnotationError::ignored(ROUTE_ANNOTATION, text, AllowedValues::Any("the name of an HTTPRoute")))
        }
        named => Ok(named),
    }
}

/// Returns the user-provided HTTPRoute that the clusters of the service were added to. None if
/// there is none.
pub fn adopted_http_route_name(meta: &ObjectMeta) -> Option<&str> {
    annotation_value(meta, ADOPTED_ROUTE_ANNOTATION)
}

/// Returns the error of each invalid annotation.
pub fn invalid_annotations(meta: &ObjectMeta) -> Vec<AnnotationError> {
    gateway_ref(meta).err().into_iter().chain(http_route_name(meta).err()).collect()
}

/// Returns whether the name is a DNS subdomain, which the names of most objects must be.
pub fn is_dns_name(name: &str) -> bool {
    name.len() <= MAX_DNS_NAME_CHARS && name.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !label.is_empty()
        && label.len() <= MAX_DNS_LABEL_CHARS
        && label.chars().all(|c| is_alphanumeric(c) || c == '-')
        && label.starts_with(is_alphanumeric)
        && label.ends_with(is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn with(name: &str, value: &str) -> ObjectMeta {
        ObjectMeta { annotations: Some([(name.to_owned(), value.to_owned())].into()), ..ObjectMeta::default() }
    }

    #[test]
    fn gateway_and_route_annotations_are_parsed() {
        let other_namespace = with(GATEWAY_ANNOTATION, "infra/public");
        assert_eq!(gateway_ref(&other_namespace), Ok(Some(GatewayRef { namespace: Some("infra"), name: "public" })));
        let same_namespace = with(GATEWAY_ANNOTATION, "public.v1");
        assert_eq!(gateway_ref(&same_namespace), Ok(Some(GatewayRef { namespace: None, name: "public.v1" })));
        assert_eq!(http_route_name(&with(ROUTE_ANNOTATION, "shop")), Ok(Some("shop")));

        let unannotated = ObjectMeta::default();
        assert_eq!((gateway_ref(&unannotated), http_route_name(&unannotated)), (Ok(None), Ok(None)));
        assert!(invalid_annotations(&unannotated).is_empty());
    }

    #[rstest]
    #[case::empty(GATEWAY_ANNOTATION, "", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::no_name(GATEWAY_ANNOTATION, "infra/", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::no_namespace(GATEWAY_ANNOTATION, "/public", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::two_slashes(GATEWAY_ANNOTATION, "a/b/c", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::dots_in_a_namespace(GATEWAY_ANNOTATION, "a.b/c", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::another_namespace(ROUTE_ANNOTATION, "infra/shop", "not the name of an HTTPRoute")]
    #[case::capital_letters(ROUTE_ANNOTATION, "Shop", "not the name of an HTTPRoute")]
    fn invalid_routing_annotation_is_reported_with_its_value(
        #[case] name: &str,
        #[case] value: &str,
        #[case] wrong: &str,
    ) {
        let expected = format!("annotation {name}: {value:?} is {wrong}; the annotation is ignored");
        let errors = invalid_annotations(&with(name, value));
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
    }
}
