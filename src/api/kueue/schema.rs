//! Schema fragments that the derive cannot express.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Pattern of a quantity of at most 19 digits and a power of ten up to 18. The API server's own
/// parser accepts `1e400` and wraps it on use. `config/policy` rejects a minus sign, with the
/// response code of Kueue's webhook.
const QUANTITY_PATTERN: &str =
    r"^[-+]?([0-9]{1,19}(\.[0-9]{0,9})?|\.[0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE](\+?(0?[0-9]|1[0-8])|-[0-9]{1,2}))?$";

/// Pattern of a DNS subdomain (RFC 1123). Fields limit the length to 253 characters separately.
pub(super) const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// Pattern of a label value.
pub(super) const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";

/// Quantity. Rules about its value are in `config/policy`: a ClusterQueue may have 65,536 quotas,
/// and the API server rejects a CEL rule over all of them for its estimated cost.
pub(super) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true, "pattern": QUANTITY_PATTERN})
}

/// Node labels. The syntax of the keys is validated in `config/policy`, because a schema cannot
/// constrain the keys of a map.
pub(super) fn node_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 8,
        "x-kubernetes-map-type": "atomic",
        "additionalProperties": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
    })
}

/// Object that the API server stores without validating it. Validating a whole pod template on each
/// status write made these writes slow.
pub(super) fn opaque_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
