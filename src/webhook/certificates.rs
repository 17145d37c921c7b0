//! Serving certificate of the webhook and its CA: issuing and validity.
//!
//! Each certificate has its own CA, whose key is discarded after signing. So there is only one
//! secret, and no further certificate can be issued that the API server would trust.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use thiserror::Error;
use time::OffsetDateTime;

/// Validity of a certificate.
pub const VALIDITY: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Time before its expiry at which a certificate is replaced. A cluster may be down for this long
/// without its certificate expiring.
pub const RENEW_BEFORE_EXPIRY: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Backdating of the start of validity, for API servers whose clocks are behind.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(1);

/// Certificate, private key and CA bundle, as in the Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct CertBundle {
    /// CA bundle, as PEM: the CA of this certificate, then that of the previous one, which another
    /// replica may still serve.
    pub ca_bundle: String,
    /// Certificate, as PEM.
    pub certificate: String,
    /// Private key, as PEM.
    pub key: String,
}

/// Omits the private key, which must not be logged.
impl fmt::Debug for CertBundle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ca_bundle: authorities, certificate, .. } = self;
        formatter.debug_struct("Bundle").field("authorities", authorities).field("certificate", certificate).finish()
    }
}

/// Reason for which a certificate has to be replaced.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CertInvalid {
    /// The certificate can't be used at all.
    #[error("certificate is unusable: {0}")]
    Unusable(String),
    /// The certificate isn't valid for a name by which the API server calls the webhook.
    #[error("certificate is not valid for {0}")]
    NameMismatch(String),
    /// The certificate has expired or soon will.
    #[error("certificate expires before {0}")]
    Expiring(Timestamp),
}

/// Error of issuing a certificate.
#[derive(Debug, Error)]
#[error("issuing a certificate for {names}: {source}")]
pub struct IssueError {
    names: String,
    source: rcgen::Error,
}

/// Returns the crypto provider for TLS.
pub(super) fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl CertBundle {
    /// Issues a certificate for these DNS names and IP addresses, with a new CA. The CA of `former`
    /// stays in the bundle.
    ///
    /// # Errors
    /// If a name is invalid.
    pub fn issue(names: &BTreeSet<String>, former: Option<&Self>, now: Timestamp) -> Result<Self, IssueError> {
        let listed: Vec<String> = names.iter().cloned().collect();
        let failed = |source| IssueError { names: listed.join(", "), source };
        let (authority, issuer) = create_ca(now).map_err(failed)?;
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(listed.clone()).map_err(failed)?;
        set_validity(&mut params, now);
        params.distinguished_name.push(DnType::CommonName, "sluice-webhook");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        let former = former.and_then(Self::own_ca).unwrap_or_default();
        Ok(Self { ca_bundle: format!("{authority}{former}"), certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Returns the key pair for serving.
    ///
    /// # Errors
    /// If the certificate can't be parsed, or the private key doesn't match it.
    pub fn certified_key(&self) -> Result<Arc<CertifiedKey>, CertInvalid> {
        let chain = parse_certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|error| unusable(&"key", &error))?;
        let certified = CertifiedKey::from_der(chain, key, &crypto_provider());
        certified.map(Arc::new).map_err(|error| unusable(&"key", &error))
    }

    /// Checks that the certificate is valid for these names, now and for another
    /// [`RENEW_BEFORE_EXPIRY`].
    ///
    /// # Errors
    /// If it has to be replaced.
    pub fn check(&self, names: &BTreeSet<String>, now: Timestamp) -> Result<(), CertInvalid> {
        self.certified_key()?;
        let mut roots = RootCertStore::empty();
        for authority in parse_certificates(&self.ca_bundle)? {
            roots.add(authority).map_err(|error| unusable(&"CA", &error))?;
        }
        let chain = parse_certificates(&self.certificate)?;
        let own = chain.first().ok_or_else(|| CertInvalid::Unusable("no certificate".into()))?;
        let own = ParsedCertificate::try_from(own).map_err(|error| unusable(&"certificate", &error))?;
        let end = now.saturating_add(RENEW_BEFORE_EXPIRY).unwrap_or(Timestamp::MAX);
        let algorithms = crypto_provider().signature_verification_algorithms.all;
        for (at, otherwise) in [(now, None), (end, Some(CertInvalid::Expiring(end)))] {
            let signed = verify_server_cert_signed_by_trust_anchor(&own, &roots, &[], unix_time(at), algorithms);
            signed.map_err(|error| otherwise.unwrap_or_else(|| unusable(&"certificate", &error)))?;
        }
        let is_for = |name: &&String| {
            ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(&own, &name).is_ok())
        };
        names.iter().find(|name| !is_for(name)).map_or(Ok(()), |name| Err(CertInvalid::NameMismatch(name.clone())))
    }

    /// Returns the first CA of the bundle, as PEM; None if the bundle is empty.
    fn own_ca(&self) -> Option<String> {
        const END: &str = "-----END CERTIFICATE-----";
        let (first, _) = self.ca_bundle.split_once(END)?;
        Some(format!("{}{END}\n", first.trim_start()))
    }
}

/// Creates a CA: its certificate as PEM, and the issuer that signs with its key.
fn create_ca(now: Timestamp) -> Result<(String, Issuer<'static, KeyPair>), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    set_validity(&mut params, now);
    // The name differs from earlier CAs, so that a client that trusts both can tell them apart.
    params.distinguished_name.push(DnType::CommonName, format!("sluice-webhook-ca-{}", now.as_second()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = params.self_signed(&key)?.pem();
    Ok((certificate, Issuer::new(params, key)))
}

fn set_validity(params: &mut CertificateParams, now: Timestamp) {
    let date = |at: Result<Timestamp, _>| {
        let second = at.unwrap_or(Timestamp::MAX).as_second();
        OffsetDateTime::from_unix_timestamp(second).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    };
    params.not_before = date(now.checked_sub(CLOCK_SKEW));
    params.not_after = date(now.checked_add(VALIDITY));
}

fn parse_certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, CertInvalid> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    read.map_err(|error| unusable(&"certificate", &error))
}

fn unusable(what: &dyn fmt::Display, error: &dyn fmt::Display) -> CertInvalid {
    CertInvalid::Unusable(format!("{what}: {error}"))
}

fn unix_time(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(at.as_second()).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(hours: i64) -> Timestamp {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        start + SignedDuration::from_hours(hours)
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn issued(names_: &[&str], former: Option<&CertBundle>, hours: i64) -> CertBundle {
        CertBundle::issue(&names(names_), former, at(hours)).expect("a certificate")
    }

    const DAY: i64 = 24;

    #[rstest]
    #[case::just_issued(0, true)]
    #[case::clock_behind(-1, true)]
    #[case::clock_far_behind(-2, false)]
    #[case::young(59 * DAY, true)]
    #[case::last_hour(60 * DAY - 1, true)]
    #[case::due(60 * DAY + 1, false)]
    #[case::expired(91 * DAY, false)]
    #[case::long_expired(3000 * DAY, false)]
    fn certificate_is_replaced_thirty_days_before_expiry(#[case] hours: i64, #[case] valid: bool) {
        let bundle = issued(&["a.svc"], None, 0);
        assert_eq!(bundle.check(&names(&["a.svc"]), at(hours)).is_ok(), valid);
    }

    #[rstest]
    #[case::same(&["sluice-webhook.sluice-system.svc"], None)]
    #[case::address(&["127.0.0.1"], None)]
    #[case::none(&[], None)]
    #[case::another(&["sluice-webhook.elsewhere.svc"], Some("sluice-webhook.elsewhere.svc"))]
    #[case::one_more(&["127.0.0.1", "10.0.0.1"], Some("10.0.0.1"))]
    #[case::invalid_name(&["a b"], Some("a b"))]
    fn certificate_is_valid_for_its_names_only(#[case] called: &[&str], #[case] missing: Option<&str>) {
        let bundle = issued(&["127.0.0.1", "sluice-webhook.sluice-system.svc"], None, 0);
        let expected = missing.map_or(Ok(()), |name| Err(CertInvalid::NameMismatch(name.into())));
        assert_eq!(bundle.check(&names(called), at(1)), expected);
    }

    #[test]
    fn previous_ca_stays_trusted_and_earlier_ones_do_not() {
        let first = issued(&["a"], None, 0);
        let second = issued(&["a"], Some(&first), 60 * DAY);
        let third = issued(&["a"], Some(&second), 120 * DAY);

        let trusted = |by: &CertBundle, of: &CertBundle| by.ca_bundle.contains(&of.own_ca().expect("an authority"));
        assert!(trusted(&second, &first) && trusted(&second, &second));
        assert!(trusted(&third, &second) && !trusted(&third, &first));
        // A client with the new bundle accepts the previous certificate, which may still be served.
        let served = CertBundle { ca_bundle: second.ca_bundle.clone(), ..first };
        assert_eq!(served.check(&names(&["a"]), at(50 * DAY)), Ok(()));
    }

    #[test]
    fn mismatched_parts_are_unusable() {
        let (one, other) = (issued(&["a"], None, 0), issued(&["a"], None, 1));
        let broken = [
            CertBundle { key: other.key.clone(), ..one.clone() },
            CertBundle { ca_bundle: other.ca_bundle.clone(), ..one.clone() },
            CertBundle { certificate: String::new(), ..one.clone() },
            CertBundle {
                certificate: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(),
                ..one.clone()
            },
            CertBundle { key: "a".into(), ..one },
        ];
        for bundle in broken {
            let unfit = bundle.check(&names(&["a"]), at(2)).expect_err("unusable");
            assert!(matches!(unfit, CertInvalid::Unusable(_)), "{unfit:?}");
        }
    }
}
