//! Pieces of schema that the derive can't say.

use schemars::{Schema, SchemaGenerator, json_schema};

/// The grammar of quantities, as the API server's own kinds state it.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// A name in DNS form (RFC 1123), at most 253 characters.
pub(super) const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// A quantity that the API server refuses, with a sentence that says why, when it is negative or does not fit.
pub(super) fn non_negative_quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": QUANTITY_PATTERN,
        "maxLength": 64,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 0 : (!isQuantity(self) || quantity(self).sign() >= 0)",
            "message": "must not be negative",
        }, {
            "rule": "type(self) == int || (isQuantity(self) && quantity(self).isLessThan(quantity('9223372036854775807')))",
            "message": "must be a quantity below 9223372036854775807, like 4, 500m or 64Gi",
        }],
    })
}

/// An object that only its reader looks into. The API server stores it as it is: checking a whole pod template on every
/// status write is what made those writes slow.
pub(super) fn opaque_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
