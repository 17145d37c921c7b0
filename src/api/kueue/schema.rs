//! Schema fragments that the derive cannot express.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Pattern of a quantity of at most 19 digits and a power of ten up to 18. The API server's own
/// parser accepts `1e400` and wraps it on use.
const QUANTITY_PATTERN: &str =
    r"^\+?([0-9]{1,19}(\.[0-9]{0,9})?|\.[0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE](\+?(0?[0-9]|1[0-8])|-[0-9]{1,2}))?$";

/// Pattern of a DNS subdomain (RFC 1123). Fields limit the length to 253 characters separately.
pub(super) const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// Pattern of the name of a resource, label or taint: an optional DNS subdomain and a slash, then
/// at most 63 characters.
pub(super) const QUALIFIED_NAME: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$";

/// Pattern of a label value.
pub(super) const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";

/// Quantity of zero or more. A CEL rule would be more precise, but a ClusterQueue may have 65,536
/// quotas and the API server rejects any rule over all of them for its estimated cost. So the
/// pattern has no minus sign, and numbers have a minimum. Rules that compare quotas are in
/// `config/policy`.
pub(super) fn non_negative_quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 0,
        "pattern": QUANTITY_PATTERN,
    })
}

/// Fair-sharing weight: zero, or more than 10⁻⁹, below which shares are indistinguishable.
pub(super) fn weight(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 0,
        "pattern": QUANTITY_PATTERN,
        "x-kubernetes-validations": [{
            "rule": "!quantity(string(self)).isGreaterThan(quantity('0')) || quantity(string(self)).isGreaterThan(quantity('1n'))",
            "message": "weight must be 0 or more than 1n",
        }],
    })
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
