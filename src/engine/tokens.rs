//! Tokens that let those in who talk to a Ray cluster.

use ring::error::Unspecified;
use ring::hmac;
use ring::rand::SystemRandom;

/// What the tokens of one process are made from: to who doesn't have it, they look like chance. So the engine makes them, and still
/// nothing in it is random.
#[derive(Clone)]
pub struct TokenKey(hmac::Key);

impl TokenKey {
    /// A key that nobody knows.
    ///
    /// # Errors
    /// When the machine has no randomness to give.
    pub fn random() -> Result<Self, Unspecified> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map(Self)
    }

    /// The key that everybody knows, for worlds where tokens keep nobody out: those of rehearsals and tests.
    pub fn known() -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, b"known"))
    }

    /// The token of the cluster with this uid: 64 hexadecimal digits.
    pub fn token(&self, cluster_uid: &str) -> String {
        let tag = hmac::sign(&self.0, cluster_uid.as_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TokenKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_by_its_key_and_its_cluster() {
        let (one, other) = (TokenKey::random().expect("randomness"), TokenKey::random().expect("randomness"));
        assert_eq!(one.token("a"), one.token("a"));
        assert_ne!(one.token("a"), one.token("b"));
        assert_ne!(one.token("a"), other.token("a"));
        assert_eq!(one.token("a").len(), 64);
        assert_eq!(format!("{one:?}"), "TokenKey");
    }
}
