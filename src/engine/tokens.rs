//! Auth tokens of Ray clusters.

use ring::error::Unspecified;
use ring::hmac;
use ring::rand::SystemRandom;

/// Key from which one process derives its tokens. Without the key they are indistinguishable from
/// random, so the engine can create tokens and stay deterministic.
#[derive(Clone)]
pub struct TokenKey(hmac::Key);

impl TokenKey {
    /// Generates a secret key.
    ///
    /// # Errors
    /// Fails if the system provides no randomness.
    pub fn random() -> Result<Self, Unspecified> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map(Self)
    }

    /// Returns a fixed, public key, for dry runs and tests, where tokens protect nothing.
    pub fn insecure() -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, b"known"))
    }

    /// Returns the token of the cluster with this uid: 64 hexadecimal digits.
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
    fn token_depends_on_key_and_cluster() {
        let (one, other) = (TokenKey::random().expect("randomness"), TokenKey::random().expect("randomness"));
        assert_eq!(one.token("a"), one.token("a"));
        assert_ne!(one.token("a"), one.token("b"));
        assert_ne!(one.token("a"), other.token("a"));
        assert_eq!(one.token("a").len(), 64);
        assert_eq!(format!("{one:?}"), "TokenKey");
    }
}
