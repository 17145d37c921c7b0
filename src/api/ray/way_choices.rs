//! What the owner of a service says, in annotations, of the ways in by which its requests come.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::annotations::{annotation, misread_as};

/// On a RayService: the Gateway that requests come in by, as `NAMESPACE/NAME`, or `NAME` for one in its own namespace. None is made then.
pub const GATEWAY_ANNOTATION: &str = "sluice.dev/gateway";
/// On a RayService: the HTTPRoute in its namespace, made by others, that sends it requests. No Gateway and no route are made then.
pub const ROUTE_ANNOTATION: &str = "sluice.dev/http-route";
/// On a RayService: the route of others that its clusters were put into, and have to be taken out of again.
pub const ADOPTED_ROUTE_ANNOTATION: &str = "sluice.dev/adopted-http-route";

/// The longest DNS name, in characters.
const LONGEST_NAME: usize = 253;
/// The longest part of a DNS name between two dots, in characters.
const LONGEST_LABEL: usize = 63;

/// Where a Gateway is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayPlace<'a> {
    /// Its namespace; that of the service when unset.
    pub namespace: Option<&'a str>,
    /// Its name.
    pub name: &'a str,
}

/// The Gateway that requests come in by, if the owner of a service names one.
///
/// # Errors
/// When the annotation names none, which counts as nothing; the sentence says so.
pub fn gateway(meta: &ObjectMeta) -> Result<Option<GatewayPlace<'_>>, String> {
    let Some(text) = annotation(meta, GATEWAY_ANNOTATION) else { return Ok(None) };
    let (namespace, name) = text.split_once('/').map_or((None, text), |(namespace, name)| (Some(namespace), name));
    let is_place = is_dns_name(name) && namespace.is_none_or(is_dns_label);
    match is_place {
        true => Ok(Some(GatewayPlace { namespace, name })),
        false => Err(misread_as(GATEWAY_ANNOTATION, text, "neither NAME nor NAMESPACE/NAME of a Gateway")),
    }
}

/// The route that sends a service its requests, if its owner names one.
///
/// # Errors
/// When the annotation names none, which counts as nothing; the sentence says so.
pub fn route(meta: &ObjectMeta) -> Result<Option<&str>, String> {
    match annotation(meta, ROUTE_ANNOTATION) {
        Some(text) if !is_dns_name(text) => Err(misread_as(ROUTE_ANNOTATION, text, "not the name of an HTTPRoute")),
        named => Ok(named),
    }
}

/// The route of others that the clusters of a service were put into.
pub fn adopted_route(meta: &ObjectMeta) -> Option<&str> {
    annotation(meta, ADOPTED_ROUTE_ANNOTATION)
}

/// What is wrong with the annotations that an owner has set.
pub fn misread(meta: &ObjectMeta) -> Vec<String> {
    gateway(meta).err().into_iter().chain(route(meta).err()).collect()
}

/// Whether this is a DNS subdomain, as names of most objects are.
pub fn is_dns_name(name: &str) -> bool {
    name.len() <= LONGEST_NAME && name.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = !label.is_empty() && label.len() <= LONGEST_LABEL;
    fits && label.chars().all(|c| ends(c) || c == '-') && label.starts_with(ends) && label.ends_with(ends)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn with(name: &str, value: &str) -> ObjectMeta {
        ObjectMeta { annotations: Some([(name.to_owned(), value.to_owned())].into()), ..ObjectMeta::default() }
    }

    #[test]
    fn ways_are_read() {
        let there = with(GATEWAY_ANNOTATION, "infra/public");
        assert_eq!(gateway(&there), Ok(Some(GatewayPlace { namespace: Some("infra"), name: "public" })));
        let here = with(GATEWAY_ANNOTATION, "public.v1");
        assert_eq!(gateway(&here), Ok(Some(GatewayPlace { namespace: None, name: "public.v1" })));
        assert_eq!(route(&with(ROUTE_ANNOTATION, "shop")), Ok(Some("shop")));

        let nothing = ObjectMeta::default();
        assert_eq!((gateway(&nothing), route(&nothing)), (Ok(None), Ok(None)));
        assert!(misread(&nothing).is_empty());
    }

    #[rstest]
    #[case::empty(GATEWAY_ANNOTATION, "", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::no_name(GATEWAY_ANNOTATION, "infra/", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::no_namespace(GATEWAY_ANNOTATION, "/public", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::two_slashes(GATEWAY_ANNOTATION, "a/b/c", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::dots_in_a_namespace(GATEWAY_ANNOTATION, "a.b/c", "neither NAME nor NAMESPACE/NAME of a Gateway")]
    #[case::another_namespace(ROUTE_ANNOTATION, "infra/shop", "not the name of an HTTPRoute")]
    #[case::capital_letters(ROUTE_ANNOTATION, "Shop", "not the name of an HTTPRoute")]
    fn what_names_nothing_is_told_with_what_is_allowed(#[case] name: &str, #[case] value: &str, #[case] wrong: &str) {
        let told = format!("annotation {name}: {value:?} is {wrong}, and counts as nothing");
        assert_eq!(misread(&with(name, value)), [told]);
    }
}
